"""The ``wattune`` command."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command line and return its exit code, 130 also if it is interrupted while it is loaded."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as the command line itself does, once it is loaded
                signal.signal(number, signal.default_int_handler)
        from wattune.cli import main as run

        return run()
    except KeyboardInterrupt:  # later ones have their own words
        print("wattune: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    code = main()
    # `python -m` ends by SIGINT, whatever is returned, if Ctrl-C came while a source text ran (each definition of a
    # dataclass runs one), until another one has run.
    exec("")
    sys.exit(code)
