"""A watch on a pinned clock, since other programs and the kernel write the same files; the wait for a change of it."""

from typing import Any, Dict, List, Optional, Set, Tuple

from wattune_agent.errors import AgentError, FileFailed, NotTaken
from wattune_agent.file_knob import FileKnob
from wattune_agent.knobs import same_text, tolerance_of
from wattune_agent.signals import waiting
from wattune_agent.tree import Tree

__all__ = ["ANSWERS", "HIGHER", "ClockWatch", "event", "now_of", "settle"]

ANSWERS = 5
"""Most times that limits changed by another program are written again; then that program wins."""

HIGHER = 1.02
"""Ratio to the pinned clock up to which a clock counts as pinned: a CPU's is measured over a short time."""


def event(tree: Tree, kind: str, text: str) -> Dict[str, Any]:
    """An event of the board that happens now, in words."""
    return {"time_s": tree.now_s(), "kind": kind, "text": text}


class ClockWatch:
    """A comparison of the files with their texts when the clock was pinned. Create it after the pin; it rewrites at
    most ``answers`` times, and only reports after that. ``clamped``: files that read lower than written, each with the
    text written, as returned by the pin. ``pinned``: each file with its expected text."""

    def __init__(
        self, tree: Tree, clock: FileKnob, mhz: float, answers: int = ANSWERS, clamped: Optional[Dict[str, str]] = None
    ) -> None:
        """Read the files. Raises: Forbidden, FileFailed."""
        self.answers = answers
        self._tree = tree
        self._clock = clock
        self._mhz = mhz
        now = {path: tree.read(path) for path in clock.files()}
        self.pinned = {**now, **(clamped or {})}
        self._unreadable: Set[str] = set()
        self._reported = {path: now[path] for path in clamped or {} if path in now}
        self._is_clamped = bool(self._reported)
        self._above = 0

    @property
    def told(self) -> str:
        """The reported differences between the files and the pin, in words."""
        return ", ".join(
            "{} reads {}, but {} was written".format(path, now[:40], self.pinned[path])
            for path, now in self._reported.items()
        )

    def look(self) -> List[Dict[str, Any]]:
        """The events since the last look; changed files are written again."""
        events: List[Dict[str, Any]] = []
        changes = self._changed(events)
        if changes and self._is_clamped and changes == self._reported:
            return events  # writing the same text again would change nothing
        if changes:
            events += self._answer(changes)
        elif self._reported:
            self._reported, self._is_clamped = {}, False
            events.append(event(self._tree, "as pinned", "the limits match the pin again"))
        else:
            events += self._clock_above()
        return events

    def _changed(self, events: List[Dict[str, Any]]) -> Dict[str, str]:
        changes = {}
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
                changes[path] = now
        return changes

    def _answer(self, changes: Dict[str, str]) -> List[Dict[str, Any]]:
        what = ", ".join(
            "{} reads {}, but {} was pinned".format(path, now[:40], self.pinned[path]) for path, now in changes.items()
        )
        kind, more = "another writer", "it was written again {} times and is now left alone".format(ANSWERS)
        self._is_clamped = False
        if self.answers > 0:
            kind, more = self._write_again()
            if kind == "another writer":
                changes = {}
        if changes and changes == self._reported:
            return []
        self._reported = changes
        return [event(self._tree, kind, "{}; {}".format(what, more))]

    def _write_again(self) -> Tuple[str, str]:
        """Pin again; returns kind and outcome. Throttling uses up no answer: there is no other program to fight."""
        try:
            self._is_clamped = bool(self._clock.pin(self._mhz))
        except NotTaken:
            kind, more = "clamped", "writing it again does not change it"
        except AgentError as error:
            kind, more = "unanswered", "it cannot be written again: {}".format(error)
        else:
            if self._is_clamped:
                return "clamped", "writing it again does not change it"
            kind, more = "another writer", "it was written again"
        self.answers -= 1
        return kind, more

    def _clock_above(self) -> List[Dict[str, Any]]:
        """Report a clock above correct limits: once, at the second look in a row."""
        try:
            now_mhz = self._clock.now_mhz()
        except AgentError:
            return []
        is_above = now_mhz is not None and now_mhz > HIGHER * self._mhz and not self._clock.is_suspended()
        self._above = self._above + 1 if is_above else 0
        if self._above != 2:
            return []
        text = "the clock is at {:g} MHz, but {:g} MHz is pinned".format(now_mhz or 0.0, self._mhz)
        if self._clock.reports_pin or self.answers <= 0:
            return [event(self._tree, "above the pin", text)]
        self._above = 0  # no file shows that another program has released the clock, only the clock itself
        kind, more = self._write_again()
        return [event(self._tree, kind, "{}; {}".format(text, more))]


SETTLE_S = 2.0
"""Time for a clock to fall to its limits; boards were seen to take half a second."""

RISE_S = 0.5
"""Time for it to rise. An idle or unpowered unit need not rise, so the wait ends there."""

POLL_S = 0.005


def now_of(clock: FileKnob) -> Optional[float]:
    """The current clock; None if it cannot be read."""
    try:
        return clock.now_mhz()
    except AgentError:
        return None


def settle(tree: Tree, clock: FileKnob, mhz: float, was_mhz: Optional[float]) -> None:
    """Wait until a clock that was at ``was_mhz`` has reached its limits.

    Raises: NotTaken if it stays higher; FileFailed, Forbidden if it cannot be read.
    """
    begin_s = tree.now_s()
    is_lowered = was_mhz is not None and was_mhz > mhz
    while True:
        failure: Optional[FileFailed] = None
        now_mhz: Optional[float] = None
        try:
            now_mhz = clock.now_mhz()
        except FileFailed as error:
            failure = error
        waited_s = tree.now_s() - begin_s
        is_above = now_mhz is not None and now_mhz > mhz * HIGHER
        is_enough = is_lowered or now_mhz is None or now_mhz >= mhz / HIGHER or waited_s >= RISE_S
        if failure is None and not is_above and is_enough:
            return
        if is_above and clock.is_suspended():
            return
        if waited_s >= SETTLE_S or waiting():
            break
        tree.sleep(POLL_S)
    if failure is not None:
        raise failure
    if is_above:
        raise NotTaken(
            "the limits are at {:g} MHz, but the clock is still at {:g} MHz after {:g} s".format(
                mhz, now_mhz or 0.0, SETTLE_S
            )
        )
