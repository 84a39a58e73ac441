"""The fastest clocks for a program whose steps are only seen from outside: no line of it is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.loop.controller import STEPS, WINDOWS, Later, StepController, at_once
from wattune.loop.measurement_window import Measured
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.limiter import PowerLimiter
from wattune.search.search import Search

ROW: Final = BatchShape(1, 1)
"""A round counts as one sample: what its batch size is, nobody says."""

STEPS_AHEAD: Final = 8
"""Least number of rounds that a setting is measured for on a GPU, where the program's process runs ahead of the
processor."""

LEAST_S: Final = 1.0
"""Least time that a setting is measured for: the program is looked at ten times a second."""

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

CHANGED: Final = 0.2
"""Relative change of the step time since an earlier run from which on that run's measurements say nothing."""


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


class ClockSearch(Search):
    """A search over all settings of a device for the rounds of a program."""

    def __init__(self, device: Device, limit: SensorLimit):
        super().__init__(
            [ROW],
            device.combinations(),
            cap_w=limit.limit_w,
            start=ROW,
            margin_w=limit.margin_w,
            **device.sensor.searched,
            cap_window_s=limit.window_s,
        )
        self.probes = 0
        """Settings that were tried so far."""

    def next(self) -> OperatingPoint | None:
        """The setting to try next; see ``Search``. Nothing is faster than all clocks at their highest."""
        best = self.best()
        if best is not None and best.knobs == self.settings[-1]:
            self.reason = "the cap does not bind"
            return None
        return None if best is not None and self.probes >= MOST else super().next()


class ScriptController:
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
        self._least = STEPS_AHEAD if device.executes_steps and device.trains_on == "gpu" else STEPS
        self.choice = Choice()
        self.is_over = False
        """True if nothing is chosen any more: the guard alone holds the cap."""
        self._began_s = device.now_s()
        self._first: tuple[int, float] | None = None  # rounds and time of the first stamp
        self._rounds = 0
        self._source: tuple[int, int] | None = None  # the marker of the rounds, and their process
        self._held_from = 0  # rounds before the first choice
        self._has_begun = False
        self._probed: list[tuple[int, float]] = []  # rounds and seconds of each measurement
        self._steps = self._new_steps()

    def _new_steps(self) -> StepController:
        self._search = ClockSearch(self._device, self._limit)
        search = self._search  # of these steps, whatever comes after
        return StepController(
            self._device, self._limiter, lambda _: search, ROW, changed=self._changed, later=self._later
        )

    # ---------------------------------------------------------------------------------------------------------- inputs

    def reading(self, time_s: float, power_w: float) -> None:
        """Take a reading of the present setting, in the device's time."""
        self._steps.window.reading(time_s, power_w)

    def look(self, rounds: int, time_s: float, marker: int = 0, pid: int = 0) -> None:
        """Take a process's rounds so far and the time of the last one, in the device's time. Raises: DeviceError."""
        if not self._steps.has_decided():
            return  # another thread uses the search
        if (marker, pid) != self._source:
            self._start_over(rounds, time_s, marker, pid)
        new, self._rounds = rounds - self._rounds, rounds
        if self.is_over or self._first is None:
            return
        if not self._has_begun:
            since = rounds - self._first[0]
            is_training = since >= STEPS and (since >= FIRST_ROUNDS or time_s - self._first[1] >= FIRST_S)
            if is_training or self._remembered is not None:
                self._begin()
        else:
            if new > 0:
                self._steps.window.step(time_s, new)
            self._judge()
        if self._has_begun and not self.is_over:
            self._steps.begin(ROW)

    # ------------------------------------------------------------------------------------------------------ measuring

    def _start_over(self, rounds: int, time_s: float, marker: int, pid: int) -> None:
        """Forget what other rounds took. Another process with equal ones begins at what is known."""
        reason = self.choice.reason if self.is_over and self._is_short else ""
        if self._source is not None and not reason:
            is_equal = marker == self._source[0]
            self._say("another process makes steps" if is_equal else "the program's steps have changed: choosing again")
            self._remembered = self.state_dict() if is_equal else None
            self._limiter.free()
        self._source, self._first, self._rounds = (marker, pid), (rounds, time_s), rounds
        self._steps, self.choice, self._probed = self._new_steps(), Choice(reason=reason), []
        self.is_over, self._held_from, self._has_begun = bool(reason), 0, False

    def _begin(self) -> None:
        """Measure the setting that the guard has come to, or the choice of an earlier run."""
        self._has_begun = True
        if (best := self._recalled()) is not None:
            self._steps.want(best)
        elif self._expect_s is not None and self._is_short:
            self._give_up(f"a run of {self._expect_s:.0f} s is too short to find faster clocks")
        else:
            self._measure_present()

    def _measure_present(self) -> None:
        present = OperatingPoint(ROW, _on_grid(self._search.settings, self._limiter.knobs))
        self._steps.want(present, held=True)

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
            best, self._steps = None, self._new_steps()
        return best

    def _judge(self) -> None:
        steps = self._steps
        if steps.is_held and self._limiter.knobs != steps.current.knobs:  # follow it down
            self._measure_present()
            return
        is_brief = steps.probing and not steps.is_held and self._search.is_brief(steps.current)
        probe_s = max(steps.window_s * (1 if is_brief else WINDOWS), LEAST_S)
        steps.judge(steps=self._least, probe_s=probe_s, accept=self._accept)

    def _accept(self, measured: Measured) -> bool:
        """Note what is about to be told to the search, if it is enough."""
        if measured.steps < measured.needed:
            if measured.needed * measured.step_s > LONGEST_S:
                text = f"the steps are too uneven to compare clocks by: they differ by {100 * measured.uneven:.0f} %"
                self._give_up(text)
            return False
        choice, steps = self.choice, self._steps
        if not steps.cells:
            if choice.remembered and choice.step_s and abs(measured.step_s / choice.step_s - 1) > CHANGED:
                self._say("the program's steps take another time than in the earlier run: choosing again")
                self._search = steps.search = ClockSearch(self._device, self._limit)
                choice = self.choice = Choice()
            if self._expect_s is not None:
                left_s = self._expect_s - (self._device.now_s() - self._began_s)
                self._search.samples_left = max(0.0, left_s / measured.step_s)
        if choice.first_s is None:
            choice.first, choice.first_s = dict(steps.current.knobs), measured.step_s
        if steps.probing:
            choice.probes += 1
            self._search.probes = choice.probes
            self._probed.append((measured.steps, measured.seconds))
        return True

    # ------------------------------------------------------------------------------------------------------- choosing

    def _changed(self, point: OperatingPoint, reason: str) -> None:
        if self._steps.probing:
            return
        if self._search.best() is None:
            self._give_up("no measured setting stays below the cap")
            return
        self.choice.reason = self._search.reason
        self._settle_for(point)

    def _settle_for(self, best: OperatingPoint) -> None:
        """Note the choice."""
        choice, others = self.choice, list(best.knobs)[1:]
        is_new = choice.chosen != dict(best.knobs)
        choice.chosen, choice.step_s = dict(best.knobs), self._search.step_s(best)
        top = self._search.settings[-1]
        alone = self._search.fastest(lambda knobs: all(knobs[name] == top[name] for name in others))
        if alone is not None:
            choice.gpu_alone_s = self._search.step_s(alone)
            choice.gpu_alone_is_measured = alone in self._steps.cells
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
        best = self._search.best() if self._steps.cells else None
        return None if best is None else best.knobs

    def outcome(self) -> Choice:
        """The choice with what it has cost and saved so far."""
        choice = self.choice
        choice.rounds = self._rounds
        if (best := self._search.best() if self._steps.cells else None) is not None and not self.is_over:
            if choice.chosen is None:
                choice.reason = choice.reason or "the search had not ended"
                self._settle_for(best)
            elif not self._steps.probing:
                choice.step_s = self._search.step_s(self._steps.wanted)
        if choice.step_s is not None and choice.first_s is not None:
            choice.search_s = sum(seconds - rounds * choice.step_s for rounds, seconds in self._probed)
            choice.saved_s = (self._rounds - self._held_from) * (choice.first_s - choice.step_s)
        return choice

    def state_dict(self) -> dict[str, Any] | None:
        """State for the next run of the same program; None if nothing was measured."""
        if self.best is None:
            return None
        return {"search": self._search.state_dict(), "choice": self.outcome().as_json()}


def _on_grid(settings: Sequence[Knobs], knobs: Knobs) -> Knobs:
    """The highest of these settings that is not above ``knobs`` in any knob, or the lowest."""
    values = {
        name: max((one[name] for one in settings if one[name] <= value), default=math.nan)
        for name, value in knobs.items()
    }
    return Knobs({name: settings[0][name] if math.isnan(value) else value for name, value in values.items()})
