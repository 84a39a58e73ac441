"""Devices on virtual time: the common part of simulated and recorded boards.

Time passes in ``step`` and ``wait`` only, from one event to the next. Every event lies on a grid of the device's time
(whole multiples of a period), so that everything after an instant depends on the state at that instant alone and
a resumed training run continues exactly as before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from wattune.devices.base import Device
from wattune.errors import InputError
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


class VirtualDevice(Device):
    """A device whose time passes when its work is done, without a real wait.

    Calls of ``every`` happen at their virtual instants, also in the middle of a step, and may change the setting
    there: the rest of the step then takes the time of the new one. An exception in such a call is raised by the
    ``step`` or ``wait`` in progress, which then ends at that instant.
    """

    executes_steps = False

    def __init__(self) -> None:
        self._now_s = 0.0
        self._tasks: list[_Task] = []

    # ------------------------------------------------------------------------------------------------ for backends

    @abstractmethod
    def _check(self, work: StepWork) -> None:
        """Check that the device can do the work. Raises: InputError, OutOfDeviceMemory."""

    @abstractmethod
    def _pieces(self, work: StepWork) -> tuple[int, Callable[[int], Piece]]:
        """Number of pieces of a step, and a call that gives one of them as it is at present, made after each event."""

    @abstractmethod
    def _at_rest(self) -> Piece:
        """A second without work, at its present power."""

    def _next_event_s(self, power_w: float) -> float:
        """Time of the next event at this power, other than calls of ``every``; later than now."""
        return NEVER

    def _advance(self, until_s: float, power_w: float) -> None:
        """Let time pass at constant power."""
        self._now_s = until_s

    def _handle_events(self) -> None:
        """Handle the events of this instant, before the calls of ``every``."""

    # ---------------------------------------------------------------------------------------------- of the interface

    def now_s(self) -> float:
        """Virtual seconds since the device was opened."""
        return self._now_s

    def clock_mhz(self) -> float | None:
        """The clock that is set: it takes effect at once."""
        knobs = self.current()
        return None if knobs is None else knobs.get("clock_mhz")

    def wait(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass at rest. Raises: InputError for a negative time."""
        if not 0 <= seconds < NEVER:
            raise InputError("cannot wait for", value=seconds, allowed="0 seconds or more")
        self._pass(1, lambda _: Piece(seconds, self._at_rest().power_w))

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        """Surround one step; its time passes when the context ends normally."""
        self._check(work)
        yield
        self._pass(*self._pieces(work))

    @contextmanager
    def every(self, period_s: float, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` at every multiple of ``period_s`` of virtual time, from the next one on, while inside."""
        task = _Task(period_s, call, self._now_s)
        self._tasks.append(task)
        try:
            yield
        finally:
            self._tasks.remove(task)

    # ------------------------------------------------------------------------------------------------------- passing

    def _pass(self, count: int, piece: Callable[[int], Piece]) -> None:
        for index in range(count):
            left = 1.0
            while left > 0:
                seconds, power_w = piece(index)
                begin_s = self._now_s
                end_s = begin_s + left * seconds
                event_s = min(self._next_event_s(power_w), min((t.due_s for t in self._tasks), default=NEVER))
                if event_s > end_s:
                    self._advance(end_s, power_w)
                    break
                self._advance(event_s, power_w)
                left = left - (event_s - begin_s) / seconds if event_s < end_s else 0.0
                self._handle_events()
                self._call_tasks()

    def _call_tasks(self) -> None:
        for task in list(self._tasks):
            if task.due_s <= self._now_s:
                task.due_s = next_multiple(self._now_s, task.period_s)
                task.call()


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
