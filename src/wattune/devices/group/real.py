"""A group of real boards: readings of all of them at the same time, and a watcher in case this process is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager

from wattune.devices.base import Device
from wattune.devices.group.device_group import DeviceGroup
from wattune.devices.group.parts import PoolReading, named
from wattune.devices.watch import Watcher
from wattune.errors import SensorError
from wattune.point import Knobs
from wattune.records import StepWork

ANSWER_WITHIN_S = 1.0
"""Longest wait for the readings of all members; the slow one is named then."""


class RealGroup(DeviceGroup):
    """Boards that training runs on, each under a process of its own. This process decides for all of them; another
    rank sets its board itself, as this one tells it.

    The members' own computing times come from outside, by ``computed`` after each step. Inside ``at``, another process
    watches this one and restores this computer's boards if it is killed.
    """

    executes_steps = True

    def __init__(self, members: Sequence[Device], pools: Sequence[int]):
        super().__init__(members, pools)
        self._readings: dict[Device, Future[float]] = {}  # the latest of each member, which may still be to come
        self._reading = threading.Lock()
        self._is_restored = True
        self._watcher = Watcher([member.leftover for member in members if member.leftover is not None])

    def now_s(self) -> float:
        """Seconds since the first member was opened."""
        return self.members[0].now_s()

    def wait(self, seconds: float) -> None:
        """Let time pass. Raises: InputError for a negative time."""
        self.members[0].wait(seconds)

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        """Surround one step. Raises: InputError for a data type that a chip lacks."""
        with ExitStack() as stack:
            for rank, member in enumerate(self.members):
                with named(rank, member):
                    stack.enter_context(member.step(work))
            self._begin_step(work)
            yield

    def power_w(self) -> float:
        """Readings of all members together, each taken now. Raises: SensorError that names the member."""
        with self._reading:
            for member in self.members:
                if member not in self._readings or self._readings[member].done():  # one that hangs is not asked again
                    self._readings[member] = Future()
                    reading = threading.Thread(target=_read, args=(member, self._readings[member]), daemon=True)
                    reading.start()
            wait(self._readings.values(), ANSWER_WITHIN_S)
            return PoolReading.of([self._answer(rank) for rank in range(len(self.members))], self.pools)

    def _answer(self, rank: int) -> float:
        member = self.members[rank]
        with named(rank, member):
            if not self._readings[member].done():
                raise SensorError(f"{member.sensor.rail} does not answer")
            return self._readings[member].result()

    def _apply(self, knobs: Knobs) -> None:
        self._watcher.start()
        self._is_restored = False
        super()._apply(knobs)

    def _restore(self, snapshot: object) -> None:
        super()._restore(snapshot)
        self._is_restored = self._set is None

    def close(self) -> None:
        """Release all members. Raises: DeviceError, after doing as much as possible."""
        try:
            super().close()
        finally:
            self._watcher.close(is_restored=self._is_restored)


def _read(member: Device, reading: Future[float]) -> None:
    try:
        reading.set_result(member.power_w())
    except Exception as error:  # noqa: BLE001 - raised by the thread that asked
        reading.set_exception(error)
