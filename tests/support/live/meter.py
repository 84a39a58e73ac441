"""Sensors of a live board: means over a window, quantized, held until the next one."""

from __future__ import annotations

from collections import deque

CURRENT_STEP_MA = 8
VOLTAGE_STEP_MV = 8


class History:
    """Power of each rail over the last seconds, and all energy since the beginning."""

    def __init__(self, now_s: float, powers_w: dict[str, float], kept_s: float) -> None:
        self._kept_s = kept_s
        self._pieces: deque[tuple[float, dict[str, float]]] = deque([(now_s, powers_w)])
        self._until_s = now_s
        self.energy_j = dict.fromkeys(powers_w, 0.0)

    def add(self, until_s: float, powers_w: dict[str, float]) -> None:
        """From the end of what is known until then, power was this."""
        for rail, power_w in powers_w.items():
            self.energy_j[rail] += power_w * (until_s - self._until_s)
        if self._pieces[-1][1] != powers_w:
            self._pieces.append((self._until_s, powers_w))
        self._until_s = until_s
        while len(self._pieces) > 1 and self._pieces[1][0] < until_s - self._kept_s:
            self._pieces.popleft()

    def mean_w(self, rail: str, begin_s: float, end_s: float) -> float:
        """Mean power between the two; at one moment where they are the same."""
        if end_s <= begin_s:
            return next((w[rail] for at_s, w in reversed(self._pieces) if at_s <= end_s), self._pieces[0][1][rail])
        energy_j, piece_end_s = 0.0, self._until_s
        for at_s, powers_w in reversed(self._pieces):
            energy_j += powers_w[rail] * max(0.0, min(end_s, piece_end_s) - max(begin_s, at_s))
            piece_end_s = at_s
            if at_s <= begin_s:
                break
        else:
            # Before the beginning of what is known, it was what it was at first.
            energy_j += self._pieces[0][1][rail] * max(0.0, min(end_s, piece_end_s) - begin_s)
        return energy_j / (end_s - begin_s)


VOLTS = 5.04


class LiveMeter:
    """A chip of several rails at ``VOLTS``. ``window_s`` and ``period_s`` as in the agent's PowerSensor."""

    def __init__(self, window_s: float, period_s: float) -> None:
        self.window_s, self.period_s = window_s, period_s

    @property
    def kept_s(self) -> float:
        """How much of the past it needs."""
        return self.window_s + self.period_s + 1.0

    def reading(self, history: History, rail: str, now_s: float) -> tuple[int, int]:
        """mV and mA, in the steps of an INA3221 with a shunt of 5 mOhm."""
        end_s = now_s // self.period_s * self.period_s if self.period_s > 0.0 else now_s
        power_w = history.mean_w(rail, end_s - self.window_s, end_s)
        # 33 mOhm of supply: PARSEC runs on a Nano, 5.07 V at 0.25 W and 5.035 V at 1.3 W.
        millivolts = _step(1e3 * (VOLTS - 0.033 * power_w / VOLTS), VOLTAGE_STEP_MV)
        return millivolts, _step(1e6 * power_w / millivolts, CURRENT_STEP_MA)


def _step(value: float, step: int) -> int:
    return round(value / step) * step
