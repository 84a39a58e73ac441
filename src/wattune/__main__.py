"""The ``wattune`` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code, 130 also if it is interrupted while it is loaded."""
    try:
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
