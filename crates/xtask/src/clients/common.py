"""What the checks of all clients share: servers under test, and one line for each check.

The environment has BILAYER (the program), DEMO (the file of the demo model) and ENCODER (an encoder).
"""
import asyncio
import atexit
import contextlib
import functools
import importlib.metadata
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request

#: Seconds that one check may take.
SECONDS_MAX = 120

CHECKS = []


def check(function):
    """Registers a check; they run in the order in which they are written."""
    CHECKS.append(function)
    return function


class Server:
    """A `bilayer serve` with a port of its own."""

    def __init__(self, *flags):
        command = [os.environ["BILAYER"], "serve", "--port", "0", "-ngl", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.kill)
        self.said = []
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()
        line = self.process.stdout.readline()
        start = "listening on "
        if not line.startswith(start):
            self.process.wait()
            raise RuntimeError(f"the server did not start: {line}{''.join(self.said)}")
        self.url = line[len(start):].strip()
        self.v1 = self.url + "/v1"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as response:
            return response.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def running(self):
        """Requests that run now."""
        return sum(slot["is_processing"] for slot in json.loads(self.get("/slots")))

    def metric(self, name):
        """The value of a metric; needs --metrics."""
        return float(next(line for line in self.get("/metrics").splitlines() if line.startswith(name + " ")).split()[1])

    def wait_idle(self, seconds):
        """Seconds until nothing runs."""
        start = time.monotonic()
        while self.running():
            spent = time.monotonic() - start
            assert spent < seconds, f"a request still runs after {spent:.1f} s"
            time.sleep(0.01)
        return time.monotonic() - start

    def stopped_early(self, tokens_max):
        """What runs stops soon, and before it has computed that many tokens; needs --metrics."""
        spent = self.wait_idle(2)
        tokens = self.metric("llamacpp:tokens_predicted_total")
        assert tokens < tokens_max, f"{tokens:.0f} tokens were computed, {spent:.2f} s after the client left"


@functools.cache
def demo(*flags):
    """A server of the demo model that lives as long as the script."""
    return Server(*(flags or ("-np", "4", "-c", "4096")))


@functools.cache
def encoder():
    """A server of an encoder that lives as long as the script."""
    return Server("-m", os.environ["ENCODER"], "--alias", "minilm")


@contextlib.contextmanager
def server(*flags):
    """A server for one check."""
    one = Server(*flags)
    try:
        yield one
    finally:
        one.kill()


def fails(kind, call, *arguments, **named):
    """The error of that kind that a call must raise."""
    try:
        found = call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} but {found!r:.200}")


def equal(found, expected, what="the result"):
    assert found == expected, f"{what} is {found!r:.300}, not {expected!r:.300}"


def near(found, expected, tolerance, what="the result"):
    assert abs(found - expected) <= tolerance, f"{what} is {found}, not {expected} within {tolerance}"


def reason(error):
    """An error in one line, with the line of the check that found it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == sys.argv[0]]
    place = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    text = " ".join(str(error).split()) or "does not hold"
    name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{name}{text[:600]}{place}"


def out_of_time(*_):
    raise TimeoutError(f"not done in {SECONDS_MAX} s")


def main(package):
    """Runs the checks; prints a line for each."""
    client = f"{package} {importlib.metadata.version(package)}"
    wanted = os.environ.get("ONLY", "")
    failed = 0
    signal.signal(signal.SIGALRM, out_of_time)
    for function in CHECKS:
        if wanted not in function.__name__:
            continue
        name = function.__name__.replace("_", " ")
        signal.alarm(SECONDS_MAX)
        try:
            asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
            line = f"ok      {client}: {name}"
        except Exception as error:
            failed += 1
            line = f"failed  {client}: {name}: {reason(error)}"
        signal.alarm(0)
        print(line, flush=True)
    sys.exit(1 if failed else 0)
