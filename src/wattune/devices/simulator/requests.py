"""Requests of a simulated inference service, whose work is done on the simulated board between training's."""

from __future__ import annotations

import random
from collections import deque

from wattune.devices.base import Device
from wattune.errors import InputError
from wattune.records import StepWork


class SimulatedRequests:
    """Requests that arrive at random (Poisson), ``rate_hz`` a second on average, from the first look at them on.

    Each is served as ``work`` on the board, in the order of arrival, while training waits: the board does one piece of
    work at a time. ``latencies_s``: seconds from arrival to answer of those that were served. It is a queue for
    ``Session.yield_to`` and ``Beside``. Raises: InputError for a rate that is not positive.
    """

    problem: str | None = None

    def __init__(self, device: Device, work: StepWork, *, rate_hz: float, seed: int = 0):
        if not 0 < rate_hz < float("inf"):
            raise InputError("rate_hz", value=rate_hz, allowed="a positive number of requests a second")
        self.latencies_s: list[float] = []
        self._device, self._work, self._rate_hz = device, work, rate_hz
        self._draw = random.Random(seed)
        self._arrived_s: deque[float] = deque()
        self._next_s: float | None = None

    def waiting(self) -> int | None:
        """Number of requests that have arrived and are not answered."""
        if self._next_s is None:
            self._next_s = self._device.now_s() + self._draw.expovariate(self._rate_hz)
        while self._next_s <= self._device.now_s():
            self._arrived_s.append(self._next_s)
            self._next_s += self._draw.expovariate(self._rate_hz)
        return len(self._arrived_s)

    def rest(self, device: Device, seconds: float) -> None:
        """Serve the oldest request; without one, let ``seconds`` pass."""
        if not self.waiting():
            device.wait(seconds)
            return
        with device.step(self._work):
            pass
        self.latencies_s.append(device.now_s() - self._arrived_s.popleft())

    def close(self) -> None:
        """There is nothing to release."""

    def share_within(self, bound_s: float) -> float:
        """Share of the answered requests that took at most ``bound_s`` seconds; 1 if there were none."""
        if not self.latencies_s:
            return 1.0
        return sum(latency_s <= bound_s + 1e-9 for latency_s in self.latencies_s) / len(self.latencies_s)
