"""The command line `bilayer`."""

import os
import sys
import tempfile


def main() -> int:
    """Run the command line of this process and return its exit code."""
    # Mesa's Wayland client reports a missing folder at each start; nothing is written there.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    from bilayer import _native

    sys.stdout.flush()
    return _native.command(["bilayer", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
