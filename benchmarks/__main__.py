"""`python -m benchmarks [NAME ...]`: all benchmarks, or those that are named; `readme` fills the README's figures."""

from __future__ import annotations

import importlib
import sys

NAMES = ("startup", "planning", "profiling", "metering", "example", "readme")


def main(names: list[str]) -> int:
    """Run them one after another, never side by side: they are timed."""
    unknown = [name for name in names if name not in (*NAMES, "real_images", "report_picture")]
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}; allowed: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
