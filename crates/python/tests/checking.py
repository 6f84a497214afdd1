"""What the checks of the package share: a list of them, the demo model, and their runner."""

import os
import traceback

import bilayer

DEMO = os.environ["DEMO"]
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def opened(**settings):
    return bilayer.Bilayer(DEMO, gpu_layers=0, **{"context": 512, **settings})


def raised(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), f"{part!r} is not in {error!r}"
        return error
    raise AssertionError(f"no {kind}")


def main():
    failed = 0
    for function in CHECKS:
        try:
            function()
        except Exception:
            failed += 1
            print(f"failed {function.__name__}: {traceback.format_exc()}")
        else:
            print(f"ok {function.__name__}")
    return failed
