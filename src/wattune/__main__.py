"""The ``wattune`` command."""

from __future__ import annotations

import sys

from wattune.cli import main

if __name__ == "__main__":
    sys.exit(main())
