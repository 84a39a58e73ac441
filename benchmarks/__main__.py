"""`python -m benchmarks [NAME ...]`: what needs no extra data, or the named benchmarks; `readme` fills README and docs.

The benchmarks in `ALONE` take arguments of their own (see each module, and the README.md of `decisions`, `paper` and
`server`): one is run at a time, by its name.
"""

from __future__ import annotations

import importlib
import sys
import time

from wattune.errors import WattuneError

NAMES = (
    "startup",
    "planning",
    "boards",
    "session",
    "session_overhead",
    "example",
    "growth",
)

ALONE = {
    "accuracy": "benchmarks.asyncfgd.accuracy",
    "agx_orin": "benchmarks.agx_orin",
    "asyncfgd": "benchmarks.asyncfgd.feasibility",
    "carbon": "benchmarks.carbon",
    "decisions": "benchmarks.decisions.command",
    "engines": "benchmarks.asyncfgd.engines",
    "federated": "benchmarks.federated",
    "fleet": "benchmarks.server.fleet",
    "guard": "benchmarks.guard.command",
    "jetsons": "benchmarks.jetsons",
    "memory": "benchmarks.asyncfgd.memory",
    "loops": "benchmarks.loops",
    "moving_caps": "benchmarks.moving_caps",
    "paper": "benchmarks.paper.command",
    "program_flow": "benchmarks.program_flow",
    "program_metrics": "benchmarks.program_metrics",
    "ranks_division": "benchmarks.ranks_division",
    "ranks_killed": "benchmarks.ranks_killed",
    "schedule": "benchmarks.asyncfgd.schedule",
    "script": "benchmarks.script.command",
    "search_speed": "benchmarks.search_speed",
    "trainers": "benchmarks.trainers",
    "tx2_calibration": "benchmarks.tx2_calibration",
}

WITHOUT_DATA = ("asyncfgd", "decisions", "paper")
"""Benchmarks of ``ALONE`` that also run without arguments, and then need no data beside the repository's."""


def main(arguments: list[str]) -> int:
    """Run the benchmarks one after another, never in parallel: they are timed."""
    if arguments and arguments[0] in ALONE:
        try:
            importlib.import_module(ALONE[arguments[0]]).main(arguments[1:])
        except WattuneError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        return 0
    allowed = (*NAMES, "readme", *ALONE)
    if unknown := [name for name in arguments if name not in (*NAMES, "readme")]:
        print(f"unknown benchmark: {', '.join(unknown)}; allowed: {', '.join(allowed)}", file=sys.stderr)
        return 2
    for name in arguments or (*NAMES, *WITHOUT_DATA, "readme"):
        begun_s = time.perf_counter()
        module = importlib.import_module(ALONE.get(name, f"benchmarks.{name}"))
        module.main([]) if name in ALONE else module.main()
        print(f"{name} took {time.perf_counter() - begun_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
