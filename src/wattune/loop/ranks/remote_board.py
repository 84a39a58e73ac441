"""Boards of ranks on other computers: each rank opens its own, and rank 0 reads and sets it through the job's store.

A board is restored by its own rank: when rank 0 says so, when the connection to rank 0 is lost, and by the watcher of a
group (``devices.group``) if the rank itself is killed.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

from wattune.devices.base import Conditions, Setting
from wattune.devices.group import open_group
from wattune.devices.real_time import RealDevice
from wattune.errors import DeviceError, SensorError, WattuneError
from wattune.loop.ranks.channel import LEADER, RANK_TIMEOUT_S, Channel, RankLost
from wattune.point import Knobs

ANSWER_WITHIN_S = 2.0
"""Longest wait for an answer of a board on another computer."""

LOOK_EVERY_S = 0.02
"""Seconds from one look for a call of rank 0 to the next."""

DESCRIBED = ("name", "mode", "knobs", "sensor", "memory_bytes", "data_types", "shares_memory", "supply")
"""Attributes of a board that rank 0 has to know."""


class ServedBoard:
    """This rank's board, which rank 0 reads and sets. Raises: InputError, DeviceError if it cannot be opened."""

    def __init__(self, channel: Channel, spec: str, *, seed: int):
        self._channel = channel
        self._group = open_group([spec], seed=seed)  # of one: it brings the watcher
        self._stack = ExitStack()
        self._setting: Setting | None = None
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="wattune-board", daemon=True)
        self._thread.start()
        board = self._group.members[0]
        described = {name: getattr(board, name) for name in DESCRIBED}
        channel.send(f"board/{channel.rank}", {**described, "_present": board.current()})

    def close(self, *, waits: bool) -> None:
        """Restore the board, once rank 0 needs it no more if this ``waits``. Raises: DeviceError."""
        while waits and self._channel.has(LEADER):
            time.sleep(LOOK_EVERY_S)
        self._is_ending.set()
        self._thread.join()
        try:
            self._stack.close()
        finally:
            self._group.close()

    def _serve(self) -> None:
        rank = self._channel.rank
        while not self._is_ending.wait(LOOK_EVERY_S):
            try:
                call = self._channel.received(f"call/{rank}")
            except RankLost:
                return
            if call is None:
                continue
            number, what, *knobs = call
            try:
                self._channel.send(f"reply/{rank}", (number, self._answer(what, *knobs)))
            except WattuneError as error:
                self._channel.send(f"reply/{rank}", (number, str(error)))

    def _answer(self, what: str, knobs: Knobs | None = None) -> Any:
        device = self._group
        if what == "read":
            return float(device.power_w()), device.conditions(), device.clock_mhz()
        if knobs is None:
            self._setting = None
            self._stack.close()
        elif self._setting is None:
            self._setting = self._stack.enter_context(device.at(knobs))
        else:
            self._setting.change(knobs)
        return None


class RemoteBoard(RealDevice):
    """Another rank's board, on rank 0. A rank that is gone has restored its board, and is not asked to.

    Raises: DeviceError if the rank cannot open it.
    """

    kind = "measured"
    _present: Knobs | None

    def __init__(self, channel: Channel, rank: int):
        described = channel.receive(f"board/{rank}", rank, RANK_TIMEOUT_S)
        if isinstance(described, str):
            raise DeviceError(f"{channel.names[rank]}: {described}")
        vars(self).update(described)
        self._channel, self._rank = channel, rank
        self._calling, self._number = threading.Lock(), 0
        self._conditions = Conditions()
        self._clock_now_mhz: float | None = None
        super().__init__()

    def current(self) -> Knobs | None:
        """The setting as it was last known."""
        return self._present

    def conditions(self) -> Conditions:
        """Temperature and throttling at the last reading."""
        return self._conditions

    def clock_mhz(self) -> float | None:
        """The clock at the last reading."""
        return self._clock_now_mhz

    def _call(self, *call: Any) -> Any:
        with self._calling:
            self._number += 1
            self._channel.send(f"call/{self._rank}", (self._number, *call))
            number, answer = 0, None
            while number != self._number:  # an earlier one is late, of a call that was given up
                number, answer = self._channel.receive(f"reply/{self._rank}", self._rank, ANSWER_WITHIN_S)
        if isinstance(answer, str):
            raise DeviceError(answer)
        return answer

    def _read_w(self) -> float:
        try:
            power_w, self._conditions, self._clock_now_mhz = self._call("read")
        except DeviceError as error:
            raise SensorError(str(error)) from None
        return float(power_w)

    def _apply(self, knobs: Knobs) -> None:
        self._call("set", knobs)
        self._present = knobs

    def _snapshot(self) -> object:
        return self._present

    def _restore(self, snapshot: object) -> None:
        if self._channel.has(self._rank):
            self._call("restore")
        assert snapshot is None or isinstance(snapshot, Knobs)
        self._present = snapshot
