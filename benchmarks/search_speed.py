"""CPU time of a decision of the search, against that of an earlier commit.

`python -m benchmarks search_speed FOLDER`: FOLDER is a checkout of that commit (`git worktree add FOLDER COMMIT`). Both
search the same made-up board, by turns, each time in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median

GRIDS = {36: (6, 3, 2), 500: (10, 10, 5), 2028: (13, 13, 12)}
"""Number of settings -> values of each of three clocks."""

PROBES, PAIRS = 10, 5
CAP_W = 8.0


def decision_s(counts: tuple[int, ...]) -> float:
    """Median CPU seconds that a guided profile's search takes for its next point, over its first probes."""
    # In this process: the other commit's wattune is on its path, and its benchmarks may lack what this one imports.
    from wattune.point import BatchShape, Knobs, OperatingPoint
    from wattune.profiling.guided import FREE
    from wattune.search.observation import Stretch
    from wattune.search.search import Search

    clocks = [[100 + 1200 * i / max(1, count - 1) for i in range(count)] for count in counts]
    names = ("clock_mhz", "memory_clock_mhz", "cpu_clock_mhz")
    settings = [Knobs(dict(zip(names, values, strict=True))) for values in product(*clocks)]
    row = BatchShape(32, 32)
    search = Search([row], settings, cap_w=CAP_W, start=row, noise_w=0.05, cap_window_s=1.0, manner=FREE)
    taken_s = []
    for _ in range(PROBES):
        begun_s = time.process_time()
        point = search.next()
        taken_s.append(time.process_time() - begun_s)
        if point is None:
            break
        first, second, third = (value / 1300 for value in point.knobs.values())
        step_s = ((0.5 / first) ** 2 + (0.3 / second) ** 2) ** 0.5 + 0.05 / third
        power_w = 2.0 + 6.0 * first**2 + 2.0 * second + third
        if power_w > 1.02 * CAP_W:
            search.above(OperatingPoint(row, point.knobs), power_w)
        else:
            search.tell(OperatingPoint(row, point.knobs), Stretch(step_s, power_w, power_w, 8.0))
    return median(taken_s[1:])


def measured(folder: Path) -> dict[str, float]:
    """Seconds of a decision among each number of settings, by the wattune in this folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        [sys.executable, __file__], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main(arguments: list[str]) -> None:
    """Measure by turns, and store the medians. Raises: InputError without a folder."""
    from benchmarks.timing import ROOT, git, keep
    from wattune.errors import InputError

    if len(arguments) != 1 or not (Path(arguments[0]) / "src").is_dir():
        allowed = "a checkout of the commit to compare with"
        raise InputError("search_speed", value=" ".join(arguments) or "no folder", allowed=allowed)
    before = Path(arguments[0])
    pairs = [(measured(ROOT), measured(before)) for _ in range(PAIRS)]
    figures = {
        str(count): {
            "now_s": median(now[str(count)] for now, _ in pairs),
            "over_before": [now[str(count)] / then[str(count)] for now, then in pairs],
        }
        for count in GRIDS
    }
    keep("search_speed", {"before": (git("rev-parse", "HEAD", root=before) or "").strip(), "settings": figures})


if __name__ == "__main__":
    print(json.dumps({count: decision_s(counts) for count, counts in GRIDS.items()}))
