"""Records as another program might write them, and the command line in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = Path(__file__).parents[1] / "cli" / "small.toml"
"""A workload that trains in a second."""

PROFILE: dict[str, Any] = {
    "record": "profile",
    "version": 1,
    "device": "a board",
    "workload": "target",
    "algorithm": "backprop",
    "cells": [
        {
            "batch_size": b,
            "clock_mhz": f,
            "step_s": b * (0.01 + 1.5 / f),
            "power_mean_w": 1.9 + b / 100 + f / 400,
            "power_peak_w": 2 + b / 100 + f / 400,
            "steps": 5,
        }
        for b in (8, 32, 128)
        for f in (200, 400, 800)
    ],
    "provenance": {"kind": "measured"},
}
EFFICIENCY: dict[str, Any] = {
    "record": "efficiency",
    "version": 1,
    "workload": "target",
    "algorithm": "backprop",
    "target": 0.9,
    "reference_batch_size": 128,
    "points": [
        {
            "batch_size": b,
            "relative_samples": r,
            "low": None,
            "high": None,
            "samples": 1000 * r,
            "runs": 3,
            "censored": 0,
        }
        for b, r in ((8, 0.5), (32, 0.6), (128, 1.0))
    ],
    "provenance": {"kind": "measured"},
}


def written(folder: Path, name: str, data: object) -> str:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)
