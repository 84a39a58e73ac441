"""`python -m benchmarks [NAME ...]`: what needs no extra data, or the named benchmarks; `readme` fills README and docs.

The benchmarks in `ALONE` take arguments of their own (see each module, and the README.md of `decisions`, `paper` and
`server`): one is run at a time, by its name.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from wattune.errors import WattuneError

MODULES = {
    "accuracy": "asyncfgd.accuracy",
    "asyncfgd": "asyncfgd.feasibility",
    "decisions": "decisions.command",
    "engines": "asyncfgd.engines",
    "fleet": "server.fleet",
    "guard": "guard.command",
    "memory": "asyncfgd.memory_probe",
    "paper": "paper.command",
    "schedule": "asyncfgd.schedule",
    "script": "script.command",
}
"""Name -> module, where they differ."""

BY_DEFAULT = ("startup", "planning", "boards", "session", "session_overhead", "example", "growth", "asyncfgd")
NAMES = (*BY_DEFAULT, "accuracy", "fleet", "memory", "program_metrics", "ranks_division", "ranks_killed", "readme")

WITHOUT_DATA = ("decisions", "paper")
"""Benchmarks of ``ALONE`` that also run without arguments, and then need no data beside the repository's."""

ALONE = (*WITHOUT_DATA, "agx_orin", "carbon", "engines", "federated", "guard", "jetsons", "loops", "moving_caps")
ALONE += ("program_flow", "schedule", "script", "search_speed", "trainers", "tx2_calibration")


def module_of(name: str) -> Any:
    """The module of a benchmark."""
    return importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")


def main(arguments: list[str]) -> int:
    """Run the benchmarks one after another, never in parallel: they are timed."""
    if arguments and arguments[0] in ALONE:
        try:
            module_of(arguments[0]).main(arguments[1:])
        except WattuneError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        return 0
    if unknown := [name for name in arguments if name not in NAMES]:
        print(f"unknown benchmark: {', '.join(unknown)}; allowed: {', '.join(NAMES + ALONE)}", file=sys.stderr)
        return 2
    for name in arguments or (*BY_DEFAULT, *WITHOUT_DATA, "readme"):
        begun_s = time.perf_counter()
        module_of(name).main(*([[]] if name in ALONE else []))
        print(f"{name} took {time.perf_counter() - begun_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
