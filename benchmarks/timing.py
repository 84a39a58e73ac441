"""Timing on a noisy machine: medians with their spread, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattune.files import write_json

RESULTS = Path(__file__).parent / "results"


def median_s(call: Callable[[], object], *, repeats: int, warm_up: int = 1) -> dict[str, float]:
    """Median, fastest and slowest of ``repeats`` calls, in seconds."""
    for _ in range(warm_up):
        call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
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


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write ``figures`` to results/NAME.json, with a description of the machine."""
    write_json(RESULTS / f"{name}.json", {"benchmark": name, "machine": machine(), **figures})
    text = str(figures)
    print(f"{name}: {text if len(text) < 4000 else f'see {RESULTS.name}/{name}.json'}")
