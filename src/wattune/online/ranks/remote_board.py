"""Boards of ranks on other computers: each rank opens its own, and rank 0 reads and sets it through the job's channel.

A board is restored by its own rank: when rank 0 says so, when the connection to rank 0 is lost, and by the watcher of a
group (``devices.group``) if the rank itself is killed.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from wattune.devices import Device
from wattune.devices.base import Conditions, Knob, Sensor, Setting
from wattune.devices.group import open_group
from wattune.devices.real_time import RealDevice
from wattune.errors import DeviceError, SensorError, WattuneError
from wattune.online.ranks.channel import LEADER, RANK_TIMEOUT_S, Channel
from wattune.point import Knobs
from wattune.records import Supply

ANSWER_WITHIN_S = 2.0
"""Longest wait for an answer of a board on another computer."""


class ServedBoard:
    """This rank's board, which rank 0 reads and sets. Raises: InputError, DeviceError if it cannot be opened."""

    def __init__(self, channel: Channel, spec: str, *, seed: int):
        self._channel = channel
        self._group = open_group([spec], seed=seed)  # of one: it brings the watcher
        self._stack = ExitStack()
        self._setting: Setting | None = None
        self._calls = channel.inbox(LEADER, "call")
        self._thread = threading.Thread(target=self._serve, name="wattune-board", daemon=True)
        self._thread.start()
        channel.send({"board": _description(self._group.members[0])})

    def close(self, *, waits: bool) -> None:
        """Restore the board, once rank 0 needs it no more if this ``waits``. Raises: DeviceError."""
        while waits and self._channel.has(LEADER):
            time.sleep(0.02)
        self._calls.put(None)
        self._thread.join()
        try:
            self._stack.close()
        finally:
            self._group.close()

    def _serve(self) -> None:
        while (message := self._calls.get()) is not None:
            try:
                answer = self._answer(message)
            except WattuneError as error:
                answer = {"error": str(error)}
            self._channel.send({"reply": message["call"], **answer})

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        device = self._group
        if message["what"] == "read":
            power_w, conditions = float(device.power_w()), device.conditions()
            return {
                "power_w": power_w,
                "temperature_c": conditions.temperature_c,
                "throttled": conditions.throttled,
                "clock_mhz": device.clock_mhz(),
            }
        if message["what"] == "restore":
            self._setting = None
            self._stack.close()
        elif self._setting is None:
            self._setting = self._stack.enter_context(device.at(Knobs(message["knobs"])))
        else:
            self._setting.change(Knobs(message["knobs"]))
        return {}


def _description(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "mode": device.mode,
        "knobs": [asdict(knob) for knob in device.knobs],
        "current": None if (knobs := device.current()) is None else dict(knobs),
        "sensor": asdict(device.sensor),
        "memory_bytes": device.memory_bytes,
        "data_types": sorted(device.data_types),
        "shares_memory": device.shares_memory,
        "supply": None if device.supply is None else device.supply.model_dump(),
    }


class RemoteBoard(RealDevice):
    """Another rank's board, on rank 0. A rank that is gone has restored its board, and is not asked to.

    Raises: DeviceError if the rank cannot open it.
    """

    kind = "measured"

    def __init__(self, channel: Channel, rank: int):
        description = channel.receive(rank, "board", RANK_TIMEOUT_S)["board"]
        if "error" in description:
            raise DeviceError(f"{channel.names[rank]}: {description['error']}")
        self.name = description["name"]
        self.mode = description["mode"]
        self.knobs = tuple(
            Knob(knob["name"], tuple(knob["values"]), knob["power_rises"], tuple(knob["volts"]))
            for knob in description["knobs"]
        )
        self.sensor = Sensor(**description["sensor"])
        self.memory_bytes = description["memory_bytes"]
        self.data_types = frozenset(description["data_types"])
        self.shares_memory = description["shares_memory"]
        self.supply = None if description["supply"] is None else Supply(**description["supply"])
        self._present = None if description["current"] is None else Knobs(description["current"])
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

    def _call(self, what: str, **values: Any) -> dict[str, Any]:
        with self._calling:
            self._number += 1
            self._channel.send({"call": self._number, "what": what, **values}, to=self._rank)
            while (answer := self._channel.receive(self._rank, "reply", ANSWER_WITHIN_S))["reply"] != self._number:
                pass  # late, of a call that was given up
        if "error" in answer:
            raise DeviceError(answer["error"])
        return answer

    def _read_w(self) -> float:
        try:
            answer = self._call("read")
        except DeviceError as error:
            raise SensorError(str(error)) from None
        self._conditions = Conditions(answer["temperature_c"], tuple(answer["throttled"]))
        self._clock_now_mhz = answer["clock_mhz"]
        return float(answer["power_w"])

    def _apply(self, knobs: Knobs) -> None:
        self._call("apply", knobs=dict(knobs))
        self._present = knobs

    def _snapshot(self) -> object:
        return self._present

    def _restore(self, snapshot: object) -> None:
        if self._channel.has(self._rank):
            self._call("restore")
        assert snapshot is None or isinstance(snapshot, Knobs)
        self._present = snapshot
