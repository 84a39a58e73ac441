"""Power that a board drew lately at each setting, and power of its settings relative to each other."""

import math
from collections import deque
from typing import Any, Deque, Dict, List, Sequence, Tuple

RATIOS = 1.001, 2.0
"""Lowest and highest power of a setting over that of the setting below it."""


class PowerLog:
    """The power of the last ``keep_s`` seconds: ticks of end, seconds, setting and watts, measured or expected."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._ticks: Deque[List[Any]] = deque()

    @property
    def end_s(self) -> float:
        """End of the last tick; minus infinity before the first tick."""
        return float(self._ticks[-1][0]) if self._ticks else -math.inf

    def add(self, end_s: float, seconds: float, setting: int, watts: float) -> None:
        """Add a tick."""
        self._ticks.append([end_s, seconds, setting, watts])
        while self._ticks[0][0] < end_s - self._keep_s:
            self._ticks.popleft()

    def means(self, begin_s: float, end_s: float, table: "PowerTable") -> Tuple[float, float, float]:
        """Known seconds between two times, mean watts there, and mean share of the table at the settings there."""
        total_s = joules = shares = 0.0
        for tick_end_s, seconds, setting, watts in reversed(self._ticks):
            if tick_end_s <= begin_s:
                break
            part_s = min(tick_end_s, end_s) - max(tick_end_s - seconds, begin_s)
            if part_s > 0:
                total_s += part_s
                joules += part_s * watts
                shares += part_s * table[setting]
        return (total_s, joules / total_s, shares / total_s) if total_s else (0.0, 0.0, 1.0)

    def mix(self, begin_s: float, end_s: float) -> Dict[int, float]:
        """Seconds at each setting between two times."""
        found: Dict[int, float] = {}
        for tick_end_s, seconds, setting, _ in reversed(self._ticks):
            if tick_end_s <= begin_s:
                break
            part_s = min(tick_end_s, end_s) - max(tick_end_s - seconds, begin_s)
            if part_s > 0:
                found[setting] = found.get(setting, 0.0) + part_s
        return found

    def correct(self, begin_s: float, factor: float) -> None:
        """Correct the ticks from ``begin_s`` on by a factor that a reading showed: the change of load."""
        for tick in reversed(self._ticks):
            if tick[0] <= begin_s:
                break
            tick[3] *= factor

    def state(self) -> List[List[float]]:
        """The ticks, as JSON values."""
        return [list(tick) for tick in self._ticks]

    def load(self, state: Sequence[Sequence[float]]) -> None:
        """Continue from ``state``."""
        self._ticks = deque([end_s, seconds, int(setting), watts] for end_s, seconds, setting, watts in state)


class PowerTable:
    """Power at each setting of a ladder, as a share of the power at the last setting.

    ``ratios``: power of each setting over the power of the setting below it.
    """

    def __init__(self, ratios: Sequence[float]) -> None:
        self._ratios = list(ratios)
        self._sum_up()

    @classmethod
    def guess(cls, scales: Sequence[float]) -> "PowerTable":
        """Guess the table of an unmeasured board. ``scales``: what power rises with, such as the clock."""
        powers = [0.15 + 0.85 * (scale / scales[-1]) ** 1.3 for scale in scales]
        return cls([powers[i] / powers[i - 1] for i in range(1, len(powers))])

    def __len__(self) -> int:
        return len(self._shares)

    def __getitem__(self, setting: int) -> float:
        return self._shares[setting]

    @property
    def ratios(self) -> List[float]:
        """Power of each setting over the power of the setting below it."""
        return list(self._ratios)

    def learn(self, lower: int, factor: float) -> None:
        """Multiply the ratio of the setting above ``lower`` to it."""
        low, high = RATIOS
        self._ratios[lower] = min(high, max(low, self._ratios[lower] * factor))
        self._sum_up()

    def level_of(self, share: float) -> float:
        """The level that draws this share of the power at the last setting."""
        shares = self._shares
        if share >= shares[-1]:
            return len(shares) - 1.0
        for setting in range(len(shares) - 2, -1, -1):
            if share >= shares[setting]:
                return setting + (share - shares[setting]) / (shares[setting + 1] - shares[setting])
        return 0.0

    def highest(self, share: float) -> int:
        """The highest setting that draws no more than this share; the lowest if none does."""
        return max((setting for setting, one in enumerate(self._shares) if one <= share), default=0)

    def _sum_up(self) -> None:
        shares = [1.0]
        for ratio in reversed(self._ratios):
            shares.append(shares[-1] / ratio)
        self._shares = shares[::-1]
