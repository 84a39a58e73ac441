"""The parties that send requests to the agent, and the events for them and for its log."""

import math
import sys
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional

__all__ = ["Party", "Teller", "say"]

SAY_S = 60.0
"""Time after which a lasting failure is reported again."""


def say(text: str) -> None:
    """Print one line for the agent's operator; stderr may be closed."""
    try:
        print("wattune-agent: " + text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


class Party:
    """A sender of requests to the agent. ``events`` wait here for the next answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: Deque[Dict[str, Any]] = deque(maxlen=1000)

    def is_gone(self) -> bool:
        """True if the process is known to have ended, although its connection is open."""
        return False


class Teller:
    """Deliver events to the party that they concern, and to the agent's log."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._reported_s: Dict[str, float] = {}

    def event(self, kind: str, text: str) -> Dict[str, Any]:
        """An event that happens now."""
        return {"time_s": self._now_s(), "kind": kind, "text": text}

    def tell(self, party: Optional[Party], event: Dict[str, Any]) -> None:
        """Tell the party, if there is one, and the log."""
        if party is not None:
            party.events.append(event)
        say("{}: {}".format(event["kind"], event["text"]))

    def is_new(self, text: str) -> bool:
        """True unless the text was reported in the last minute: some failures repeat ten times a second."""
        now_s = self._now_s()
        if now_s - self._reported_s.get(text, -math.inf) < SAY_S:
            return False
        if len(self._reported_s) >= 100:
            self._reported_s.clear()
        self._reported_s[text] = now_s
        return True
