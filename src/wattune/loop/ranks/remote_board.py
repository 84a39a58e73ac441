"""Boards of the other ranks: each rank opens, guards and restores its own, and rank 0 reads and sets it.

Calls travel through the job's store. A setting counts once its rank has confirmed it, so that a message that is late
never leaves two boards with the same watts. A board is restored by its own rank: when rank 0 says so, when the session
ends or rank 0 is lost, and by a watcher if the rank itself is killed.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices.base import Conditions, Device, Setting
from wattune.devices.group import open_member
from wattune.devices.real_time import RealDevice
from wattune.devices.watch import Watcher
from wattune.errors import DeviceError, SensorError, WattuneError
from wattune.loop.ranks.channel import LEADER, RANK_TIMEOUT_S, SILENT_AFTER_S, Channel, RankLost
from wattune.point import Knobs

LOOK_EVERY_S = 0.01
"""Seconds from one look for a call of rank 0 to the next."""

ENDED_WITHIN_S = 2.0
"""Longest wait for a call under way when the board is restored: a sensor or the store may never answer."""

CALLS = ("read", "set")
"""Kinds of calls, each with a thread of its own: a sensor that hangs must not delay a lower setting."""

DESCRIBED = Device.__annotations__.keys() - {"replayed_table", "controller", "group", "leftover"}
"""Attributes of a board that rank 0 has to know: all but those that its own rank alone can use."""


class ServedBoard:
    """This rank's board, which rank 0 reads and sets. Raises: InputError, DeviceError if it cannot be opened."""

    def __init__(self, channel: Channel, spec: str, *, seed: int):
        self._channel = channel
        self._board = open_member(spec, seed=seed)
        self._watcher = Watcher([] if self._board.leftover is None else [self._board.leftover])
        self._at: AbstractContextManager[Setting] | None = None
        self._setting: Setting | None = None
        self._is_ending = threading.Event()
        described = {name: getattr(self._board, name) for name in DESCRIBED}
        channel.send(f"board/{channel.rank}", {**described, "_present": self._board.current()})
        self._threads = [threading.Thread(target=self._serve, args=(kind,), daemon=True) for kind in CALLS]
        for thread in self._threads:
            thread.start()

    def close(self, *, waits: bool) -> None:
        """Restore the board, once rank 0 needs it no more if this ``waits``. Raises: DeviceError."""
        while waits and self._channel.has(LEADER):
            time.sleep(LOOK_EVERY_S)
        self._is_ending.set()
        for thread in self._threads:
            thread.join(ENDED_WITHIN_S)
        try:
            self._restore()
        finally:
            try:
                self._board.close()
            finally:
                is_setting = self._threads[CALLS.index("set")].is_alive()  # it may still change the board
                self._watcher.close(is_restored=self._setting is None and not is_setting)

    def _restore(self) -> None:
        at, self._at = self._at, None
        if at is not None:
            at.__exit__(None, None, None)
            self._setting = None  # not after a failure: the watcher then tries again

    def _serve(self, kind: str) -> None:
        rank = self._channel.rank
        while not self._is_ending.wait(LOOK_EVERY_S):
            try:
                call = self._channel.received(f"{kind}/{rank}")
            except RankLost:
                return
            if call is None:
                continue
            number, value = call
            try:
                answer = self._answer(kind, value)
            except WattuneError as error:
                answer = str(error)
            except Exception as error:  # noqa: BLE001 - rank 0 would wait for an answer, and the next call too
                answer = f"{type(error).__name__}: {error}"
            self._channel.send(f"{kind}-reply/{rank}", (number, answer))

    def _answer(self, kind: str, value: Knobs | SensorLimit | None) -> Any:
        """Read or set the board, arm its guard, or restore the board for None."""
        board = self._board
        if kind == "read":
            watts = float(board.power_w())
            events = [(event.kind, event.text) for event in board.events()]
            return watts, board.conditions(), board.clock_mhz(), board.set_cap_w, events
        if isinstance(value, SensorLimit):
            board.arm_guard(value)
        elif value is None:
            self._restore()
        elif self._setting is None:
            self._watcher.start()
            at = board.at(value)
            self._setting, self._at = at.__enter__(), at
            if self._is_ending.is_set():  # too late: ``close`` waits for no call without end
                self._restore()
        else:
            self._setting.change(value)
        return None


class RemoteBoard(RealDevice):
    """Another rank's board, on rank 0. A rank that is gone has restored its board, and is not asked to.

    Raises: DeviceError if the rank cannot open it.
    """

    _present: Knobs | None

    def __init__(self, channel: Channel, rank: int):
        described = channel.receive(f"board/{rank}", rank, RANK_TIMEOUT_S)
        if isinstance(described, str):
            raise DeviceError(f"{channel.peers[rank].name}: {described}")
        vars(self).update(described)
        self._channel, self._rank = channel, rank
        self._calls = {kind: (threading.Lock(), itertools.count()) for kind in CALLS}
        self._conditions = Conditions()
        self._clock_now_mhz: float | None = None
        self._set_cap_w: float | None = None
        self._is_set = False
        super().__init__()

    def current(self) -> Knobs | None:
        """The setting that its rank has confirmed; None while that is not known."""
        return self._present

    def conditions(self) -> Conditions:
        """Temperature and throttling at the last reading."""
        return self._conditions

    def clock_mhz(self) -> float | None:
        """The clock at the last reading."""
        return self._clock_now_mhz

    @property
    def set_cap_w(self) -> float | None:
        """The cap that another client of its agent set, as of the last reading; None without one."""
        return self._set_cap_w

    def arm_guard(self, limit: SensorLimit) -> None:
        """Arm the guard of the agent on its computer with this limit. Raises: DeviceError."""
        self._call("set", limit)

    def _call(self, kind: str, value: Any = None) -> Any:
        lock, numbers = self._calls[kind]
        with lock:
            sent, number, answer = next(numbers), None, None
            self._channel.send(f"{kind}/{self._rank}", (sent, value))
            while number != sent:  # an earlier one is late, of a call that was given up
                number, answer = self._channel.receive(f"{kind}-reply/{self._rank}", self._rank, SILENT_AFTER_S)
        if isinstance(answer, str):
            raise DeviceError(answer)
        return answer

    def _read_w(self) -> float:
        try:
            power_w, self._conditions, self._clock_now_mhz, self._set_cap_w, events = self._call("read")
        except DeviceError as error:
            raise SensorError(str(error)) from None
        for kind, text in events:
            self._note(kind, text)
        return float(power_w)

    def _apply(self, knobs: Knobs) -> None:
        # Until the answer the board may be at either setting: a group then sets it before any other board may rise.
        self._present = None
        self._call("set", knobs)
        self._present, self._is_set = knobs, True

    def _snapshot(self) -> object:
        return self._is_set, self._present

    def _restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, tuple)
        was_set, before = snapshot
        if self._channel.has(self._rank):
            with suppress(RankLost):  # a rank that leaves restores its board itself
                self._call("set", before if was_set else None)
        self._is_set, self._present = snapshot
