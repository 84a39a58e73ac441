"""Who asks things of the agent, and what they and its log are told."""

import math
import sys
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional

__all__ = ["Party", "Teller", "say"]

SAY_S = 60.0
"""Time after which a failure that lasts is told again."""


def say(text: str) -> None:
    """One line for whoever looks after the agent; nobody may be there to read it."""
    try:
        print("wattune-agent: " + text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


class Party:
    """Somebody who asks things of the agent. ``events`` wait here until the next answer takes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: Deque[Dict[str, Any]] = deque(maxlen=1000)

    def is_gone(self) -> bool:
        """Whether it can be told that nobody is there any more, although the connection is open."""
        return False


class Teller:
    """Writes events down for the party that they are about, and for the agent's log."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._said: Dict[str, float] = {}

    def event(self, kind: str, text: str) -> Dict[str, Any]:
        """Something that happens now."""
        return {"time_s": self._now_s(), "kind": kind, "text": text}

    def tell(self, party: Optional[Party], event: Dict[str, Any]) -> None:
        """Tell the party, if there is one, and the log."""
        if party is not None:
            party.events.append(event)
        say("{}: {}".format(event["kind"], event["text"]))

    def is_new(self, text: str) -> bool:
        """What fails ten times a second is said once a minute."""
        now_s = self._now_s()
        if now_s - self._said.get(text, -math.inf) < SAY_S:
            return False
        if len(self._said) >= 100:
            self._said.clear()
        self._said[text] = now_s
        return True
