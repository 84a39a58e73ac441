"""The fastest clocks for a program whose steps are only seen from outside: no line of it is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

from wattune.devices import Device
from wattune.devices.meter import highest_window
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.limiter import PowerLimiter
from wattune.program.rounds import Measured, Window
from wattune.search.observation import Stretch
from wattune.search.search import Search

ROW: Final = BatchShape(1, 1)
"""A round counts as one sample: what its batch size is, nobody says."""

STEPS: Final = 3
"""Least number of rounds that a setting is measured for."""

STEPS_AHEAD: Final = 8
"""The same on a GPU, where the program's process runs ahead of the processor."""

WINDOWS: Final = 3
"""Least number of the sensor's windows that a setting is measured for."""

LEAST_S: Final = 1.0
"""Least time that a setting is measured for: the program is looked at ten times a second."""

JUDGE_EVERY_S: Final = 0.1
"""Time between two looks at all that was measured at a setting: a rehearsal is told of each round."""

FIRST_ROUNDS: Final = 30
FIRST_S: Final = 5.0
"""Rounds, or seconds since the first one, after which clocks are chosen: most programs that end sooner
do not train."""

SHORTEST_S: Final = 100.0
"""Expected time of a run below which a search loses more than it finds."""

LONGEST_S: Final = 60.0
"""Time for which uneven steps are measured at a setting; with steps that need longer nothing is chosen."""

MOST: Final = 24
"""Most settings that are tried: what was not found by then is worth less than it costs."""

UPDATE_AFTER_S: Final = 30.0
"""Seconds of rounds at the chosen setting after which the search takes in what was measured there."""

PUSHES: Final = 3
"""Readings above the cap after which a chosen setting is excluded."""

GAPS: Final = 2
"""Crossings of the cap within gaps that exclude nothing: an evaluation is not the step."""

CHANGED: Final = 0.2
"""Relative change of the step time since an earlier run from which on that run's measurements say nothing."""


Later = Callable[[Callable[[], Any]], Callable[[], bool]]
"""Begin to run a decision. Returns: a function that says whether the decision is made."""


def at_once(call: Callable[[], Any]) -> Callable[[], bool]:
    """Decide at once, on virtual time."""
    call()
    return lambda: True


@dataclass
class Choice:
    """Outcome of choosing, as far as it has come. Times are means of measured steps, in seconds.

    ``first_s``, ``step_s``: at the setting that the guard alone held, and at the chosen one. ``gpu_alone_s``: at the
    best value of the first knob with the others at their highest; ``gpu_alone_is_measured``: False for a forecast.
    ``search_s``: by how much measuring took longer than the same rounds at the chosen setting. ``saved_s``: by how much
    the rounds since then were faster than at the first setting. ``rounds``: all of the program's. ``remembered``: it
    began at the choice of an earlier run. ``reason``: why it ended there.
    """

    chosen: dict[str, float] | None = None
    step_s: float | None = None
    first: dict[str, float] | None = None
    first_s: float | None = None
    gpu_alone_s: float | None = None
    gpu_alone_is_measured: bool = False
    probes: int = 0
    search_s: float = 0.0
    saved_s: float = 0.0
    rounds: int = 0
    remembered: bool = False
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)

    def in_words(self) -> list[str]:
        """The same in a few lines."""
        if self.chosen is None or self.step_s is None or self.first_s is None or self.first is None:
            return [f"no clock was chosen: {self.reason or 'the program ended before'}"]
        lines = [f"chosen: {Knobs(self.chosen)}, {1e3 * self.step_s:.4g} ms a step (measured); {self.reason}"]
        ratio = f"{self.first_s / self.step_s:.2f} times the first setting, {Knobs(self.first)} (measured)"
        if self.gpu_alone_s is not None and len(self.chosen) > 1:
            how = "measured" if self.gpu_alone_is_measured else "forecast"
            ratio += f"; {self.gpu_alone_s / self.step_s:.2f} times the best first clock alone ({how})"
        lines.append(ratio)
        if self.probes > 1:
            lines.append(
                f"the search cost {max(0.0, self.search_s):.1f} s in {self.probes} measurements; "
                f"the {self.rounds} steps have saved {max(0.0, self.saved_s):.1f} s since"
            )
        return lines


class StepController:
    """Chooses the setting of a program by its own rounds; ``limiter`` keeps the board below the cap all the while.

    Call ``look`` about ten times a second with the rounds so far, and ``reading`` with each reading that the limiter
    accepted. The limiter's present setting is measured first, so that nothing is tried where the cap does not bind.
    ``later`` runs a decision and returns a function that says if it is made: on real time readings go on meanwhile.
    """

    def __init__(
        self,
        device: Device,
        limiter: PowerLimiter,
        *,
        expect_s: float | None = None,
        remembered: dict[str, Any] | None = None,
        later: Later = at_once,
        say: Callable[[str], None] = lambda text: None,
    ):
        self._device, self._limiter, self._later, self._say = device, limiter, later, say
        self._expect_s, self._remembered = expect_s, remembered
        self._limit = limiter.limit  # the program's own: another client may set a lower one for a time
        self._search = self._new_search()
        self._least = STEPS_AHEAD if device.executes_steps and device.trains_on == "gpu" else STEPS
        sensor = device.sensor
        self._settle_s = sensor.settle_s
        self._window_s = WINDOWS * max(sensor.window_s, sensor.period_s, 0.1)
        self._watts: dict[Knobs, float] = {}  # highest mean over the cap's window, at each measured setting
        self.choice = Choice()
        self.is_over = False
        """True if nothing is chosen any more: the guard alone holds the cap."""
        self._began_s = device.now_s()
        self._first: tuple[int, float] | None = None  # rounds and time of the first stamp
        self._rounds = 0
        self._source: tuple[int, int] | None = None  # the marker of the rounds, and their process
        self._held_from = 0  # rounds before the first choice
        self._target: OperatingPoint | None = None
        self._before: OperatingPoint | None = None
        self._probing = False
        self._gaps: dict[OperatingPoint, int] = {}
        self._decided: Callable[[], bool] | None = None
        self._next: OperatingPoint | None = None
        self._probed: list[tuple[int, float]] = []  # rounds and seconds of each measurement
        self._window = Window(self._began_s, self._settle_s)
        self._judged_s = -math.inf
        limiter.ratio = lambda low, high: (
            self._watts[high] / self._watts[low] if low in self._watts and high in self._watts else None
        )

    def _new_search(self) -> Search:
        return Search(
            [ROW],
            self._device.combinations(),
            cap_w=self._limit.limit_w,
            start=ROW,
            margin_w=self._limit.margin_w,
            **self._device.sensor.searched,
            cap_window_s=self._limit.window_s,
        )

    # ---------------------------------------------------------------------------------------------------------- inputs

    def reading(self, time_s: float, power_w: float) -> None:
        """Take a reading of the present setting, in the device's time."""
        self._window.reading(time_s, power_w)

    def look(self, rounds: int, time_s: float, marker: int = 0, pid: int = 0) -> None:
        """Take a process's rounds so far and the time of the last one, in the device's time. Raises: DeviceError."""
        if self._decided is not None and not self._decided():
            return  # another thread uses the search
        if (marker, pid) != self._source:
            self._start_over(rounds, time_s, marker, pid)
        self._rounds = rounds
        if self.is_over or self._first is None:
            return
        if self._decided is not None:
            self._decided = None
            self._go()
            return
        if self._target is None:
            since = rounds - self._first[0]
            is_training = since >= STEPS and (since >= FIRST_ROUNDS or time_s - self._first[1] >= FIRST_S)
            if is_training or self._remembered is not None:
                self._begin()
            return
        self._window.stamp(rounds, time_s)
        if self._probing and self._limiter.crossed_w is not None:
            self._crossed(self._target, self._limiter.crossed_w)
        elif not self._probing and self._limiter.knobs != self._target.knobs:
            self._pushed(self._target)
        elif self._device.now_s() - self._judged_s >= JUDGE_EVERY_S:
            self._judged_s = self._device.now_s()
            if (measured := self._window.measured()) is not None:
                self._judge(self._target, measured)

    # ------------------------------------------------------------------------------------------------------ measuring

    def _start_over(self, rounds: int, time_s: float, marker: int, pid: int) -> None:
        """Forget what other rounds took. Another process with equal ones begins at what is known."""
        reason = self.choice.reason if self.is_over and self._is_short else ""
        if self._source is not None and not reason:
            is_equal = marker == self._source[0]
            self._say("another process makes steps" if is_equal else "the program's steps have changed: choosing again")
            self._remembered = self.state_dict() if is_equal else None
            self._limiter.free()
        self._source, self._first, self._target, self._decided = (marker, pid), (rounds, time_s), None, None
        self._search, self.choice, self._probed, self._gaps = self._new_search(), Choice(reason=reason), [], {}
        self.is_over, self._held_from = bool(reason), 0
        self._watts.clear()

    def _begin(self) -> None:
        """Measure the setting that the guard has come to, or the choice of an earlier run."""
        if (best := self._recalled()) is not None:
            self._move(best, probing=True)
        elif self._expect_s is not None and self._is_short:
            self._give_up(f"a run of {self._expect_s:.0f} s is too short to find faster clocks")
        else:
            self._move(OperatingPoint(ROW, _on_grid(self._search.settings, self._limiter.knobs)), probing=False)

    @property
    def _is_short(self) -> bool:
        return self._expect_s is not None and self._expect_s < SHORTEST_S

    def _recalled(self) -> OperatingPoint | None:
        """The choice of an earlier run, whose measurements the search begins with; None without one."""
        remembered, self._remembered = self._remembered, None
        if remembered is None:
            return None
        try:
            self._search.load_state_dict(remembered["search"])
            known = {**remembered["choice"], "probes": 0, "search_s": 0.0, "saved_s": 0.0, "remembered": True}
            choice = Choice(**known)
            choice.in_words()  # fails now, rather than when the program has ended
            best, self.choice = self._search.best(), choice
        except Exception:  # noqa: BLE001 - written by another version, or by hand
            best, self._search = None, self._new_search()
        return best

    def _move(self, point: OperatingPoint, *, probing: bool) -> None:
        self._before, self._target, self._probing = self._target, point, probing
        if self._limiter.knobs != point.knobs or probing or self._limiter.top != point.knobs:
            self._limiter.move(point.knobs, probe=probing)
        self._window = Window(self._device.now_s(), self._settle_s)

    def _judge(self, target: OperatingPoint, measured: Measured) -> None:
        """Tell the search what was measured, once that is enough."""
        is_chosen = not self._probing and target.knobs in self._watts
        is_brief = self._probing and self._search.is_brief(target)
        enough_s = UPDATE_AFTER_S if is_chosen else max(self._window_s / (WINDOWS if is_brief else 1), LEAST_S)
        if measured.rounds < self._least or measured.seconds < enough_s or not measured.readings_w:
            return
        if measured.rounds < measured.needed:
            if measured.needed * measured.step_s > LONGEST_S:
                text = f"the steps are too uneven to compare clocks by: they differ by {100 * measured.uneven:.0f} %"
                self._give_up(text)
            return
        self._tell(target, measured, is_chosen=is_chosen)

    def _tell(self, target: OperatingPoint, measured: Measured, *, is_chosen: bool) -> None:
        limit, choice = self._limiter.limit, self.choice
        is_first = not self._watts
        if is_first and choice.remembered and choice.step_s and abs(measured.step_s / choice.step_s - 1) > CHANGED:
            self._say("the program's steps take another time than in the earlier run: choosing again")
            self._search, self.choice = self._new_search(), Choice()
            choice = self.choice
        highest_w = highest_window(measured.readings_w, limit) or max(measured.readings_w)
        if is_first and self._expect_s is not None:
            left_s = self._expect_s - (self._device.now_s() - self._began_s)
            self._search.samples_left = max(0.0, left_s / measured.step_s)
        self._watts[target.knobs] = highest_w
        self._search.tell(target, Stretch(measured.step_s, fmean(measured.readings_w), highest_w, measured.seconds))
        if choice.first_s is None:
            choice.first, choice.first_s = dict(target.knobs), measured.step_s
        if not is_chosen:
            choice.probes += 1
            self._probed.append((measured.rounds, measured.seconds))
        self._choose()

    def _crossed(self, target: OperatingPoint, power_w: float) -> None:
        """Exclude the setting that was above the cap, unless the program did something else meanwhile."""
        limiter = self._limiter
        if self._window.is_gap(self._device.now_s()) and self._gaps.setdefault(target, 0) < GAPS:
            self._gaps[target] += 1
        else:
            before = self._before
            is_before = limiter.was_early and before is not None and before.knobs in self._watts
            blamed = before if is_before and before is not None else target
            self._search.above(blamed, power_w)
        self._choose()

    def _pushed(self, target: OperatingPoint) -> None:
        """The limiter went below the setting that was to be held."""
        limiter = self._limiter
        if target.knobs not in self._watts:  # the first one: follow it down
            self._move(OperatingPoint(ROW, _on_grid(self._search.settings, limiter.knobs)), probing=False)
        elif limiter.pushed >= PUSHES and limiter.power_w is not None:
            self._search.above(target, limiter.power_w)
            self._choose()

    # ------------------------------------------------------------------------------------------------------- choosing

    def _choose(self) -> None:
        self._decided = self._later(self._decide)
        if self._decided():
            self._decided = None
            self._go()

    def _decide(self) -> None:
        best, top = self._search.best(), self._search.settings[-1]
        # Nothing is faster than all clocks at their highest.
        is_over = best is not None and (best.knobs == top or self.choice.probes >= MOST)
        self._next = None if is_over else self._search.next()

    def _go(self) -> None:
        if self._next is not None:
            self._move(self._next, probing=True)
            return
        best = self._search.best()
        if best is None:
            self._give_up("no measured setting stays below the cap")
            return
        if self._target != best or self._probing or self._limiter.knobs != best.knobs:
            self._move(best, probing=False)
        else:
            self._window = Window(self._device.now_s() - self._settle_s, self._settle_s)
        is_top = best.knobs == self._search.settings[-1]
        self.choice.reason = "the cap does not bind" if is_top else self._search.reason
        self._settle_for(best)

    def _settle_for(self, best: OperatingPoint) -> None:
        """Note the choice."""
        choice, others = self.choice, list(best.knobs)[1:]
        is_new = choice.chosen != dict(best.knobs)
        choice.chosen, choice.step_s = dict(best.knobs), self._search.step_s(best)
        top = self._search.settings[-1]
        alone = self._search.fastest(lambda knobs: all(knobs[name] == top[name] for name in others))
        if alone is not None:
            choice.gpu_alone_s = self._search.step_s(alone)
            choice.gpu_alone_is_measured = alone.knobs in self._watts
        if self._held_from == 0:
            self._held_from = self._rounds
        if is_new:
            self._say(f"chosen: {best.knobs}, {1e3 * choice.step_s:.4g} ms a step")

    def _give_up(self, reason: str) -> None:
        """Leave the cap to the limiter, from the best setting that was measured or from the present one."""
        if (best := self.best) is not None:
            self._limiter.move(best)
        self._end(reason)

    def _end(self, reason: str) -> None:
        self._limiter.free()
        self.is_over, self.choice.reason = True, reason
        self._say(f"clocks are not chosen: {reason}")

    def pause(self, reason: str) -> None:
        """Leave the cap to the limiter; the next ``look`` begins to choose again. Raises: DeviceError."""
        if not self.is_over:
            self._end(reason)
        self._source = None

    # ---------------------------------------------------------------------------------------------------------- state

    @property
    def best(self) -> Knobs | None:
        """The best setting that was measured; None before the first one."""
        best = self._search.best() if self._watts else None
        return None if best is None else best.knobs

    def outcome(self) -> Choice:
        """The choice with what it has cost and saved so far."""
        choice = self.choice
        choice.rounds = self._rounds
        if choice.chosen is None and self._watts and (best := self._search.best()) is not None:
            self._settle_for(best)
            choice.reason = choice.reason or "the search had not ended"
        if choice.step_s is not None and choice.first_s is not None:
            choice.search_s = sum(seconds - rounds * choice.step_s for rounds, seconds in self._probed)
            choice.saved_s = (self._rounds - self._held_from) * (choice.first_s - choice.step_s)
        return choice

    def state_dict(self) -> dict[str, Any] | None:
        """State for the next run of the same program; None if nothing was measured."""
        if not self._watts or self._search.best() is None:
            return None
        return {"search": self._search.state_dict(), "choice": self.outcome().as_json()}


def _on_grid(settings: Sequence[Knobs], knobs: Knobs) -> Knobs:
    """The highest of these settings that is not above ``knobs`` in any knob, or the lowest."""
    values = {
        name: max((one[name] for one in settings if one[name] <= value), default=math.nan)
        for name, value in knobs.items()
    }
    return Knobs({name: settings[0][name] if math.isnan(value) else value for name, value in values.items()})
