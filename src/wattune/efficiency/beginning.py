"""What proxy runs say of the beginning of a training: how far it has come after a tenth, and with which noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

from wattune.decisions.curve import Observation, fit
from wattune.decisions.noise import early_noise_scale
from wattune.decisions.progress import TENTH, share_made
from wattune.efficiency.relation import interval, t95
from wattune.records import EfficiencyCurve, FirstTenth, LearningCurve
from wattune.records.efficiency import BAND_SD

TRANSFER_SD: Final = 0.06
"""Standard deviation of the target's progress after a tenth around that of the proxy, as a share of the way.

With it 92 % of the trainings on four targets at two learning rates are inside the band of the few proxy runs that a
choice takes (benchmarks/decisions).
"""


def observed(run: LearningCurve) -> Observation:
    """What a learning curve says of the samples to the target; one that ended before counts with its budget."""
    return Observation(
        run.batch_size,
        run.samples if run.reached else max(run.samples, run.budget_samples),
        run.reached,
        run.seed,
        # A uniform distribution over the interval in which the target was crossed.
        interval(run) / run.samples / math.sqrt(12) if run.reached else 0.0,
    )


def with_critical(curve: EfficiencyCurve, runs: Sequence[Observation]) -> EfficiencyCurve:
    """The curve with the critical batch size that its runs imply, where they have two batch sizes or more."""
    if len({run.batch_size for run in runs}) < 2:
        return curve
    posterior = fit(runs, [point.batch_size for point in curve.points])
    critical = {"critical_batch_size": posterior.critical_batch_size[0], "critical_log_sd": posterior.critical_sd}
    return curve.model_copy(update=critical)


def with_first_tenth(curve: EfficiencyCurve, runs: Sequence[LearningCurve] = ()) -> EfficiencyCurve:
    """The curve with what its runs, and its critical batch size, say of the first tenth of a training."""
    fields = _progress(curve, runs)
    if curve.critical_batch_size is not None:
        scale = early_noise_scale(curve.critical_batch_size, curve.critical_log_sd or 0.0)
        reach = math.exp(BAND_SD * scale.sd)
        fields |= {
            "noise_scale": scale.samples,
            "noise_scale_low": scale.samples / reach,
            "noise_scale_high": scale.samples * reach,
        }
    return curve.model_copy(update={"first_tenth": FirstTenth(**fields)}) if fields else curve


def _progress(curve: EfficiencyCurve, runs: Sequence[LearningCurve]) -> dict[str, float]:
    """The way that the runs had made after a tenth of what the curve says of their batch size.

    It begins at the first evaluation of all. A run counts whether or not it reached the target later on: leaving out
    those that did not would make the rest look fast.
    """
    begun = [run for run in runs if run.evaluations and run.target is not None]
    if not begun:
        return {}
    begin = max(run.evaluations[0].samples for run in begun)
    found = []
    for run in begun:
        needed = curve.at(run.batch_size).samples
        assert run.target is not None  # left out above
        made = None if needed is None else share_made(run.evaluations, run.target, begin=begin, end=TENTH * needed)
        found += [] if made is None else [made]
    if not found:
        return {}
    fields = {"from_samples": begin, "progress": fmean(found), "runs": len(found)}
    if len(found) > 1:
        low, high = progress_band(found)
        fields |= {"progress_low": low, "progress_high": high}
    return fields


def progress_band(shares: Sequence[float]) -> tuple[float, float]:
    """Ends of the 90 % band of the progress of a training on the target, from that of two proxy runs or more."""
    # Where another run of the same kind is expected (Student's t), and how far the target may be from the proxy.
    own = t95(len(shares) - 1) * stdev(shares) * math.sqrt(1 + 1 / len(shares))
    reach = math.hypot(own, BAND_SD * TRANSFER_SD)
    return fmean(shares) - reach, fmean(shares) + reach
