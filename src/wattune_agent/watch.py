"""Whether a pinned clock stays pinned: other programs and the kernel itself write the same files."""

from typing import Any, Dict, List, Optional, Set, Tuple

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
    ``answers`` times, and goes on looking after that. ``clamped``: files that read lower than what was written, with
    that; whoever pinned tells it. ``pinned``: each file with what it is to hold."""

    def __init__(
        self, tree: Tree, clock: Clock, mhz: float, answers: int = ANSWERS, clamped: Optional[Dict[str, str]] = None
    ) -> None:
        """Raises: Forbidden, FileFailed."""
        self.answers = answers
        self._tree = tree
        self._clock = clock
        self._mhz = mhz
        now = {path: tree.read(path) for path in clock.files()}
        self.pinned = {**now, **(clamped or {})}
        self._unreadable: Set[str] = set()
        self._told = {path: now[path] for path in clamped or {} if path in now}
        self._is_clamped = bool(self._told)
        self._above = 0

    @property
    def told(self) -> str:
        """What the files read where something else was pinned, as far as that was told."""
        return ", ".join(
            "{} reads {} where {} was written".format(path, now[:40], self.pinned[path])
            for path, now in self._told.items()
        )

    def look(self) -> List[Dict[str, Any]]:
        """What is new since the last look; a change of the files is answered by writing them again."""
        events: List[Dict[str, Any]] = []
        changed = self._changed(events)
        if changed and self._is_clamped and changed == self._told:
            return events  # to write again what is written already would change nothing
        if changed:
            events += self._answer(changed)
        elif self._told:
            self._told, self._is_clamped = {}, False
            events.append(event(self._tree, "as pinned", "the limits are as they were pinned again"))
        else:
            events += self._clock_above()
        return events

    def _changed(self, events: List[Dict[str, Any]]) -> Dict[str, str]:
        changed = {}
        for path, text in self.pinned.items():
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
            "{} reads {} where {} was pinned".format(path, now[:40], self.pinned[path]) for path, now in changed.items()
        )
        kind, more = "another writer", "it was answered {} times and is left now".format(ANSWERS)
        self._is_clamped = False
        if self.answers > 0:
            kind, more = self._write_again()
            if kind == "another writer":
                changed = {}
        if changed and changed == self._told:
            return []
        self._told = changed
        return [event(self._tree, kind, "{}; {}".format(what, more))]

    def _write_again(self) -> Tuple[str, str]:
        """What came of it. A clamp uses up no answer: there is nobody to fight with."""
        try:
            self._is_clamped = bool(self._clock.pin(self._mhz))
        except NotTaken:
            kind, more = "clamped", "it stays so when it is written again"
        except AgentError as error:
            kind, more = "unanswered", "it cannot be written again: {}".format(error)
        else:
            if self._is_clamped:
                return "clamped", "it stays so when it is written again"
            kind, more = "another writer", "it was written again"
        self.answers -= 1
        return kind, more

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
