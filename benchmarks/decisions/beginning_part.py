"""The first tenth of a training on the target: whether it lies in the band of the proxy, and what it is good for.

Of each pair of a proxy and a target on random devices: the batch size is chosen as in the efficiency part. Then comes
a training on the target, whose progress after a tenth and whose early noise scale are known. Compared are the samples
that it needs with the prediction, stated anew or not, and choices made anew from its noise scale; the latter are judged
as if they held from the first sample. A choice from the noise scale of a workload of another family says what such a
choice gains without knowing anything of this training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.decisions import estimators
from benchmarks.decisions.efficiency_part import DEVICES, device
from benchmarks.decisions.estimators import SEEDS, TIME_SD, Bank, Decision
from benchmarks.decisions.scoring import paired, regrets, rounded, spread_of_mean
from benchmarks.decisions.sweeps import Key, Run, Sweep, pairs, truth
from wattune.decisions.choice import choose
from wattune.decisions.curve import CurvePosterior, Observation, fit
from wattune.decisions.noise import EARLY_OFFSET, early_noise_scale
from wattune.decisions.prior import NOISE_OFFSET
from wattune.efficiency.beginning import progress_band
from wattune.records.efficiency import BAND_SD
from wattune.training.tenth import SLOPE

KEPT = "kept as it was"
FAR = math.log(3)
"""The noise scales of proxy and target are called different above this quotient, in the way that needs it."""


def cases(sweeps: Sequence[Sweep], scales: Mapping[Key, list[float]]) -> list[dict[str, Any]]:
    """A row for each pair and device."""
    rows = []
    for proxy, target in pairs(sweeps):
        if proxy.key not in scales or target.key not in scales:
            continue
        true = truth(target.runs)
        others = [one for key, some in scales.items() if key.family != proxy.key.family for one in some]
        for number in range(DEVICES):
            draw = random.Random(f"{proxy.key} {target.key.workload} {number}")
            _, times = device(number, draw)
            places = draw.sample(range(len(next(iter(proxy.runs.values())))), SEEDS * 2)
            bank = Bank(proxy.some(places[:SEEDS]))
            decision = estimators.ours(bank, times)
            if decision.curve is None or decision.batch_size is None or not bank.made:
                continue
            own, other = draw.choice(scales[target.key]), draw.choice(others)
            middle = math.exp(float(np.mean(np.log(scales[proxy.key]))))
            row = {
                "group": f"{target.key.family} {target.key.workload} {target.key.rate:g}",
                "family": target.key.family,
                "noise_inside": _noise_inside(decision.curve, own),
            }
            run = draw.choice(target.runs[decision.batch_size])
            row |= _progress(bank, decision, run)
            ways = _ways(decision.curve, bank, times, own=own, other=other, proxy=middle)
            row["regrets"] = {
                name: _regret(chosen, times, true) for name, chosen in {KEPT: decision.batch_size, **ways}.items()
            }
            rows.append(row)
    return rows


def _noise_inside(curve: CurvePosterior, scale: float) -> bool:
    expected = early_noise_scale(curve.critical_batch_size[0], curve.critical_sd)
    return abs(math.log(scale / expected.samples)) <= BAND_SD * expected.sd


def _progress(bank: Bank, decision: Decision, run: Run) -> dict[str, Any]:
    """Where the training's progress lies, and how far off its samples are in logarithms; ``anew``: as restated."""
    shares = [made.progress for _, made in bank.made if made.progress is not None]
    assert decision.curve is not None  # cases without were left out
    assert decision.batch_size is not None
    if len(shares) < 2 or run.progress is None:
        return {}
    low, high = progress_band(shares)
    place = decision.curve.batch_sizes.index(decision.batch_size)
    off = math.log(run.samples) - float(decision.curve.log_samples[place])
    apart = run.progress - float(np.mean(shares))
    return {"inside": low <= run.progress <= high, "apart": apart, "off": off, "anew": off - SLOPE * apart}


def _ways(
    curve: CurvePosterior, bank: Bank, times: Mapping[int, float], *, own: float, other: float, proxy: float
) -> dict[str, int | None]:
    """The batch size by each way to use the noise scale; ``proxy`` is that of the proxy's runs."""
    logs = {size: (math.log(one), TIME_SD) for size, one in times.items()}
    seen = [Observation(size, run.samples, run.reached, run.seed) for size, run in bank.made]

    def combined(scale: float) -> int | None:
        # The prior knows the noise scale of whole trainings: an early one is smaller by this much.
        whole = scale * math.exp(EARLY_OFFSET - NOISE_OFFSET)
        return choose(fit(seen, curve.batch_sizes, noise_scale=whole), logs).best

    def shifted(share: float, least: float = 0.0) -> int | None:
        far = math.log(own / proxy)
        before = curve.critical_batch_size[0]
        after = before * math.exp(share * far * (abs(far) > least))
        left = [place for place, size in enumerate(curve.batch_sizes) if size not in curve.lost]
        sizes = {curve.batch_sizes[place]: math.exp(float(curve.mean[place])) for place in left}
        return estimators.cheapest(times, {b: r * (1 + b / after) / (1 + b / before) for b, r in sizes.items()})

    return {
        "combined with its noise scale": combined(own),
        "combined with another workload's": combined(other),
        "shifted by half the difference": shifted(0.5),
        "shifted by all of it": shifted(1.0),
        "shifted by half, where above 3 times": shifted(0.5, FAR),
    }


def _regret(chosen: int | None, times: Mapping[int, float], true: Mapping[int, float]) -> float:
    best = estimators.cheapest(times, true)
    if best is None:
        return 0.0
    if chosen is None or not math.isfinite(true[chosen]):
        return 1.0
    return times[chosen] * true[chosen] / (times[best] * true[best]) - 1


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares inside the bands, how well the samples are known, and the regret of every way to choose."""
    known = [row for row in rows if "inside" in row]
    outside = [row for row in known if not row["inside"]]
    slow = [row for row in outside if row["apart"] < 0]
    groups = [row["group"] for row in rows]
    kept = [row["regrets"][KEPT] for row in rows]
    return {
        "progress": {
            "cases": len(known),
            "inside": rounded(float(np.mean([row["inside"] for row in known])), 4),
            "inside_se": rounded(spread_of_mean([row["inside"] for row in known], [row["group"] for row in known])),
            "inside_by_family": {
                family: rounded(float(np.mean([row["inside"] for row in known if row["family"] == family])), 4)
                for family in sorted({row["family"] for row in known})
            },
        },
        "samples": {
            name: {"cases": len(some), "off": _size(some, "off"), "anew": _size(some, "anew")}
            for name, some in (("all", known), ("outside the band", outside), ("slower than the band", slow))
        },
        "noise": {"cases": len(rows), "inside": rounded(float(np.mean([row["noise_inside"] for row in rows])), 4)},
        "regret": {
            name: regrets(some := [row["regrets"][name] for row in rows], groups)
            | {
                "against kept": paired(some, kept, groups),
                "changed": rounded(float(np.mean(np.array(some) != np.array(kept))), 4),
            }
            for name in rows[0]["regrets"]
        },
    }


def _size(rows: Sequence[dict[str, Any]], what: str) -> float | None:
    """Root mean square."""
    return rounded(float(np.sqrt(np.mean([row[what] ** 2 for row in rows]))), 4) if rows else None
