"""Devices on virtual time: the common part of simulated and recorded boards, and of groups of them.

Time passes in ``step`` and ``wait`` only, from one event to the next. Every event lies on a grid of the device's time
(whole multiples of a period), so that everything after an instant depends on the state at that instant alone and
a resumed training run continues exactly as before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from wattune.devices.base import Device
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.records import StepWork

NEVER = float("inf")


class Piece(NamedTuple):
    """A stretch of time with constant power."""

    seconds: float
    power_w: float


class _Task:
    """A call that is due at each multiple of its period."""

    def __init__(self, period_s: float, call: Callable[[], None], now_s: float):
        self.period_s = period_s
        self.call = call
        self.due_s = next_multiple(now_s, period_s)


class Course:
    """The way of one device through its pieces of time: ``index`` is the present one, of which ``left`` is left."""

    __slots__ = ("count", "index", "left", "piece")

    def __init__(self, count: int, piece: Callable[[int], Piece]):
        self.count, self.piece = count, piece
        self.index, self.left = 0, 1.0

    def go(self, share: float) -> None:
        """Take this share of the present piece; what is left of it may be nothing."""
        self.left -= share
        if self.left <= 0:
            self.index, self.left = self.index + 1, 1.0

    @property
    def is_done(self) -> bool:
        """True at the end of the last piece."""
        return self.index >= self.count


class VirtualTime(Device):
    """Time that passes when the work of one device, or of several together, is done, without a real wait.

    Calls of ``every`` happen at their virtual instants, also in the middle of a step, and may change the setting
    there: the rest of the step then takes the time of the new one. An exception in such a call is raised by the
    ``step`` or ``wait`` in progress, which then ends at that instant.
    """

    executes_steps = False

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    # ------------------------------------------------------------------------------------------------ for backends

    @property
    @abstractmethod
    def _lanes(self) -> Sequence[VirtualDevice]:
        """The devices that work at the same time: each goes its own course, and none begins the next one alone."""

    @abstractmethod
    def _check(self, work: StepWork) -> None:
        """Check that the device can do the work. Raises: InputError, OutOfDeviceMemory."""

    def _next_look_s(self) -> float:
        """Time of the next instant at which all lanes are looked at together, other than calls of ``every``."""
        return NEVER

    def _look(self) -> None:
        """Look at all lanes, at an instant of ``_next_look_s``."""

    def _end_step(self, work: StepWork, seconds: Sequence[float]) -> None:
        """Handle the end of a step; ``seconds``: for how long each lane has worked."""

    # ---------------------------------------------------------------------------------------------- of the interface

    def now_s(self) -> float:
        """Virtual seconds since the device was opened."""
        return self._lanes[0]._now_s

    def wait(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass at rest. Raises: InputError for a negative time."""
        if not 0 <= seconds < NEVER:
            raise InputError("cannot wait for", value=seconds, allowed="0 seconds or more")
        self._pass([Course(1, partial(lane._rest_piece, seconds)) for lane in self._lanes])

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        """Surround one step; its time passes when the context ends normally."""
        self._check(work)
        yield
        courses = [Course(*lane._pieces(work)) for lane in self._lanes]
        self._end_step(work, self._pass(courses))

    @contextmanager
    def every(self, period_s: float, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` at every multiple of ``period_s`` of virtual time, from the next one on, while inside."""
        task = _Task(period_s, call, self.now_s())
        self._tasks.append(task)
        try:
            yield
        finally:
            self._tasks.remove(task)

    # ------------------------------------------------------------------------------------------------------- passing

    def _pass(self, courses: Sequence[Course]) -> list[float]:
        """Let each lane go its course; one that is done earlier rests. Returns: seconds of each lane's own course.

        Nothing but calls of ``every`` makes lanes depend on each other, so each goes alone up to the next of them.
        """
        lanes, begin_s = self._lanes, self.now_s()
        ends_s: list[float | None] = [None] * len(lanes)
        while True:
            due_s = min(self._next_look_s(), min((task.due_s for task in self._tasks), default=NEVER))
            for index, (lane, course) in enumerate(zip(lanes, courses, strict=True)):
                if ends_s[index] is None and lane._go(course, due_s):
                    ends_s[index] = lane._now_s
            done_s = [end_s for end_s in ends_s if end_s is not None]
            is_done = len(done_s) == len(lanes)
            if len(lanes) > 1:
                until_s = max(done_s) if is_done else due_s
                for lane in lanes:
                    lane._rest_until(until_s)
            if self.now_s() >= due_s:
                self._look()
                self._call_tasks()
            if is_done:
                return [end_s - begin_s for end_s in done_s]

    def _call_tasks(self) -> None:
        now_s = self.now_s()
        for task in list(self._tasks):
            if task.due_s <= now_s:
                task.due_s = next_multiple(now_s, task.period_s)
                task.call()


class VirtualDevice(VirtualTime):
    """One device whose time passes when its work is done."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    @property
    def _lanes(self) -> Sequence[VirtualDevice]:
        return (self,)

    # ------------------------------------------------------------------------------------------------ for backends

    @abstractmethod
    def _pieces(self, work: StepWork) -> tuple[int, Callable[[int], Piece]]:
        """Number of pieces of a step, and a call that gives one of them as it is at present, made after each event."""

    @abstractmethod
    def _at_rest(self) -> Piece:
        """A second without work, at its present power."""

    def _next_event_s(self, power_w: float) -> float:
        """Time of the device's own next event at this power; later than now."""
        return NEVER

    def _advance(self, until_s: float, power_w: float) -> None:
        """Let time pass at constant power."""
        self._now_s = until_s

    def _handle_events(self) -> None:
        """Handle the events of this instant, before the calls of ``every``."""

    def _snapshot(self) -> object:
        return self.current()

    def _restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, Knobs)
        self._apply(snapshot)

    # ---------------------------------------------------------------------------------------------- of the interface

    def now_s(self) -> float:
        """Virtual seconds since the device was opened."""
        return self._now_s

    def clock_mhz(self) -> float | None:
        """The clock that is set: it takes effect at once."""
        knobs = self.current()
        return None if knobs is None else knobs.get("clock_mhz")

    # ------------------------------------------------------------------------------------------------------- passing

    def _rest_piece(self, seconds: float, _: int) -> Piece:
        return Piece(seconds, self._at_rest().power_w)

    def _go(self, course: Course, until_s: float) -> bool:
        """Go this course up to its end or ``until_s``. Returns: True at its end."""
        while not course.is_done:
            seconds, power_w = course.piece(course.index)
            begin_s = self._now_s
            end_s = begin_s + course.left * seconds
            event_s = min(self._next_event_s(power_w), until_s)
            if event_s > end_s:
                self._advance(end_s, power_w)
                course.go(1.0)
                continue
            self._advance(event_s, power_w)
            course.go((event_s - begin_s) / seconds if event_s < end_s else 1.0)
            self._handle_events()
            if event_s >= until_s:
                break
        return course.is_done

    def _rest_until(self, until_s: float) -> None:
        while self._now_s < until_s:
            power_w = self._at_rest().power_w
            self._advance(min(self._next_event_s(power_w), until_s), power_w)
            self._handle_events()


def multiples(time_s: float, period_s: float) -> int:
    """Number of whole periods that have passed; exact at the multiples themselves, as rounded to floats."""
    count = int(time_s // period_s)
    while (count + 1) * period_s <= time_s:
        count += 1
    while count * period_s > time_s:
        count -= 1
    return count


def next_multiple(time_s: float, period_s: float) -> float:
    """The first multiple of the period after ``time_s``."""
    return (multiples(time_s, period_s) + 1) * period_s
