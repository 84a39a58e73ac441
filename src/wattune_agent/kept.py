"""Events of a run that may take weeks, and the intervals of a cap that changes."""

import math
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

MOST = 1000
"""Most events, and most intervals, that are kept."""

LEFT_OUT = ("events of the board", "answers of the guard", "intervals of the cap, whose joules are in their neighbours")
"""Parts that the record of a long run may lack, in its own words."""


class Kept:
    """The first events and the newest ones, half of ``MOST`` each. ``count``: of all, those left out included."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.count = 0
        self._first: List[Dict[str, Any]] = []
        self._newest: Deque[Dict[str, Any]] = deque(maxlen=MOST // 2)

    def append(self, event: Dict[str, Any]) -> None:
        """Add the newest event."""
        self.count += 1
        (self._first if len(self._first) < MOST // 2 else self._newest).append(event)

    def load(self, events: List[Dict[str, Any]], left_out: int) -> None:
        """Continue from ``all`` and ``left_out`` of an earlier run."""
        self.clear()
        for event in events:
            self.append(event)
        self.count += left_out

    @property
    def all(self) -> List[Dict[str, Any]]:
        """The events that are kept, oldest first."""
        return [*self._first, *self._newest]

    @property
    def left_out(self) -> int:
        """Number of events between the first and the newest ones, which are forgotten."""
        return self.count - len(self._first) - len(self._newest)

    def since(self, count: int) -> List[Dict[str, Any]]:
        """The events that are kept of those after the first ``count``."""
        return self.all[count - self.count :] if count < self.count else []


class CapNow(NamedTuple):
    """A cap as it was asked for, in watts (None: none), and the limit at the board's sensor that it means (None: none).

    ``may_run``: false if the cap leaves nothing to run with, as 0 W does.
    """

    asked_w: Optional[float]
    limit_w: Optional[float]
    may_run: bool

    @property
    def most_w(self) -> float:
        """The most power that it allows, infinite without a limit."""
        if not self.may_run:
            return 0.0
        return math.inf if self.limit_w is None else self.limit_w


class CapRecord:
    """The intervals of a run under caps that change, as a record has them.

    Once there are ``MOST``, each two neighbours become one interval, so that a run of weeks has a bounded record:
    ``joined`` counts the intervals that are gone. Their joules and seconds stay.

    ``figures`` gives the seconds above the caps and the joules until a time; None before the first reading.
    """

    def __init__(self, figures: Callable[[float], Optional[Tuple[float, float]]]) -> None:
        self.intervals: List[Dict[str, Any]] = []
        self.joined = 0
        self.pauses_s = 0.0
        """Seconds of the pauses before the latest interval."""
        self.counted = 0.0, 0.0
        """The figures when the latest interval was closed."""
        self._figures = figures

    @property
    def pause(self) -> Optional[str]:
        """Why nothing runs; None while work runs."""
        return self.intervals[-1]["pause"] if self.intervals else None

    def note(
        self, time_s: float, asked_w: Optional[float], cap_w: Optional[float], setting: Any, pause: Optional[str]
    ) -> Optional[Dict[str, Any]]:
        """Note the present cap, setting and pause; call this before another limit is counted with.

        Returns the interval that begins here, if one does.
        """
        entry = {"asked_w": asked_w, "cap_w": cap_w, "setting": setting, "pause": pause}
        last = self.intervals[-1] if self.intervals else {}
        if all(last.get(name, entry) == value for name, value in entry.items()):
            return None
        self.close(time_s)
        self.pauses_s = self.paused_s(time_s)
        if len(self.intervals) >= MOST:
            self._join()
        self.intervals.append(dict(entry, time_s=time_s, above_cap_s=0.0, energy_j=0.0))
        return self.intervals[-1]

    def close(self, time_s: float) -> None:
        """Count the figures until now to the latest interval."""
        now = self._figures(time_s)
        if now is None:
            return
        if self.intervals:
            self.intervals[-1]["above_cap_s"] += max(0.0, now[0] - self.counted[0])
            self.intervals[-1]["energy_j"] += max(0.0, now[1] - self.counted[1])
        self.counted = now

    def paused_s(self, end_s: float) -> float:
        """Seconds of pauses until the end."""
        return self.pauses_s + (0.0 if self.pause is None else max(0.0, end_s - self.intervals[-1]["time_s"]))

    def _join(self) -> None:
        """Let the longer one of each two neighbours stand for both; the latest interval stays."""
        intervals = self.intervals
        pairs = []
        for at in range(0, len(intervals) - 2, 2):
            first, second, third = intervals[at : at + 3]
            is_first = second["time_s"] - first["time_s"] >= third["time_s"] - second["time_s"]
            sums = {name: first[name] + second[name] for name in ("above_cap_s", "energy_j")}
            begin = {name: first[name] for name in ("time_s", "cap_time_s") if name in first}
            pairs.append(dict(first if is_first else second, **sums, **begin))
        self.intervals = pairs + intervals[2 * len(pairs) :]
        self.joined += len(pairs)
