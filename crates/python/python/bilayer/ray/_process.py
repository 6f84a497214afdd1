"""`bilayer serve` as a child process that ends with its parent."""

from __future__ import annotations

import collections
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from bilayer import Error, UsageError

#: Becomes the program, after it asked Linux to kill it when the thread that started it ends.
_LAUNCHER = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""

#: Flags that the deployment sets itself.
_RESERVED = {
    "-m": "model",
    "--model": "model",
    "-np": "parallel",
    "--parallel": "parallel",
    "--host": None,
    "--port": None,
    "--api-key": "api_keys",
    "--api-key-file": "api_keys",
    "--ssl-cert-file": None,
    "--ssl-key-file": None,
    "--drain-timeout": "drain_seconds",
}

#: Lines of the program's stderr that an error quotes.
_QUOTED_LINES = 20


def end_process(message: str) -> None:
    """End this worker, whose child has ended: Ray starts another, and sends nothing more to this one."""
    print(message, flush=True)
    os._exit(1)


def check_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of ``bilayer serve``, or refuse those that are not the caller's.

    Raises
    ------
    UsageError
        A flag is set by another parameter, or by the deployment.
    """
    if isinstance(arguments, (str, bytes)):
        raise TypeError("args must be a list of texts, not one text")
    for argument in arguments:
        flag = argument.split("=", 1)[0]
        if flag in _RESERVED:
            instead = _RESERVED[flag]
            advice = f"use the parameter {instead}" if instead else "the deployment sets it"
            raise UsageError(f"args has {flag}: {advice}", 2)
    return list(arguments)


class Server:
    """A running ``bilayer serve``.

    Parameters
    ----------
    arguments : list of str
        Arguments after ``serve``.
    binary : str, optional
        The program; by default the one of this package.
    host : str, default "127.0.0.1"
        The address to listen on.
    drain_seconds : float, default 30
        How long `stop` lets answers finish.
    patience : float, default 600
        Seconds until it must be ready.
    on_death : callable, optional
        Called with a message, in a thread of its own, when the program ends without `stop`.

    Raises
    ------
    Error
        It ended, or was not ready in time.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        binary: str | None = None,
        host: str = "127.0.0.1",
        drain_seconds: float = 30,
        patience: float = 600,
        on_death: Callable[[str], None] | None = None,
    ) -> None:
        self.key = secrets.token_hex(16)
        self.url = ""
        self._drain_seconds = drain_seconds
        self._on_death = on_death
        self._is_stopping = False
        self._lines: collections.deque[str] = collections.deque(maxlen=_QUOTED_LINES)
        program = [binary] if binary else [sys.executable, "-m", "bilayer"]
        program += ["serve", "--host", host, "--port", "0", "--metrics", "--no-ui"]
        program += ["--max-connections-per-ip", "1024", "--max-queue-per-key", "512"]
        program += ["--drain-timeout", str(max(1, round(drain_seconds))), *arguments]
        self._started = threading.Event()
        self._failure: BaseException | None = None
        # The thread that starts it also waits for it: the kernel ends the child with this very thread.
        threading.Thread(target=self._run, args=(program,), daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise Error(f"{program[0]} could not be started: {self._failure}", 1)
        self._await_readiness(time.monotonic() + patience)

    def _run(self, program: list[str]) -> None:
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *program]
        environment = dict(os.environ, LLAMA_API_KEY=self.key)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, text=True
            )
        except OSError as error:
            self._failure = error
            return
        finally:
            self._started.set()
        threading.Thread(target=self._read_errors, daemon=True).start()
        for line in self._process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[2]
        code = self._process.wait()
        if self._on_death and not self._is_stopping:
            self._on_death(f"bilayer serve ended with {code}: {self.last_lines()}")

    def _read_errors(self) -> None:
        for line in self._process.stderr:
            self._lines.append(line.rstrip())
            print(line, end="", file=sys.stderr)

    def last_lines(self) -> str:
        """Return the last lines of its stderr."""
        return "\n".join(self._lines) or "(no message)"

    def _await_readiness(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._is_stopping = True
                time.sleep(0.1)
                raise Error(f"bilayer serve ended with {self._process.returncode}: {self.last_lines()}", 1)
            if self.url and self.is_ready():
                return
            time.sleep(0.05)
        self.stop()
        raise Error(f"bilayer serve was not ready in time: {self.last_lines()}", 1)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def get(self, path: str, timeout: float = 5) -> str:
        """Return the body of an address of the server."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.key}"})
        with _OPENER.open(request, timeout=timeout) as answer:
            return answer.read().decode()

    def post(self, path: str, body: object, timeout: float = 3600) -> dict:
        """Return the answer to a request in JSON.

        Raises
        ------
        Error
            The server refused it.
        """
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with _OPENER.open(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Error(f"{path}: {error.code}: {error.read().decode(errors='replace')}", 1) from None

    def is_ready(self, timeout: float = 5) -> bool:
        """Whether it wants requests."""
        try:
            self.get("/readyz", timeout)
        except OSError:
            return False
        return True

    def gauges(self) -> dict[str, float]:
        """Return its metrics without labels by name."""
        lines = (line for line in self.get("/metrics").splitlines() if line and not line.startswith("#"))
        pairs = (line.rsplit(" ", 1) for line in lines)
        return {name: float(value) for name, value in pairs if "{" not in name}

    def stop(self) -> None:
        """Let answers finish, and end it."""
        self._is_stopping = True
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._drain_seconds + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


#: Asks the child itself, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
