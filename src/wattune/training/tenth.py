"""The first tenth of a training beside what the proxy runs say of it: how far it has come, and with which noise.

What is found is said and recorded, and the expected end is stated anew; batch size and setting stay as they are. A
choice made anew from the training's own noise scale was no better than one from another workload's, on recorded
trainings (benchmarks/decisions), so it would be one by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from wattune.decisions.noise import NoiseScale
from wattune.decisions.progress import TENTH, share_made
from wattune.records import Evaluation, FirstTenth, FirstTenthSeen, Plan
from wattune.records.efficiency import BAND_SD
from wattune.training.drift import expected_samples

SLOPE: Final = -0.7
"""ln(samples needed / predicted) for a whole way of progress more than expected."""

NOW_SD: Final = 0.3
"""Standard deviation of the logarithm of the samples needed around that.

Both by trainings on four targets at two learning rates (benchmarks/decisions). The progress tells little: without it
the standard deviation is 0.31, and where the progress is outside its band 0.43 instead of 0.37.
"""


class TenthWatch:
    """Compares once: at the first evaluation after a tenth of the predicted samples or more."""

    def __init__(self, plan: Plan, target: float | None):
        self._plan, self._target = plan, target
        self._needed = expected_samples(plan)
        self.seen: FirstTenthSeen | None = None

    @property
    def samples(self) -> float | None:
        """Of a tenth; None where nothing is to be compared."""
        return None if self._needed is None or self._plan.first_tenth is None else TENTH * self._needed

    def look(self, evaluations: Sequence[Evaluation], noise: NoiseScale | None, why_not: str = "") -> None:
        """Compare, where it is time; ``why_not``: why the noise scale is not known."""
        expected, tenth = self._plan.first_tenth, self.samples
        if self.seen is not None or expected is None or tenth is None or evaluations[-1].samples < tenth:
            return
        progress = self._progress(expected, tenth, evaluations)
        near = _inside(progress, expected.progress_low, expected.progress_high)
        alike = _inside(noise and noise.samples, expected.noise_scale_low, expected.noise_scale_high)
        known = [one for one in (near, alike) if one is not None]
        now = self._now(progress, expected, evaluations[-1]) if near is False else {}
        self.seen = FirstTenthSeen(
            samples=evaluations[-1].samples,
            progress=progress,
            noise_scale=noise and noise.samples,
            noise_scale_log_sd=noise and noise.sd,
            expected=expected,
            fits=all(known) if known else None,
            said=_said(progress, noise, expected, near=near, alike=alike, now=now, why_not=why_not),
            **now,
        )

    def state_dict(self) -> dict[str, Any] | None:
        """What a later watch needs to go on from here, as JSON values."""
        return None if self.seen is None else self.seen.model_dump()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from ``state_dict``."""
        self.seen = None if state is None else FirstTenthSeen(**state)

    def _progress(self, expected: FirstTenth, tenth: float, evaluations: Sequence[Evaluation]) -> float | None:
        if self._target is None or expected.from_samples is None:
            return None
        # Between the same samples as the proxy's.
        return share_made(evaluations, self._target, begin=expected.from_samples, end=tenth)

    def _now(self, progress: float | None, expected: FirstTenth, at: Evaluation) -> dict[str, float]:
        """Samples and seconds that the whole training is expected to need now."""
        assert progress is not None  # it was compared
        assert expected.progress is not None
        assert self._needed is not None
        samples = self._needed * math.exp(SLOPE * (progress - expected.progress))
        reach = math.exp(BAND_SD * NOW_SD)
        now = {"samples_now": samples, "samples_now_low": samples / reach, "samples_now_high": samples * reach}
        if at.time_s:
            now["time_now_s"] = at.time_s * samples / at.samples
        return now


def _inside(value: float | None, low: float | None, high: float | None) -> bool | None:
    """Whether a value lies in its band; None where one of them is not known."""
    return None if value is None or low is None or high is None else low <= value <= high


def _said(
    progress: float | None,
    noise: NoiseScale | None,
    expected: FirstTenth,
    *,
    near: bool | None,
    alike: bool | None,
    now: dict[str, float],
    why_not: str,
) -> str:
    """What was found, in a sentence."""
    parts = []
    if near is None:
        parts.append("how far it should have come is not known")
    else:
        assert progress is not None  # otherwise it is not near or far
        band = f"{_share(expected.progress_low)} to {_share(expected.progress_high)}"
        parts.append(f"{_share(progress)} of the way to the target was made, where {band} was expected")
    if now:
        band = f"{now['samples_now_low']:,.0f} to {now['samples_now_high']:,.0f}"
        parts.append(f"expected now: {now['samples_now']:,.0f} samples in all ({band})")
    if alike is None:
        parts.append(f"the noise scale is not known{why_not and f', {why_not}'}")
    else:
        assert noise is not None
        band = f"{expected.noise_scale_low:.2g} to {expected.noise_scale_high:.2g}"
        text = f"the noise scale is {noise.samples:.2g} samples, {band} was expected"
        parts.append(text if alike else f"{text}; the batch size stays, since that says too little of which is best")
    return f"After the first tenth: {'; '.join(parts)}."


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
