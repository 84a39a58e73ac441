"""Boards of ranks on other computers: each rank opens its own, and rank 0 reads and sets it through the job's channel.

A board is restored by its own rank: when rank 0 says so, when the connection to rank 0 is lost, and by the watcher of a
group (``devices.group``) if the rank itself is killed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Any

from wattune.devices import Device
from wattune.devices.group import open_group
from wattune.devices.remote import DeviceService, describe, remote_device
from wattune.errors import DeviceError, WattuneError
from wattune.online.ranks.channel import LEADER, Channel

ANSWER_WITHIN_S = 2.0
"""Longest wait for an answer of a board on another computer."""


class ServedBoard:
    """This rank's board, which rank 0 reads and sets. Raises: InputError, DeviceError if it cannot be opened."""

    def __init__(self, channel: Channel, spec: str, *, seed: int):
        self._channel = channel
        self._group = open_group([spec], seed=seed)  # of one: it brings the watcher
        self._service = DeviceService(self._group)
        self._calls: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._restored = threading.Event()
        channel.handle("call", lambda rank, message: self._calls.put(message))
        self._thread = threading.Thread(target=self._serve, name="wattune-board", daemon=True)
        self._thread.start()

    def describe(self) -> dict[str, Any]:
        """Describe the board, as JSON values."""
        return describe(self._group.members[0])

    def close(self, *, waits: bool) -> None:
        """Restore the board, once rank 0 needs it no more if this ``waits``. Raises: DeviceError."""
        if waits:
            while not self._restored.wait(0.1) and self._channel.has(LEADER):
                pass
        self._calls.put(None)
        self._thread.join()
        try:
            self._service.restore()
        finally:
            self._group.close()

    def _serve(self) -> None:
        while (message := self._calls.get()) is not None:
            answer: dict[str, Any] = {"reply": message["call"]}
            if message["what"] == "apply":
                self._restored.clear()
            try:
                answer |= self._service.answer(message)
            except WattuneError as error:
                answer["error"] = str(error)
            if message["what"] == "restore":
                self._restored.set()
            self._channel.send(answer)


class _Calls:
    """Messages to one rank, each with its answer."""

    def __init__(self, channel: Channel, rank: int):
        self._channel, self._rank = channel, rank
        self._calling = threading.Lock()
        self._number = 0
        self.replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def is_connected(self) -> bool:
        return self._channel.has(self._rank)

    def __call__(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._calling:
            self._number += 1
            self._channel.send({"call": self._number, **message}, to=self._rank)
            try:
                while (answer := self.replies.get(timeout=ANSWER_WITHIN_S))["reply"] != self._number:
                    pass  # late, of a call that was given up
            except queue.Empty:
                raise DeviceError(f"the device of {self._channel.names[self._rank]} does not answer") from None
        if "error" in answer:
            raise DeviceError(answer["error"])
        return answer


class RemoteBoards:
    """Descriptions and answers of other ranks' boards, on rank 0."""

    def __init__(self, channel: Channel):
        self._channel = channel
        ranks = range(len(channel.names))
        self._described: list[queue.SimpleQueue[dict[str, Any]]] = [queue.SimpleQueue() for _ in ranks]
        self._calls = [_Calls(channel, rank) for rank in ranks]
        channel.handle("board", lambda rank, message: self._described[rank].put(message["board"]))
        channel.handle("reply", lambda rank, message: self._calls[rank].replies.put(message))

    def open(self, rank: int, within_s: float) -> Device:
        """The board of a rank, once it is described. Raises: DeviceError if the rank cannot open it."""
        assert rank != LEADER
        name = self._channel.names[rank]
        try:
            description = self._described[rank].get(timeout=within_s)
        except queue.Empty:
            raise DeviceError(f"{name} has not opened its device within {within_s:g} s") from None
        if "error" in description:
            raise DeviceError(f"{name}: {description['error']}")
        calls = self._calls[rank]
        return remote_device(description, calls, calls.is_connected)
