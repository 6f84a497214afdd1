"""What the checks of the package share: a list of them, the demo model, and their runner."""

import os
import signal
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


def forked(work):
    """Run work in a forked process, which must end without an exception, and soon."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


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
