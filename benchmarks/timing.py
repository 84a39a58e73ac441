"""Sensing on a noisy machine: medians with their spread, and where and when a figure was measured."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from wattune.errors import InputError
from wattune.files import write_json

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def median_s(
    call: Callable[[], object], *, repeats: int, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median, fastest and slowest of ``repeats`` calls, in seconds of this clock."""
    for _ in range(warm_up):
        call()
    times = []
    for _ in range(repeats):
        begin = clock()
        call()
        times.append(clock() - begin)
    return {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times), "repeats": repeats}


def machine() -> dict[str, Any]:
    """Description of the machine that the figures were measured on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """Output of a git command; None if it fails, as without git or outside a repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def measured_at(root: Path = ROOT) -> dict[str, Any]:
    """Commit and date of a measurement that is made now.

    ``commit`` is None outside a repository. ``dirty`` is True if the code has changes that no commit has.
    """
    commit = git("rev-parse", "HEAD", root=root)
    changed = git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results", root=root)
    where = {"commit": commit and commit.strip(), "date": date.today().isoformat()}
    return {**where, "dirty": True} if changed else where


def folder_of(name: str, arguments: Sequence[str], what: str) -> Path:
    """The folder that is the benchmark's one argument; ``what``: which it is. Raises: InputError."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        raise InputError(f"arguments of {name}", value=" ".join(arguments) or None, allowed=what)
    return Path(arguments[0])


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write ``figures`` to results/NAME.json, with the machine, and the commit and date unless ``figures`` has them."""
    write_json(
        RESULTS / f"{name}.json",
        {"benchmark": name, "machine": machine(), "measured_at": measured_at(), **figures},
    )
    text = str(figures)
    print(f"{name}: {text if len(text) < 4000 else f'see {RESULTS.name}/{name}.json'}")
