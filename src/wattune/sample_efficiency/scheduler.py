"""The scheduler of proxy runs: which batch size to train next, and when to stop.

It begins with one run at each of three batch sizes that are far apart, the largest among them: fewer would not show
whether the curve fits, and nothing is extrapolated beyond the largest. From then on it picks the run with the largest
gain for its time. The gain is the knowledge gradient (Frazier, Powell, Dayanik 2008): the expected fall in the time to
target of the batch size that would then be chosen. The time enters by its square root, as a run that takes four times
as long also informs its neighbours. Batch sizes that cannot be best given the device's step times are not trained,
except for the user's own, which is always one of the runs: it is what the choice is compared with.

Before it stops, the choice is verified. It often has a single run, and may be the best by luck: each of its two
neighbors is trained once, unless its step time alone rules it out. Of whole training runs, the choice and its runner-up
are trained twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from wattune.sample_efficiency.choice import LogTimes, choose, contenders
from wattune.sample_efficiency.posterior import Array, CurvePosterior, Observation, fit

MAX_RUNS = 12
"""Maximum number of runs."""

USUAL_RUNS = {False: 6, True: 9}
"""Mean number of runs in the benchmark of the decisions: of a small proxy, and of whole training runs."""

SEEDS = 3
"""Default number of runs per batch size if all batch sizes are trained."""

MIN_SIZES = 3
"""Minimum number of batch sizes, unless fewer could be best from the beginning."""

SMALL_REGRET = 0.01
"""Expected regret on the proxy at which to stop."""

MIN_GAIN = 0.001
"""Least gain that is worth a run."""

PLATEAU = 2.5
"""Multiple of the expected samples after which a run is not going to reach the target."""

MAX_MISSES = 3
"""Runs that missed the target, and none that reached it, after which a batch size is not tried again."""

DOMINATED = 0.1
"""ln of how much longer than the best batch size a run may take, before the uncertainty is added."""

HALF_BUSY = (4.0, 16.0, 64.0, 256.0)
"""Batch sizes at which an unknown device may have half of its highest throughput."""

_NODES = np.linspace(-4.0, 4.0, 81)
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


def server_seconds(batch_size: int) -> float:
    """Time per sample of proxy training, up to a factor: a constant per step and one per sample."""
    return 1 / batch_size + 1 / 64


class RunScheduler:
    """A sequential experimental design over ``batch_sizes``; it keeps no runs: every call passes all of them.

    ``log_step_times``: batch size -> mean and standard deviation of ln(seconds per sample) on the device, at the
    fastest setting that the cap allows; a batch size that is missing cannot run. None: the device is unknown, and the
    runs are to serve devices of several kinds. ``own``: the user's own batch size. ``whole``: the runs are whole
    training runs rather than those of a small proxy. ``ratio``: the target's number of parameters over the proxy's.
    ``most``: maximum number of runs.

    ``reason``: why the last call of ``next`` chose its batch size, or none; ``posterior``: the basis of that choice.
    """

    def __init__(
        self,
        batch_sizes: Sequence[int],
        *,
        log_step_times: LogTimes | None = None,
        own: int | None = None,
        whole: bool = False,
        ratio: float = 1.0,
        most: int = MAX_RUNS,
    ):
        self.batch_sizes = tuple(sorted(set(batch_sizes)))
        self._seconds = np.array([server_seconds(size) for size in self.batch_sizes])
        self._whole, self._ratio = whole, ratio
        self._most = most
        self.reason = "not started"
        if log_step_times is None:
            self._devices: list[LogTimes] = [
                {size: (math.log1p(half / size), 0.0) for size in self.batch_sizes} for half in HALF_BUSY
            ]
        else:
            self._devices = [{size: log_step_times[size] for size in self.batch_sizes if size in log_step_times}]
        self._own = own if any(own in times for times in self._devices) else None
        self.posterior = self._fit(())
        self._initial = self._open = self._contenders()

    @property
    def contenders(self) -> tuple[int, ...]:
        """The batch sizes that may be the best one; no other is trained."""
        return self._open

    def next(
        self, observations: Sequence[Observation], *, pending: Sequence[int] = (), without: Collection[int] = ()
    ) -> int | None:
        """The batch size to train next; None if the runs suffice, or nothing more can be learned.

        ``pending``: batch sizes of runs in progress, assumed to end as expected; ``without``: batch sizes that cannot
        be trained again.
        """
        self.posterior = self._fit(observations)
        if any(run.reached for run in observations):
            self._open = self._contenders()
        if pending:
            expected = dict(zip(self.batch_sizes, np.exp(self.posterior.log_samples).tolist(), strict=True))
            observations = [*observations, *(Observation(size, expected[size]) for size in pending)]
            self.posterior = self._fit(observations)
        counts = self.posterior.runs
        sampled_sizes = [size for size in self.batch_sizes if counts[size]]
        if len(observations) >= self._most:
            return self._go(None, f"{self._most} runs{self._worth_of_more(observations)}")
        if not self._open:
            return self._go(None, "no batch size can run")
        sizes = [size for size in self._open if size not in without]
        first = self._first(sampled_sizes, without)
        is_decided = len(self._open) == 1 and self._open[0] not in self.posterior.lost
        if is_decided and not observations and self._own in (None, *self._open):
            return self._go(None, "only one batch size can be best")
        if is_decided and first is None:
            return self._verify(without, "only one batch size can be best")
        if observations and not any(run.reached for run in observations):
            # The batch sizes so far may be too large for the target: halfway down, and up again if none is left.
            new = [size for size in sizes if not counts[size]]
            below = [size for size in new if size < sampled_sizes[0]]
            if not new:
                return self._go(None, "no run reached the target")
            return self._go((below or new)[len(below or new) // 2], "no run has reached the target yet")
        if first is not None:
            return self._go(first, "to cover the whole range")
        if self._regret() < SMALL_REGRET:
            return self._verify(without, f"the expected regret on the proxy is below {SMALL_REGRET:.0%}")
        if self._is_resolved():
            return self._verify(without, "the proxy is known better than it predicts the target")
        new = [size for size in sizes if not counts[size]]
        if len(set(sampled_sizes) & set(self._open)) < 4 and new:
            sizes = new  # spread beats repetition
        if not sizes:
            return self._go(None, "no runs are left")
        gains = dict(zip(self.batch_sizes, self._gains(), strict=True))
        if max(gains[size] for size in sizes) < MIN_GAIN:
            return self._verify(without, f"another run would gain less than {MIN_GAIN:.1%}")
        seconds = self._seconds * np.exp(self.posterior.log_samples - self.posterior.log_samples.max())
        cost = dict(zip(self.batch_sizes, np.sqrt(seconds), strict=True))
        return self._go(max(sizes, key=lambda size: gains[size] / cost[size]), "the largest gain for its time")

    def budget(self, batch_size: int) -> float | None:
        """Samples after which to stop a run of this batch size: it is far behind the best one, or will not reach the
        target. Based on the runs in the last call of ``next``; None if none of them reached the target.
        """
        curve = self.posterior
        if not any(curve.runs[size] > curve.censored[size] for size in self.batch_sizes):
            return None
        at = curve.batch_sizes.index(batch_size)
        sd = math.sqrt(curve.noise_sd**2 + curve.log_samples_covariance[at, at])
        most = curve.log_samples[at] + max(math.log(PLATEAU), 2 * sd)
        if len(self._devices) == 1:
            [times] = self._devices
            leader = min(times[size][0] + curve.log_samples[curve.batch_sizes.index(size)] for size in times)
            dominated = leader - times[batch_size][0] + DOMINATED + 1.5 * sd
            # Never before the expected end: the run would be wasted.
            most = min(most, max(dominated, curve.log_samples[at] + 1.5 * sd))
        return math.exp(most)

    def _verify(self, without: Collection[int], reason: str) -> int | None:
        """The next run that verifies the choice; none if it is verified: ``reason`` is then that to stop."""
        if len(self._devices) > 1:
            return self._go(None, reason)  # a choice for each device, and so none to verify
        [times] = self._devices
        usable = [size for size in self.batch_sizes if size in times and size not in self.posterior.lost]
        mean = {size: times[size][0] + self.posterior.mean[self.batch_sizes.index(size)] for size in usable}
        best, *others = sorted(usable, key=mean.__getitem__)
        sizes = [size for size in self.batch_sizes if size in times]
        place, counts = sizes.index(best), self.posterior.runs
        for size in sizes[max(0, place - 1) : place + 2]:
            if not counts[size] and size in self._initial and size not in without:
                return self._go(size, "to verify the choice")
        for size in (best, *others[:1]) if self._whole else ():
            if counts[size] < 2 and size not in without:
                return self._go(size, "to repeat the choice and its runner-up")
        return self._go(None, reason)

    def _fit(self, observations: Sequence[Observation]) -> CurvePosterior:
        reached = any(run.reached for run in observations)
        # Runs that were all censored do not inform the shape, but they count.
        posterior = fit(observations if reached else (), self.batch_sizes, whole=self._whole, ratio=self._ratio)
        for run in () if reached else observations:
            posterior.runs[run.batch_size] += 1
            posterior.censored[run.batch_size] += 1
        return posterior

    def _contenders(self) -> tuple[int, ...]:
        runs, lost = self.posterior.runs, self.posterior.lost
        # A batch size that missed the target again and again is not going to reach it.
        sizes = [size for size in self.batch_sizes if size not in lost or runs[size] < MAX_MISSES]
        devices = [{size: times[size] for size in sizes if size in times} for times in self._devices]
        return tuple(sorted({size for times in devices for size in contenders(self.posterior, times)}))

    def _first(self, sampled_sizes: Sequence[int], without: Collection[int]) -> int | None:
        """The next of the first batch sizes: the largest, the user's own, and of those near an eighth and a half of
        the largest as many as make three.

        If too few contenders remain, batch sizes that were contenders at the beginning: only a third one shows whether
        the curve fits.
        """
        largest = self._open[-1]
        if not sampled_sizes and largest not in without:
            return largest
        if self._most < MIN_SIZES:  # one run at either end: a hyperbola through two points
            smallest = self._open[0]
            return None if smallest in sampled_sizes or smallest in without else smallest
        if self._own is not None and self._own not in sampled_sizes and self._own not in without:
            return self._own
        new = [
            [size for size in sizes if size not in sampled_sizes and size not in without]
            for sizes in (self._open, self._initial)
        ]
        if len(sampled_sizes) >= MIN_SIZES or not (unsampled := new[0] or new[1]):
            return None
        # Whichever of the two places is further from the batch sizes with runs.
        target = max(
            (largest / parts for parts in (8, 2)),
            key=lambda size: min((abs(math.log(size / other)) for other in sampled_sizes), default=0.0),
        )
        return min(unsampled, key=lambda size: abs(math.log(size / target)))

    def _regret(self) -> float:
        choices = [choose(self.posterior, _exact(times), transfer=False) for times in self._devices]
        return float(np.mean([choice.expected_regret for choice in choices]))

    def _worth_of_more(self, observations: Sequence[Observation]) -> str:
        """Words on what more runs of the proxy would save of a training run, at most."""
        if not any(run.reached for run in observations) or set(self.batch_sizes) <= self.posterior.lost:
            return ""
        return f"; more of them would save {self._regret():.1%} of the time to the target at most"

    def _is_resolved(self) -> bool:
        """Return whether the proxy separates all contenders more precisely than it predicts the target."""
        at = [self.batch_sizes.index(size) for size in self._open]
        for times in self._devices:
            best = self.batch_sizes.index(choose(self.posterior, times, transfer=False).best)
            for place in at:
                on_proxy, on_target = (
                    c[place, place] + c[best, best] - 2 * c[place, best]
                    for c in (self.posterior.proxy_covariance, self.posterior.covariance)
                )
                if on_proxy > (on_target - on_proxy) / 4:
                    return False
        return True

    def _gains(self) -> Array:
        """Gain of one more run at each batch size (n,): the fall in the expected logarithm of the time to target.

        One run at j moves the posterior mean by s z, with z ~ N(0, 1) and s = cov[:, j] / sqrt(cov[j, j] + sd^2), so
        the gain is min(mean) - E[min(mean + s z)], with the expectation as a sum over the nodes of z.
        """
        curve = self.posterior
        counts = [curve.runs[size] for size in self.batch_sizes]
        # A change common to all batch sizes changes no choice, so their mean level is projected out.
        sampled_sizes = np.array(counts) > 0
        centred = np.eye(len(counts)) - sampled_sizes[None, :] / sampled_sizes.sum()
        covariance = centred @ curve.log_samples_covariance @ centred.T
        gains = np.zeros(len(counts))
        for times in self._devices:
            at = [place for place, size in enumerate(self.batch_sizes) if size in times]
            mean = curve.mean[at] + np.array([times[self.batch_sizes[place]][0] for place in at])
            is_lost = np.array([self.batch_sizes[place] in curve.lost for place in at], dtype=bool)
            now = np.where(is_lost, np.inf, mean).min()
            for place, count in enumerate(counts):
                # The part of a seed's variance that other batch sizes share is known if they were trained with it.
                sd = curve.own_sd if count < max(counts) else curve.noise_sd
                moves = covariance[at, place] / math.sqrt(covariance[place, place] + sd**2)
                usable = np.where(is_lost & (np.array(at) != place), np.inf, mean)
                best = (usable + _NODES[:, None] * moves).min(axis=1)
                gains[place] += max(0.0, float(now - _WEIGHTS @ best)) / len(self._devices)
        return gains

    def _go(self, batch_size: int | None, reason: str) -> int | None:
        """Take this batch size, or none, for this reason."""
        self.reason = reason
        return batch_size


def _exact(times: LogTimes) -> Mapping[int, tuple[float, float]]:
    """The step times without their uncertainty, which no run on the proxy reduces."""
    return {size: (mean, 0.0) for size, (mean, _) in times.items()}
