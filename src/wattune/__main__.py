"""The ``wattune`` command."""

from __future__ import annotations

import sys

from wattune.cli import main

if __name__ == "__main__":
    code = main()
    # `python -m` ends by SIGINT, whatever is returned, if Ctrl-C came while a source text ran (each definition of a
    # dataclass runs one), until another one has run.
    exec("")
    sys.exit(code)
