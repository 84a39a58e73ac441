"""The parties that send requests to the agent, and the events for them and for its log."""

import math
import sys
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

__all__ = ["RETRY_S", "Hold", "Party", "Teller", "say"]

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


RETRY_S = 5.0
"""Time between two attempts to restore a board that could not be restored."""


class Hold:
    """The pinned clocks, and a restore that is due. ``controller`` is a Controller or an object with its methods.

    A failed change leaves the clock where it was held, or lower; the next ``put`` tries it again.
    """

    def __init__(self, controller: Any, now_s: Callable[[], float]) -> None:
        self.mhz: Optional[float] = None
        """The clock that is held, as far as is known; None if none is."""
        self._controller = controller
        self._now_s = now_s
        self._others: Dict[str, float] = {}
        self._is_sure = True
        self._owed_s: Optional[float] = None  # when a board that is due to be restored was last changed

    @property
    def settings(self) -> List[float]:
        """The settings at which the clock can be held."""
        return list(self._controller.describe()["settings_mhz"])

    def claim(self) -> None:
        """Take control and check that the clock can be changed when needed. Raises: the controller's errors."""
        if self.mhz is None:
            self._controller.claim()

    def put(self, mhz: float, others: Dict[str, float], again: bool = False, is_slice: bool = False) -> None:
        """Hold the clock at ``mhz``, and the ``others``; ``again`` writes them even if they are there.

        Raises: the controller's errors.
        """
        if mhz == self.mhz and others == self._others and self._is_sure and not again:
            return
        if self.mhz is None:
            self._owed_s = self._now_s()  # after a failure the board has been restored, unless that failed too
        self._is_sure = False
        if is_slice and self.mhz is not None and others == self._others:
            self._controller.slice(mhz)
            self.mhz = mhz
        else:
            self.mhz = (self._controller.pin(mhz, others) if others else self._controller.pin(mhz))["mhz"]
        self._others = dict(others)
        self._is_sure, self._owed_s = True, None

    def give_back(self, always: bool = False) -> List[Dict[str, Any]]:
        """Restore the board and return the controller's events. ``always``: even if nothing is known to be held.

        Raises: NotRestored; the restore is then still due.
        """
        if self.mhz is None and self._owed_s is None and not always:
            return []
        self.mhz, self._others, self._owed_s = None, {}, self._now_s()
        self._controller.restore()
        self._owed_s = None
        events: List[Dict[str, Any]] = self._controller.check()
        return events

    def is_due(self) -> bool:
        """True when it is time to retry a restore that is due."""
        return self.mhz is None and self._owed_s is not None and self._now_s() - self._owed_s >= RETRY_S

    def look(self) -> List[Dict[str, Any]]:
        """Check that the clock is still held; returns the controller's events. Raises: the controller's errors."""
        if self.mhz is None:
            return []
        events: List[Dict[str, Any]] = self._controller.check()
        return events
