"""`python -m benchmarks.stale`: results whose code has changed since they were measured, as warnings.

Without git, and in a shallow clone that lacks the commits, nothing can be said, and nothing is printed.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.timing import RESULTS, ROOT, git

MOST_LINES = 150
"""Lines, added and removed, that may have changed in what a result measures."""

SEARCH = ("src/wattune/search", "src/wattune/profiling")
SAMPLES = ("src/wattune/sample_efficiency", "src/wattune/planning")
SIMULATOR = ("src/wattune/devices/simulator",)
SESSION = ("src/wattune/loop", "src/wattune/power")

MEASURED = {
    "agx_orin": ("benchmarks/agx_orin.py", *SIMULATOR),
    "asyncfgd_accuracy": ("benchmarks/asyncfgd/accuracy.py", "src/wattune/algorithms/forward"),
    "asyncfgd_engines": ("benchmarks/asyncfgd/engines.py", "examples/engines", "src/wattune/algorithms/forward"),
    "asyncfgd_feasibility": ("benchmarks/asyncfgd", "src/wattune/algorithms", *SIMULATOR),
    "asyncfgd_memory": ("benchmarks/asyncfgd/memory_probe.py", "src/wattune/algorithms"),
    "asyncfgd_schedule": ("benchmarks/asyncfgd/schedule.py", "examples/engines", "src/wattune/algorithms/forward"),
    "boards": ("benchmarks/boards.py", "src/wattune_agent", "src/wattune/power"),
    "carbon": ("benchmarks/carbon.py", "src/wattune/planning/grains.py", "src/wattune/planning/over_time.py"),
    "decisions": ("benchmarks/decisions", *SEARCH, *SAMPLES),
    "example": ("benchmarks/example.py", *SEARCH, *SAMPLES, *SIMULATOR),
    "federated": ("benchmarks/federated.py", "src/wattune/integrations/flower.py", "src/wattune/planning/fleet.py"),
    "growth": ("benchmarks/growth.py", "src/wattune/training", "src/wattune/reporting", "src/wattune_agent/guarded.py"),
    "guard": ("benchmarks/guard", "src/wattune_agent/cap_level.py", "src/wattune_agent/power_log.py"),
    "jetsons": ("benchmarks/jetsons.py", *SEARCH),
    "loops": ("benchmarks/loops.py", "src/wattune/integrations", *SESSION),
    "moving_caps": ("benchmarks/moving_caps.py", "src/wattune/planning", "src/wattune/power"),
    "paper_calibration": ("benchmarks/paper", *SIMULATOR),
    "paper_measured": ("benchmarks/paper", *SAMPLES, *SIMULATOR),
    "paper_replay": ("benchmarks/paper", "src/wattune/planning", *SIMULATOR),
    "planning": ("benchmarks/planning.py", "src/wattune/planning"),
    "program_flow": ("benchmarks/program_flow.py", "src/wattune/profiling/program", "src/wattune/program"),
    "program_metrics": ("benchmarks/program_metrics.py", "src/wattune/program/learning.py", *SAMPLES),
    "pythons": (".ci", "Makefile", "pyproject.toml"),
    "ranks_division": ("benchmarks/ranks_division.py", "benchmarks/groups.py", *SESSION, "src/wattune/search"),
    "ranks_killed": ("benchmarks/ranks_killed.py", *SESSION, "src/wattune_agent"),
    "script": ("benchmarks/script", "src/wattune/script", "src/wattune/search", "src/wattune/power/limiter.py"),
    "search_speed": ("benchmarks/search_speed.py", "src/wattune/search"),
    "server_fleet": ("benchmarks/server", "src/wattune_server"),
    "session": ("benchmarks/session.py", "benchmarks/session_worlds.py", "src/wattune/search", *SIMULATOR),
    "session_overhead": ("benchmarks/session_overhead.py", *SESSION),
    "startup": ("benchmarks/startup.py", "src/wattune/cli"),
    "trainers": ("benchmarks/trainers.py", "examples/trainers", "src/wattune/integrations", *SESSION),
    "tx2_calibration": ("benchmarks/tx2_calibration.py", "benchmarks/tx2_recordings.py", *SIMULATOR),
}
"""Results -> the code that they measure, the benchmark's own included."""


def commits_of(name: str) -> list[str]:
    """Commits at which a result was measured: one, or one for each of its parts."""
    where = json.loads((RESULTS / f"{name}.json").read_text())["measured_at"]
    return [one["commit"] for one in ([where] if "commit" in where else where.values()) if one["commit"]]


def changed_lines(commit: str, paths: tuple[str, ...], root: Path = ROOT) -> int:
    """Lines that were added and removed in ``paths`` since a commit; 0 if git cannot tell."""
    found = git("diff", "--numstat", commit, "--", *paths, root=root) or ""
    counts = [line.split("\t")[:2] for line in found.splitlines()]
    return sum(int(count) for pair in counts for count in pair if count != "-")  # "-": a binary file


def main() -> None:
    """Print a line for each result of which more than ``MOST_LINES`` lines have changed."""
    for name, paths in MEASURED.items():
        for commit in dict.fromkeys(commits_of(name)):
            if (lines := changed_lines(commit, paths)) > MOST_LINES:
                print(f"warning: results/{name}.json was measured at {commit[:7]}, {lines:,} changed lines ago")


if __name__ == "__main__":
    main()
