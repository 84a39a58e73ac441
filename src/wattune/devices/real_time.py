"""Devices on real time: the common part of all real boards."""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wattune.devices.base import Device
from wattune.errors import DeviceError, DeviceUnavailable, InputError, SensorError
from wattune.point import Knobs
from wattune.records import BoardEvent, StepWork
from wattune_agent import errors as agent
from wattune_agent.readings import Stuck
from wattune_agent.tree import Tree

PAUSE_S = 1.0
"""Pause between two steps from which on the second one counts as a change of the load."""


class RealDevice(Device):
    """A device that training runs on: time is wall-clock time, and a step takes as long as it takes.

    A reading that is not a positive number is a SensorError. A sensor that shows the same value although clock or
    load changed is an event.
    """

    executes_steps = True

    def __init__(self) -> None:
        self._began_s = self._clock_s()
        self._noticing = threading.Lock()
        self._events: list[BoardEvent] = []
        self._stuck = Stuck(self.sensor.period_s)
        self._work: StepWork | None = None
        self._ended_s = -math.inf

    # ------------------------------------------------------------------------------------------------ for backends

    @abstractmethod
    def _read_w(self) -> float:
        """The sensor's present reading of the whole board, in watts. Raises: SensorError."""

    def _clock_s(self) -> float:
        return time.monotonic()

    def _note(self, kind: str, text: str) -> None:
        """Keep an event for the next ``events``."""
        event = BoardEvent(time_s=max(0.0, self.now_s()), kind=kind, text=text)
        with self._noticing:
            self._events.append(event)

    # ---------------------------------------------------------------------------------------------- of the interface

    def now_s(self) -> float:
        """Seconds since the device was opened."""
        return self._clock_s() - self._began_s

    def wait(self, seconds: float) -> None:
        """Sleep. Raises: InputError for a negative time."""
        if not 0 <= seconds < math.inf:
            raise InputError("cannot wait for", value=seconds, allowed="0 seconds or more")
        time.sleep(seconds)

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        """Surround one step. Raises: InputError for a data type that the chip lacks."""
        if work is not self._work:
            if work.data_type not in self.data_types:
                allowed = ", ".join(sorted(self.data_types))
                raise InputError(f"{self.name} cannot compute in", value=work.data_type, allowed=allowed)
            self._work = work
            self._stuck.change()
        elif self.now_s() - self._ended_s > PAUSE_S:
            self._stuck.change()
        try:
            yield
        finally:
            self._ended_s = self.now_s()

    def power_w(self) -> float:
        """The sensor's present reading, in watts. Raises: SensorError."""
        power_w = self._read_w()
        if not 0 < power_w < math.inf:
            raise SensorError(f"{self.name}: the sensor {self.sensor.rail} reads {power_w:g} W")
        now_s = self.now_s()
        with self._noticing:
            stuck = self._stuck.notice(now_s, power_w)
        if stuck is not None:
            self._note("stuck sensor", f"{self.sensor.rail} {stuck}")
        return power_w

    def events(self) -> tuple[BoardEvent, ...]:
        """Events since the last call."""
        with self._noticing:
            events, self._events = tuple(self._events), []
        return events


class UncontrolledDevice(RealDevice):
    """A real device of which this process can set nothing."""

    def current(self) -> None:
        """None: nothing can be set."""
        return None

    def _apply(self, knobs: Knobs) -> None:
        raise AssertionError("has no knobs")

    def _snapshot(self) -> object:
        return None

    def _restore(self, snapshot: object) -> None:
        """Nothing was set."""


@contextmanager
def mapped() -> Iterator[None]:
    """Raise the agent's errors as wattune's own."""
    try:
        yield
    except agent.BadRequest as error:
        raise InputError(str(error)) from error
    except agent.NoReading as error:
        raise SensorError(str(error)) from error
    except (agent.NotThere, agent.Forbidden, agent.Busy, agent.Full, agent.NotKept, agent.Gone) as error:
        raise DeviceUnavailable(str(error)) from error
    except agent.AgentError as error:
        raise DeviceError(str(error)) from error


@contextmanager
def unmapped() -> Iterator[None]:
    """Raise wattune's errors as the agent's: the reverse of ``mapped``."""
    try:
        yield
    except SensorError as error:
        raise agent.NoReading(str(error)) from error
    except InputError as error:
        raise agent.BadRequest(str(error)) from error
    except DeviceUnavailable as error:
        raise agent.NotThere(str(error)) from error
    except DeviceError as error:
        raise agent.FileFailed(str(error)) from error


def told(read: Callable[[Tree], float | None], tree: Tree) -> float | None:
    """Value that ``read`` finds in the tree; None if the tree does not have it."""
    try:
        number = read(tree)
    except agent.AgentError:
        return None
    return None if number is None else float(number)
