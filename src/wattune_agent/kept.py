"""Events of a run that may take weeks."""

from collections import deque
from typing import Any, Deque, Dict, List

MOST = 1000
"""Most events that are kept."""

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
