"""A group of real boards: readings of all of them at the same time, and a watcher in case this process is killed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from wattune.devices.base import Device
from wattune.devices.group.device_group import DeviceGroup
from wattune.devices.group.parts import label, named
from wattune.devices.group.watcher import Watcher
from wattune.errors import SensorError, WattuneError
from wattune.point import Knobs
from wattune.records import StepWork

ANSWER_WITHIN_S = 1.0
"""Longest wait for the readings of all members; the slow one is named then."""


class _Reader:
    """A thread that reads one member's sensor when asked; while a reading hangs, it is not asked again."""

    def __init__(self, member: Device):
        self._member = member
        self._asked: queue.SimpleQueue[queue.SimpleQueue[float | Exception] | None] = queue.SimpleQueue()
        self.is_busy = False
        threading.Thread(target=self._serve, name="wattune-reading", daemon=True).start()

    def ask(self) -> queue.SimpleQueue[float | Exception]:
        """Ask for a reading; it, or the error, comes in the queue."""
        self.is_busy = True
        answer: queue.SimpleQueue[float | Exception] = queue.SimpleQueue()
        self._asked.put(answer)
        return answer

    def end(self) -> None:
        """Let the thread end."""
        self._asked.put(None)

    def _serve(self) -> None:
        while (answer := self._asked.get()) is not None:
            result: float | Exception
            try:
                result = self._member.power_w()
            except Exception as error:  # noqa: BLE001 - raised by the thread that asked
                result = error
            self.is_busy = False
            answer.put(result)


class RealGroup(DeviceGroup):
    """Boards that training runs on, each under a process of its own; this process alone controls all of them.

    The members' own computing times come from outside, by ``computed`` after each step. Inside ``at``, another process
    watches this one and restores this computer's boards if it is killed.
    """

    executes_steps = True

    def __init__(self, members: Sequence[Device], pools: Sequence[int]):
        super().__init__(members, pools)
        self._readers = [_Reader(member) for member in members]
        self._reading = threading.Lock()
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
            for rank, reader in enumerate(self._readers):
                if reader.is_busy:
                    raise self._silence(rank)
            answers = [reader.ask() for reader in self._readers]
            until_s = time.monotonic() + ANSWER_WITHIN_S
            return self._pooled([self._answer(r, own, until_s) for r, own in enumerate(answers)])

    def _answer(self, rank: int, answer: queue.SimpleQueue[float | Exception], until_s: float) -> float:
        try:
            result = answer.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            raise self._silence(rank) from None
        if isinstance(result, WattuneError):
            with named(rank, self.members[rank]):
                raise result
        if isinstance(result, Exception):
            raise result
        return result

    def _silence(self, rank: int) -> SensorError:
        member = self.members[rank]
        return SensorError(f"{label(rank, member)}: {member.sensor.rail} does not answer")

    def _apply(self, knobs: Knobs) -> None:
        self._watcher.changed()
        super()._apply(knobs)

    def _restore(self, snapshot: object) -> None:
        super()._restore(snapshot)
        if self._set is None:
            self._watcher.restored()

    def close(self) -> None:
        """Release all members. Raises: DeviceError, after doing as much as possible."""
        for reader in self._readers:
            reader.end()
        try:
            super().close()
        finally:
            self._watcher.close()
