"""Whether a pinned clock stays pinned: other programs and the kernel itself write the same files."""

from typing import Any, Dict, List, Set

from wattune_agent.board import Clock
from wattune_agent.errors import AgentError, NotTaken
from wattune_agent.limits import same_text, tolerance_of
from wattune_agent.tree import Tree

__all__ = ["ANSWERS", "HIGHER", "Watch", "event"]

ANSWERS = 5
"""So often limits that somebody changed are written again; two programs that fight over a clock help nobody."""

HIGHER = 1.02
"""A clock up to so many times the pinned one is at it: a CPU's is counted over a short time."""


def event(tree: Tree, kind: str, text: str) -> Dict[str, Any]:
    """Something that happened to the board now, in words."""
    return {"time_s": tree.now_s(), "kind": kind, "text": text}


class Watch:
    """Compares the files with what they held when the clock was pinned. Made after the pin; answers at most
    ``answers`` times, and goes on looking after that."""

    def __init__(self, tree: Tree, clock: Clock, mhz: float, answers: int = ANSWERS) -> None:
        """Raises: Forbidden, FileFailed."""
        self.answers = answers
        self._tree = tree
        self._clock = clock
        self._mhz = mhz
        self._pinned = {path: tree.read(path) for path in clock.files()}
        self._unreadable: Set[str] = set()
        self._told: Dict[str, str] = {}
        self._above = 0

    def look(self) -> List[Dict[str, Any]]:
        """What is new since the last look; a change of the files is answered by writing them again."""
        events: List[Dict[str, Any]] = []
        changed = self._changed(events)
        if changed:
            events += self._answer(changed)
        elif self._told:
            self._told = {}
            events.append(event(self._tree, "as pinned", "the limits are as they were pinned again"))
        else:
            events += self._clock_above()
        return events

    def _changed(self, events: List[Dict[str, Any]]) -> Dict[str, str]:
        changed = {}
        for path, text in self._pinned.items():
            try:
                now = self._tree.read(path)
            except AgentError as error:
                if path not in self._unreadable:
                    self._unreadable.add(path)
                    events.append(event(self._tree, "unreadable", str(error)))
                continue
            self._unreadable.discard(path)
            if not same_text(now, text, tolerance_of(path)):
                changed[path] = now
        return changed

    def _answer(self, changed: Dict[str, str]) -> List[Dict[str, Any]]:
        what = ", ".join(
            "{} reads {} where {} was pinned".format(path, now[:40], self._pinned[path])
            for path, now in changed.items()
        )
        if self.answers > 0:
            self.answers -= 1
            try:
                self._clock.pin(self._mhz)
            except NotTaken:
                kind, what = "clamped", what + ", and it stays so when it is written again"
            except AgentError as error:
                kind, what = "unanswered", "{}; it cannot be written again: {}".format(what, error)
            else:
                self._told = {}
                return [event(self._tree, "another writer", what + "; it was written again")]
        else:
            kind, what = "another writer", "{}; it was answered {} times and is left now".format(what, ANSWERS)
        if changed == self._told:
            return []
        self._told = changed
        return [event(self._tree, kind, what)]

    def _clock_above(self) -> List[Dict[str, Any]]:
        """The limits are right, but the clock is not: said once, at the second look in a row."""
        try:
            now_mhz = self._clock.now_mhz()
        except AgentError:
            return []
        self._above = self._above + 1 if now_mhz is not None and now_mhz > HIGHER * self._mhz else 0
        if self._above != 2:
            return []
        text = "the clock is at {:g} MHz where {:g} MHz is pinned".format(now_mhz or 0.0, self._mhz)
        return [event(self._tree, "above the pin", text)]
