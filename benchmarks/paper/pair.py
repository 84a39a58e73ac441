"""One small pair that is trained here: the built-in example, with handwritten digits as proxy and target.

Samples come from real training runs, time and power from the simulated Nano. Finished runs are stored and reused.
"""

from __future__ import annotations

from pathlib import Path

import wattune
from benchmarks.paper.published import NANO
from benchmarks.timing import keep
from wattune.cap import PEAK, PowerCap
from wattune.records import Comparison

FOLDER = Path("build") / "paper" / "pair"
CAP = PowerCap(4.5, window=PEAK)
"""As in the paper, on the highest reading."""


def main(_: list[str]) -> None:
    """Profile, estimate, plan, train, compare, and store the comparison."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    profile = FOLDER / "profile.json"
    device = f"sim:{NANO}"
    if not profile.exists():
        wattune.profile(device).save(profile)
    run = FOLDER / "run"
    if not (run / "comparison.json").exists():
        wattune.run(device, cap_w=CAP, profile=profile, compare=True, output=run, resume=run.exists())
    comparison = Comparison.load(run / "comparison.json")
    keep(
        "paper_pair",
        {
            "board": NANO,
            "cap_w": CAP.limit_w,
            "workload": comparison.workload,
            "seeds": list(comparison.seeds),
            "rows": [row.model_dump(mode="json") for row in comparison.rows],
        },
    )
