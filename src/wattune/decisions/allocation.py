"""Which batch size to train next on the proxy, and when enough is known.

First one run each of three batch sizes that are far apart, the largest among them: a curve through fewer says nothing
of its own fit, and beyond the largest nothing holds. Then whichever run promises most for its time. What it promises is
by how much the expected time to the target of the then chosen batch size falls (the knowledge gradient; Frazier,
Powell, Dayanik 2008), and its time enters by the square root, as a run that takes four times as long also tells of its
neighbours. Batch sizes that the device's step times leave no chance are not trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from wattune.decisions.choice import LogTimes, choose, contenders
from wattune.decisions.curve import Array, CurvePosterior, Observation, fit

MOST = 12
"""Runs, at most."""

SEEDS = 3
"""Runs of each batch size where all are trained, unless it is said."""

FEWEST = 3
"""Batch sizes, at least, unless fewer have a chance from the beginning."""

ENOUGH = 0.01
"""Expected regret on the proxy that is small enough."""

LEAST_GAIN = 0.001
"""Gain of a run that is not worth it any more."""

PLATEAU = 2.5
"""A run that takes so many times the samples that were expected is not going to reach the target."""

GIVEN_UP = 3
"""Runs that missed the target, and none that reached it, after which a batch size is not tried again."""

DOMINATED = 0.1
"""ln of what a run may take longer than the best one would, before seeds and doubts are added."""

HALF_BUSY = (4.0, 16.0, 64.0, 256.0)
"""Batch sizes at which a device that nobody has measured may be half as fast as it gets."""

_NODES = np.linspace(-4.0, 4.0, 81)
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


def server_seconds(batch_size: int) -> float:
    """Time of a sample where the proxy is trained, up to a factor: so much per step, so much per sample."""
    return 1 / batch_size + 1 / 64


class Allocation:
    """The sequential design over ``batch_sizes``; all it knows of the runs is what it is given at each call.

    ``log_step_times``: batch size -> mean and standard deviation of ln(seconds per sample) on the device, at the
    fastest setting that the cap allows; a batch size that is not there cannot run. None: the device is not known, and
    the runs are to serve several kinds of them. ``server_seconds_per_sample``: where the proxy is trained, in any unit.

    ``reason`` says why the last call of ``next`` gave no batch size, or gave this one; ``posterior`` is what it was
    decided from.
    """

    def __init__(
        self,
        batch_sizes: Sequence[int],
        *,
        log_step_times: LogTimes | None = None,
        server_seconds_per_sample: Callable[[int], float] = server_seconds,
        noise_scale: float | None = None,
        noise_sd: float = 0.0,
        most: int = MOST,
    ):
        self.batch_sizes = tuple(sorted(set(batch_sizes)))
        self._seconds = np.array([server_seconds_per_sample(size) for size in self.batch_sizes])
        self._noise = (noise_scale, noise_sd)
        self._most = most
        self.reason = "nothing was asked yet"
        if log_step_times is None:
            self._devices: list[LogTimes] = [
                {size: (math.log1p(half / size), 0.0) for size in self.batch_sizes} for half in HALF_BUSY
            ]
        else:
            self._devices = [{size: log_step_times[size] for size in self.batch_sizes if size in log_step_times}]
        self.posterior = self._fit(())
        self._before = self._open = self._contenders()

    @property
    def contenders(self) -> tuple[int, ...]:
        """The batch sizes that may be the best one; no other is trained."""
        return self._open

    def next(
        self, observations: Sequence[Observation], *, pending: Sequence[int] = (), without: Collection[int] = ()
    ) -> int | None:
        """The batch size to train next; None where that is enough, or nothing more can be learned.

        ``pending``: batch sizes of runs that are under way, which are taken to end as is expected of them; ``without``:
        batch sizes that cannot be trained again.
        """
        self.posterior = self._fit(observations)
        if any(run.reached for run in observations):
            self._open = self._contenders()
        if pending:
            expected = dict(zip(self.batch_sizes, np.exp(self.posterior.log_samples).tolist(), strict=True))
            observations = [*observations, *(Observation(size, expected[size]) for size in pending)]
            self.posterior = self._fit(observations)
        counts = self.posterior.runs
        seen = [size for size in self.batch_sizes if counts[size]]
        if len(observations) >= self._most:
            return self._stop(f"{self._most} runs")
        if not self._open:
            return self._stop("no batch size can be run")
        left = [size for size in self._open if size not in without]
        first = self._first(seen, without)
        is_decided = len(self._open) == 1 and self._open[0] not in self.posterior.lost
        if is_decided and (first is None or not observations):
            return self._stop("only one batch size can be the best one")
        if observations and not any(run.reached for run in observations):
            # What misses the target so far may be too large for it: halfway down, and up again where nothing is left.
            new = [size for size in left if not counts[size]]
            below = [size for size in new if size < seen[0]]
            if not new:
                return self._stop("no run reached the target")
            return self._go((below or new)[len(below or new) // 2], "none has reached the target")
        if first is not None:
            return self._go(first, "to see the whole range")
        if self._regret() < ENOUGH:
            return self._stop(f"the expected regret on the proxy is under {ENOUGH:.0%}")
        if self._is_known():
            return self._stop("the runs tell the proxy better than the proxy tells the target")
        new = [size for size in left if not counts[size]]
        if len(set(seen) & set(self._open)) < 4 and new:
            left = new  # spread beats repetition
        if not left:
            return self._stop("no run is left that could be made")
        gains = dict(zip(self.batch_sizes, self._gains(), strict=True))
        if max(gains[size] for size in left) < LEAST_GAIN:
            return self._stop(f"a further run would gain less than {LEAST_GAIN:.1%}")
        needed = self._seconds * np.exp(self.posterior.log_samples - self.posterior.log_samples.max())
        cost = dict(zip(self.batch_sizes, np.sqrt(needed), strict=True))
        return self._go(max(left, key=lambda size: gains[size] / cost[size]), "it promises most for its time")

    def budget(self, batch_size: int) -> float | None:
        """Samples after which a run of this batch size is of no use any more: it is far behind the best one, or will
        not reach the target. By what the last call of ``next`` was given; None where that says nothing of samples.
        """
        curve = self.posterior
        if not any(curve.runs[size] > curve.censored[size] for size in self.batch_sizes):
            return None
        at = curve.batch_sizes.index(batch_size)
        doubt = math.sqrt(curve.noise_sd**2 + curve.log_samples_covariance[at, at])
        most = curve.log_samples[at] + max(math.log(PLATEAU), 2 * doubt)
        if len(self._devices) == 1:
            [times] = self._devices
            leader = min(times[size][0] + curve.log_samples[curve.batch_sizes.index(size)] for size in times)
            dominated = leader - times[batch_size][0] + DOMINATED + 1.5 * doubt
            # Never before what is expected of it: the run would be for nothing.
            most = min(most, max(dominated, curve.log_samples[at] + 1.5 * doubt))
        return math.exp(most)

    def _fit(self, observations: Sequence[Observation]) -> CurvePosterior:
        scale, sd = self._noise
        reached = any(run.reached for run in observations)
        # Runs that all were censored say nothing of the shape, but count.
        found = fit(observations if reached else (), self.batch_sizes, noise_scale=scale, noise_sd=sd)
        for run in () if reached else observations:
            found.runs[run.batch_size] += 1
            found.censored[run.batch_size] += 1
        return found

    def _contenders(self) -> tuple[int, ...]:
        runs, lost = self.posterior.runs, self.posterior.lost
        # A batch size that missed the target again and again is not going to reach it.
        left = [size for size in self.batch_sizes if size not in lost or runs[size] < GIVEN_UP]
        known = [{size: times[size] for size in left if size in times} for times in self._devices]
        return tuple(sorted({size for times in known for size in contenders(self.posterior, times)}))

    def _first(self, seen: Sequence[int], without: Collection[int]) -> int | None:
        """What the first three batch sizes are still to be: the largest, and those near an eighth and a half of it.

        Where too few are left in the race, others that were in it from the beginning: without a third, nothing tells
        whether the curve fits.
        """
        largest = self._open[-1]
        if not seen and largest not in without:
            return largest
        new = [
            [size for size in sizes if size not in seen and size not in without] for sizes in (self._open, self._before)
        ]
        if len(seen) >= FEWEST or not (left := new[0] or new[1]):
            return None
        parts = 8 if len(seen) == 1 else 2
        return min(left, key=lambda size: abs(math.log(size * parts / largest)))

    def _regret(self) -> float:
        chosen = [choose(self.posterior, _sure(times), transfer=False) for times in self._devices]
        return float(np.mean([one.expected_regret for one in chosen]))

    def _is_known(self) -> bool:
        """Whether all that may be the best one are told apart better than the transfer allows."""
        at = [self.batch_sizes.index(size) for size in self._open]
        for times in self._devices:
            best = self.batch_sizes.index(choose(self.posterior, times, transfer=False).best)
            for place in at:
                known, with_transfer = (
                    c[place, place] + c[best, best] - 2 * c[place, best]
                    for c in (self.posterior.proxy_covariance, self.posterior.covariance)
                )
                if known > (with_transfer - known) / 4:
                    return False
        return True

    def _gains(self) -> Array:
        """Of one more run at each batch size: by how much the expected logarithm of the time to the target falls."""
        curve = self.posterior
        counts = [curve.runs[size] for size in self.batch_sizes]
        # What is common to all batch sizes changes no choice, and their mean need not be known.
        seen = np.array(counts) > 0
        centred = np.eye(len(counts)) - seen[None, :] / seen.sum()
        covariance = centred @ curve.log_samples_covariance @ centred.T
        gains = np.zeros(len(counts))
        for times in self._devices:
            at = [place for place, size in enumerate(self.batch_sizes) if size in times]
            mean = curve.mean[at] + np.array([times[self.batch_sizes[place]][0] for place in at])
            lost = np.array([self.batch_sizes[place] in curve.lost for place in at], dtype=bool)
            now = np.where(lost, np.inf, mean).min()
            for place, count in enumerate(counts):
                # A seed that other batch sizes were trained with takes its own part with it.
                sd = curve.own_sd if count < max(counts) else curve.noise_sd
                moves = covariance[at, place] / math.sqrt(covariance[place, place] + sd**2)
                usable = np.where(lost & (np.array(at) != place), np.inf, mean)
                best = (usable + _NODES[:, None] * moves).min(axis=1)
                gains[place] += max(0.0, float(now - _WEIGHTS @ best)) / len(self._devices)
        return gains

    def _go(self, batch_size: int, reason: str) -> int:
        self.reason = reason
        return batch_size

    def _stop(self, reason: str) -> int | None:
        self.reason = reason
        return None


def _sure(times: LogTimes) -> Mapping[int, tuple[float, float]]:
    """Without the doubts about the device, which no run on the proxy makes smaller."""
    return {size: (mean, 0.0) for size, (mean, _) in times.items()}
