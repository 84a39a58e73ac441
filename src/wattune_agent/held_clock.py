"""One clock of a controlled board: its pin, the watch on it, and what remains of it after a failed change."""

from typing import Any, Dict, List, Optional

from wattune_agent.errors import AgentError
from wattune_agent.file_knob import FileKnob, bring_back
from wattune_agent.tree import Tree
from wattune_agent.watch import ANSWERS, ClockWatch, event, now_of, settle

__all__ = ["HeldClock"]


class HeldClock:
    """A clock, pinned at ``mhz`` (None: not pinned). ``events`` gets what is to be told about it."""

    def __init__(self, tree: Tree, clock: FileKnob, events: List[Dict[str, Any]]) -> None:
        self.clock = clock
        self.mhz: Optional[float] = None
        self.limit_mhz: Optional[float] = None
        """The highest frequency that the board's power mode allows; None if that is not known."""
        self.found: Optional[Dict[str, str]] = None
        """The texts of its files that a release restores, if they are not those of the snapshot."""
        self._tree = tree
        self._events = events
        self._watch: Optional[ClockWatch] = None
        self._answers = ANSWERS

    def begin(self, limit_mhz: Optional[float]) -> None:
        """Begin a new hold of the board, of which nothing is pinned yet."""
        self.forget()
        self.limit_mhz, self.found, self._answers = limit_mhz, None, ANSWERS

    def forget(self) -> None:
        """Note that the clock is not pinned any longer."""
        self._watch = self.mhz = None

    def lowers(self, mhz: float) -> bool:
        """True if a pin at ``mhz`` lowers the clock."""
        before = self.mhz if self.mhz is not None else now_of(self.clock)
        return before is not None and mhz < before

    def put(self, mhz: float) -> None:
        """Write the limits, wait for the clock to settle, and watch both from now on.

        Raises: BadRequest, NotTaken, Forbidden, FileFailed.
        """
        was_mhz = now_of(self.clock)
        clamped = self.clock.pin(mhz)
        settle(self._tree, self.clock, mhz, was_mhz)
        self._watch = ClockWatch(self._tree, self.clock, mhz, self._answers, clamped)
        self.mhz = mhz
        if clamped:
            text = "{}: heat, or another limit of the board, throttles the clock below the pin"
            self._events.append(event(self._tree, "clamped", text.format(self._watch.told)))

    def keep(self, before_mhz: float) -> None:
        """After a failed change, leave the limits if they pin the clock no higher than before; otherwise move them back
        there, or lower. Raises nothing."""
        self.mhz = self._kept(before_mhz)

    def release(self, texts: Dict[str, str]) -> None:
        """Restore the clock alone. ``texts``: those of its files before it was pinned. Raises: NotRestored."""
        self.clock.restore(texts)
        self.forget()

    def look(self) -> List[Dict[str, Any]]:
        """The events since the last look; changed files are written again."""
        if self._watch is None:
            return []
        events = self._watch.look()
        self._answers = self._watch.answers
        return events

    def _kept(self, before_mhz: float) -> float:
        clock = self.clock
        try:
            now_mhz = clock.pinned_mhz()
        except AgentError:
            now_mhz = None
        if now_mhz is not None and now_mhz < before_mhz and self._watched(now_mhz, {}):
            return now_mhz
        watch = self._watch
        if watch is None or all(failure.clamped for failure in bring_back(self._tree, watch.pinned)):
            return before_mhz
        lower = [mhz for mhz in clock.settings_mhz if mhz < before_mhz]
        for mhz in [*lower[-1:], *lower[:1]]:
            try:
                clamped = clock.pin(mhz)
            except AgentError:
                continue
            if self._watched(mhz, clamped):
                return mhz
        return before_mhz  # everything that can be written was; the watch retries the rest

    def _watched(self, mhz: float, clamped: Dict[str, str]) -> bool:
        try:
            self._watch = ClockWatch(self._tree, self.clock, mhz, self._answers, clamped)
        except AgentError:
            return False
        text = "a change of the clock failed; it is held at {:g} MHz, lower than before".format(mhz)
        self._events.append(event(self._tree, "kept", text))
        return True
