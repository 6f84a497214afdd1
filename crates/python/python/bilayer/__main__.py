"""The command line `bilayer`."""

import os
import signal
import sys
import tempfile


def main() -> int:
    """Run the command line of this process and return its exit code."""
    # Mesa's Wayland client reports a missing folder at each start; nothing is written there.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    from bilayer import _native

    sys.stdout.flush()
    # Ctrl-C is the command's: it ends an answer, or the process with its exit code, and Python has nothing to add.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.command(["bilayer", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
