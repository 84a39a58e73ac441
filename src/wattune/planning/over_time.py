"""The plan over time: for a cap that changes, a forecast of carbon or price, or both.

One batch size stays for the whole training run, so training takes the course that it takes under a constant cap. Under
each cap it has a setting of its own. Without a forecast, the shape is chosen that is best as a mean over the time of
the caps. With a forecast, training waits for the grains of time that cost least until the goal's deadline. What the
board takes while it waits counts until training ends, so training begins at once where waiting takes more than it
saves. Times are chosen once: a new choice every hour would follow the errors of the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from wattune.cap_source import CapSource
from wattune.errors import InputError, NoFeasiblePoint
from wattune.goal import Goal
from wattune.intensity import JOULES_PER_KWH, Intensity, Stretch
from wattune.planning.candidates import fastest, rank
from wattune.planning.confidence import feasible_log_times
from wattune.planning.grains import Accumulated, Work, cheapest
from wattune.planning.objective import MORE, energy_of, predictions, time_of
from wattune.planning.own_batch_size import TablePick
from wattune.planning.problem import Problem, record, why_nothing
from wattune.planning.table import Option
from wattune.planning.timeline import Timeline, UnderCap
from wattune.point import BatchShape
from wattune.records import Candidate, IntensityValue, Plan, PlannedCap, Schedule, ScheduledTime
from wattune.sample_efficiency.choice import OwnBatchSize, beside_own

SPARE: Final = 0.05
"""Share of the predicted time that is left until the deadline, for steps that take longer and for pauses."""

SAME: Final = 1e-9
"""Share by which a figure may be beyond a bound: products and quotients of the same figures differ by rounding."""

FEW_POINTS = (
    "the profile has only points along one cap, so lower caps may have faster points than it knows; profile with "
    "--strategy full for a cap that changes"
)
"""Note of a plan from a profile that is not a full grid."""


class Course(NamedTuple):
    """A way to train: a shape, with its setting under each cap, None under caps that it exceeds at any setting.

    ``pace``: the setting under the highest cap, the plan's point. ``rate``: reference samples per second, as a mean
    over the caps. ``cost``: what is least at the best course: what the goal counts, for a reference sample, or by a
    forecast the carbon or price of training at ``times``. ``finish_s``, ``joules``: end of training that begins at
    once, and its energy; infinite if it never ends, NaN if the samples are unknown.
    """

    shape: BatchShape
    pace: Option
    options: tuple[Option | None, ...]
    rate: float
    finish_s: float
    joules: float
    cost: float
    times: tuple[Stretch, ...]


def check_intensity(intensity: Intensity, goal: Goal) -> None:
    """Check that times can be chosen by this forecast for the goal. Raises: InputError."""
    if goal.deadline_s is None:
        raise InputError(
            f"{intensity.name} without a deadline",
            allowed="a time until which training may wait, such as --deadline 16h",
        )
    if goal.aim == "cost":
        raise InputError(f"the goal cost with {intensity.name}", allowed="energy, energy-above-rest, edp or time")


def plan_over_time(
    problem: Problem, source: CapSource | None, intensity: Intensity | None, now: datetime | None
) -> Plan:
    """The plan under the caps of ``source`` (None: the problem's constant cap), and by a forecast.

    Raises: as ``plan``.
    """
    goal = problem.objective.goal
    if source is not None and not goal.is_time and problem.table.reference_samples is None:
        raise InputError(
            f"the goal {goal.aim} under a cap that changes, without the samples to the target",
            hint="give an efficiency record, which `wattune estimate` makes",
        )
    choice = _Choice(problem, Timeline(problem, source, intensity, now), intensity)
    best, pick = choice.best()
    result = record(problem, pick, is_constant=source is None)
    assumed = () if source is None else source.assumed
    if intensity is not None and intensity.note is not None:
        assumed += (intensity.note,)
    result = result.model_copy(update={"notes": (*result.notes, *assumed)})
    if source is not None:
        result = result.model_copy(update=choice.under_caps(result, best))
    if intensity is not None:
        result = result.model_copy(update={"schedule": choice.schedule(intensity, best)})
    return result


class _Choice:
    """The courses of a problem over a timeline. Raises: CapError or NoFeasiblePoint if there is none."""

    def __init__(self, problem: Problem, timeline: Timeline, intensity: Intensity | None):
        self.problem, self.timeline = problem, timeline
        self.goal, self.table, self.rest_w = problem.objective.goal, problem.table, problem.table.profile.rest_w
        self.has_forecast = intensity is not None
        self.courses = list(self._courses())
        if not self.courses:
            raise why_nothing(self.table, problem.objective.limit)

    # ------------------------------------------------------------------------------------------------------- courses

    def _courses(self) -> Iterator[Course]:
        limit = self.problem.objective.limit
        by_shape: dict[BatchShape, list[Option]] = {}
        for option in self.table.at.values():
            if option.relative_time is not None:
                by_shape.setdefault(option.point.shape, []).append(option)
        for known in by_shape.values():
            for pace in self._paces([option for option in known if limit.allows(option.capped_w)]):
                options = tuple(self._setting(known, one, pace) for one in self.timeline.caps)
                yield self._course(pace, options)

    def _paces(self, allowed: list[Option]) -> list[Option]:
        """The settings of which no other is both faster and better for the goal, the fastest first.

        Without a bound the best one alone: nothing asks for a faster one.
        """
        value = self.problem.objective.value if self.goal.energy_j is None else energy_of
        front: list[Option] = []
        for option in sorted(allowed, key=rank):
            if not front or value(option) < value(front[-1]):
                front.append(option)
        return front if self.goal.has_bound else front[-1:]

    def _setting(self, known: Sequence[Option], one: UnderCap, pace: Option) -> Option | None:
        """The best setting under a cap, as training chooses it beside this pace; None if there is none."""
        if (limit := one.limit) is None:
            return None

        def order(option: Option) -> tuple[Any, ...]:
            key = self.goal.order(time_of(option), option.mean_w, self.rest_w, beside=(time_of(pace), pace.mean_w))
            return *key, rank(option)

        return min((option for option in known if limit.allows(option.capped_w)), key=order, default=None)

    def _course(self, pace: Option, options: tuple[Option | None, ...]) -> Course:
        rates = [0.0 if one is None else 1.0 / time_of(one) for one in options]
        rate, mean_w = self.timeline.mean(rates), self.timeline.mean(self._power_w(options))
        samples, need = self.timeline.accumulated(rates), self.table.reference_samples
        finish_s = math.nan if need is None else float(samples.when(need))
        joules = finish_s
        if math.isfinite(finish_s):
            joules = float(self.timeline.accumulated(self._power_w(options)).at(finish_s))
        cost = float(self.goal.price(mean_w, self.rest_w)) / rate
        times: tuple[Stretch, ...] = (Stretch(0.0, finish_s),)
        deadline_s = self.goal.deadline_s
        if self.has_forecast and need is not None and deadline_s is not None and math.isfinite(finish_s):
            work = self._work(options, samples)
            times = cheapest(work, need, min(deadline_s - SPARE * finish_s, self.timeline.end_s))
            cost = work.account(times)
        return Course(pace.point.shape, pace, options, rate, finish_s, joules, cost, times)

    def _power_w(self, options: Sequence[Option | None]) -> list[float]:
        """Watts under each cap, at rest where nothing can run."""
        return [(self.rest_w or 0.0) if one is None else one.mean_w for one in options]

    def _work(self, options: Sequence[Option | None], samples: Accumulated) -> Work:
        """Energy of waiting, and of training beside it: of the board's whole power, or of the part above rest."""
        waiting_w, working_w = list[float](), list[float]()
        for option, power_w in zip(options, self._power_w(options), strict=True):
            if self.goal.aim == "energy-above-rest":
                waiting_w.append(0.0)
                working_w.append(0.0 if option is None else float(self.goal.price(power_w, self.rest_w)))
            else:
                waiting_w.append(min(self.rest_w or 0.0, power_w))
                working_w.append(power_w - waiting_w[-1])
        waiting, working = (self.timeline.accumulated(watts, priced=True) for watts in (waiting_w, working_w))
        return Work(samples, waiting, working)

    # -------------------------------------------------------------------------------------------------------- choice

    def best(self) -> tuple[Course, TablePick]:
        """The best course within the goal's bound, and its point beside the user's own batch size."""
        best, own = self._chosen(self._in_bound(), lambda one: one.cost, self.goal.exponent)
        return best, TablePick(best.pace, own)

    def _in_bound(self) -> list[Course]:
        """The courses that meet the goal's bound; of a budget of energy, else the course that comes nearest.

        A slowdown is relative to the course that the goal time would take. Raises: NoFeasiblePoint for a deadline.
        """
        goal, courses = self.goal, self.courses
        if goal.max_slowdown is not None:
            fastest, _ = self._chosen(courses, lambda one: 1.0 / one.rate, 1)
            return [one for one in courses if one.rate * (1 + goal.max_slowdown) >= fastest.rate * (1 - SAME)]
        if goal.energy_j is not None:
            within = [one for one in courses if one.joules <= goal.energy_j * (1 + SAME)]
            return within or [min(courses, key=lambda one: one.joules)]
        if goal.deadline_s is None:
            return courses
        if within := [one for one in courses if one.finish_s <= goal.deadline_s * (1 + SAME)]:
            return within
        earliest = min(courses, key=lambda one: one.finish_s)
        ends = f"{earliest.finish_s:.4g} s at the earliest, with {earliest.pace.point}"
        raise NoFeasiblePoint(
            "no point under the cap meets the deadline",
            value=f"{goal.deadline_s:.4g} s",
            allowed=ends
            if math.isfinite(earliest.finish_s)
            else "none, since the caps end in a pause before the target",
            hint="give more time, or raise the cap",
        )

    def _chosen(
        self, courses: Sequence[Course], cost: Callable[[Course], float], exponent: int
    ) -> tuple[Course, OwnBatchSize | None]:
        """The course of least cost, or with the user's own batch size unless another one is surely better."""

        def order(one: Course) -> tuple[Any, ...]:  # equally good: the larger batch, as for a constant cap
            return cost(one), -one.shape.batch, -one.shape.micro, rank(one.pace)

        best, own_size, posterior = min(courses, key=order), self.table.efficiency.own_batch_size, self.table.posterior
        ours = min((one for one in courses if one.shape.batch == own_size), key=order, default=None)
        if own_size is None or ours is None or posterior is None or own_size in posterior.lost:
            return best, None
        if cost(best) <= 0 or cost(ours) <= 0:  # a price that is paid to the user has no ratio to another
            return ours, OwnBatchSize(own_size, own_size)
        costs = {}
        for one in (best, ours):
            samples = self.table.efficiency.at(one.shape.batch).relative_samples or 1.0
            costs[one.shape.batch] = math.log(cost(one) / samples), self._log_sd(one)
        own = beside_own(posterior, costs, own=own_size, rival=best.shape.batch, exponent=exponent)
        return (best if own.choice == own.rival else ours), own

    def _log_sd(self, course: Course) -> float:
        """Standard deviation of ln(seconds per sample), as a mean over the caps.

        Errors of the settings of one batch size are taken as the same error, which overstates the error of their mean.
        """
        weights = errors = 0.0
        for one in self.timeline.caps:
            times = {} if one.limit is None else feasible_log_times(self.table, one.limit)
            if course.shape.batch in times:
                log_s, sd = times[course.shape.batch]
                weights += one.share * math.exp(-log_s)
                errors += one.share * math.exp(-log_s) * sd
        return errors / weights

    # -------------------------------------------------------------------------------------------------------- record

    def under_caps(self, plan: Plan, best: Course) -> dict[str, object]:
        """The fields of a plan that are others under a cap that changes than under the highest of its caps."""
        profile, is_fastest = self.table.profile, self.goal.is_time and not self.has_forecast
        pairs = list(zip(self.timeline.caps, best.options, strict=True))
        return {
            **self._predicted(best),
            "caps": tuple(_planned(one, option) for one, option in pairs),
            "of_clairvoyant": best.rate / self._clairvoyant() if is_fastest else None,
            "over_constant": best.rate / self._best_constant() if is_fastest else None,
            "p_best": None,
            "expected_loss": None,
            "candidates": self._candidates(plan, best),
            "notes": (*plan.notes, *(() if profile.is_full_grid else (FEW_POINTS,))),
            "run_by": None,  # `wattune guard` knows no plan
        }

    def _predicted(self, best: Course) -> dict[str, Any]:
        """Seconds and energy of training at its times, with what they cost; None if it never ends, or is unknown."""
        if not math.isfinite(best.finish_s):
            return predictions(self.problem.objective, None, None)
        seconds = math.fsum(one.length_s for one in best.times)
        joules = self.timeline.accumulated(self._power_w(best.options)).over(best.times)
        return predictions(self.problem.objective, seconds, joules)

    def _clairvoyant(self) -> float:
        """Reference samples per second of the fastest point of all under each cap."""
        rates = []
        for one in self.timeline.caps:
            option = None if one.limit is None else fastest(self.table.at.values(), one.limit)
            rates.append(0.0 if option is None else 1.0 / time_of(option))
        return self.timeline.mean(rates)

    def _best_constant(self) -> float:
        """Reference samples per second of the best single point, which pauses while it exceeds the cap."""
        return max(
            sum(one.share for one in self.timeline.caps if one.limit is not None and one.limit.allows(option.capped_w))
            / option.relative_time
            for option in self.table.at.values()
            if option.relative_time is not None
        )

    def _candidates(self, plan: Plan, best: Course) -> tuple[Candidate, ...]:
        """The plan's candidates; the reason against another shape is its best course over all caps."""
        least: dict[BatchShape, float] = {}
        for one in self._in_bound():
            least[one.shape] = min(one.cost, least.get(one.shape, math.inf))
        more, found = MORE[self.goal.aim], []
        for candidate in plan.candidates:
            cost = least.get(candidate.shape)
            if candidate.shape != best.shape and candidate.feasible and candidate.relative_time is not None:
                if cost is None:
                    why_not = "does not meet the bound of the goal over the caps"
                elif best.cost > 0 and (ratio := (cost / best.cost) ** self.goal.exponent) >= 1.01:
                    why_not = f"{ratio:.2f} x {more} over the caps"
                else:
                    why_not = f"less than 1 % {more} over the caps"
                candidate = candidate.model_copy(update={"why_not": why_not})
            found.append(candidate)
        return tuple(found)

    def schedule(self, intensity: Intensity, best: Course) -> Schedule:
        """The times to train at, with what they save."""
        assert self.goal.deadline_s is not None  # checked with the forecast
        begin_s, finish_s = self.timeline.begin_s, best.times[-1].until_s
        until_s = max(finish_s, min(self.goal.deadline_s, self.timeline.end_s))
        begin = None if intensity.begin is None else intensity.begin + timedelta(seconds=begin_s)
        ends_s = (*(one.until_s for one in best.times[:-1]), None)  # a run that takes longer continues
        rest = self.timeline.accumulated([self.rest_w or 0.0] * len(self.timeline.caps), priced=True)
        waited = float(rest.at(finish_s)) - rest.over(best.times)
        fastest = min(self.courses, key=lambda one: one.finish_s)
        # What the goal counts if training begins at once.
        without = min(
            self._in_bound(),
            key=lambda one: one.finish_s * float(self.goal.price(one.joules / one.finish_s, self.rest_w)),
        )
        return Schedule(
            unit=intensity.unit,
            begin=None if begin is None else begin.isoformat(),
            times=tuple(
                ScheduledTime(from_s=one.from_s, until_s=end_s) for one, end_s in zip(best.times, ends_s, strict=True)
            ),
            forecast=tuple(
                IntensityValue(time_s=stretch.from_s - begin_s, value=value)
                for stretch, value in intensity.pieces(begin_s, begin_s + until_s)
            ),
            finish_s=finish_s,
            predicted=self._amount(best, best.times),
            predicted_waiting=None if self.rest_w is None else waited / JOULES_PER_KWH,
            at_once=self._amount(without, (Stretch(0.0, without.finish_s),)),
            fastest_at_once=self._amount(fastest, (Stretch(0.0, fastest.finish_s),)),
        )

    def _amount(self, course: Course, times: tuple[Stretch, ...]) -> float:
        """Grams of CO2, or money, of all of the board's energy at these times."""
        return self.timeline.accumulated(self._power_w(course.options), priced=True).over(times) / JOULES_PER_KWH


def _planned(one: UnderCap, option: Option | None) -> PlannedCap:
    limit_w = None if one.limit is None else one.limit.limit_w
    if option is None:
        return PlannedCap(asked_w=one.asked_w, share=one.share, cap_w=limit_w, feasible=False)
    return PlannedCap(
        asked_w=one.asked_w,
        share=one.share,
        cap_w=limit_w,
        feasible=True,
        **option.point.fields(),
        relative_time=option.relative_time,
        predicted_peak_w=option.cell.power_peak_w,
        predicted_window_w=option.capped_w if option.is_windowed else None,
    )
