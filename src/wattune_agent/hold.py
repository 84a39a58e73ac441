"""The board's clock in the agent's hands: held somewhere, or given back."""

from typing import Any, Callable, Dict, List, Optional

__all__ = ["RETRY_S", "Hold"]

RETRY_S = 5.0
"""Time between two attempts to bring back a board that could not be brought back."""


class Hold:
    """What is pinned, and what is owed. ``controller`` is a Controller or what has its methods.

    A change that fails leaves the clock where it was held, or lower; the next ``put`` tries it again.
    """

    def __init__(self, controller: Any, now_s: Callable[[], float]) -> None:
        self.mhz: Optional[float] = None
        """What the clock is held at, as far as is known; None: nothing is held."""
        self._controller = controller
        self._now_s = now_s
        self._is_sure = True
        self._owed_s: Optional[float] = None  # when something that is to be given back was last touched

    @property
    def settings(self) -> List[float]:
        """Where the clock can be held."""
        return list(self._controller.describe()["settings_mhz"])

    def claim(self) -> None:
        """Nobody else's from now on, and sure to be changed when that is needed. Raises: what the controller raises."""
        if self.mhz is None:
            self._controller.claim()

    def put(self, mhz: float, again: bool = False) -> None:
        """Hold the clock there; ``again``: also where it is already. Raises: what the controller raises."""
        if mhz == self.mhz and self._is_sure and not again:
            return
        if self.mhz is None:
            self._owed_s = self._now_s()  # one that fails has been brought back, unless that failed too
        self._is_sure = False
        self.mhz = self._controller.pin(mhz)["mhz"]
        self._is_sure, self._owed_s = True, None

    def give_back(self, always: bool = False) -> List[Dict[str, Any]]:
        """Bring the board back; what the controller noticed of it. ``always``: also where nothing is known to be held.

        Raises: NotRestored; it is then owed.
        """
        if self.mhz is None and self._owed_s is None and not always:
            return []
        self.mhz, self._owed_s = None, self._now_s()
        self._controller.restore()
        self._owed_s = None
        events: List[Dict[str, Any]] = self._controller.check()
        return events

    def is_due(self) -> bool:
        """Whether it is time to try again to give back what is owed."""
        return self.mhz is None and self._owed_s is not None and self._now_s() - self._owed_s >= RETRY_S

    def look(self) -> List[Dict[str, Any]]:
        """Whether the clock is still held: what the controller noticed. Raises: what the controller raises."""
        if self.mhz is None:
            return []
        events: List[Dict[str, Any]] = self._controller.check()
        return events
