"""One clock of a controlled board: its pin, the watch on it, and what remains of it after a failed change.

Other programs and the kernel write the same files, so the files are compared with their texts after the pin.
"""

from typing import Any, Dict, List, Optional, Set, Tuple

from wattune_agent.errors import AgentError, FileFailed, NotTaken
from wattune_agent.file_knob import FileKnob, bring_back
from wattune_agent.knobs import same_text, tolerance_of
from wattune_agent.signals import waiting
from wattune_agent.tree import Tree

ANSWERS = 5
"""Most times that limits changed by another program are written again; then that program wins."""

HIGHER = 1.02
"""Ratio to the pinned clock up to which a clock counts as pinned: a CPU's is measured over a short time."""

SETTLE_S = 2.0
"""Time for a clock to fall to its limits; boards were seen to take half a second."""

RISE_S = 0.5
"""Time for it to rise. An idle or unpowered unit need not rise, so the wait ends there."""

POLL_S = 0.005


def event(tree: Tree, kind: str, text: str) -> Dict[str, Any]:
    """An event of the board that happens now, in words."""
    return {"time_s": tree.now_s(), "kind": kind, "text": text}


class HeldClock:
    """A clock, pinned at ``mhz`` (None: not pinned). ``events`` gets what is to be told about it."""

    def __init__(self, tree: Tree, clock: FileKnob, events: List[Dict[str, Any]]) -> None:
        self.clock = clock
        self.mhz: Optional[float] = None
        self.limit_mhz: Optional[float] = None
        """The highest frequency that the board's power mode allows; None if that is not known."""
        self._tree = tree
        self._events = events
        self._answers = ANSWERS
        self._pinned: Dict[str, str] = {}
        """Each file with its expected text while the clock is pinned."""
        self._reported: Dict[str, str] = {}
        """Reported differences from that: each file with what it reads."""
        self._is_clamped = False
        self._unreadable: Set[str] = set()
        self._above = 0
        self._verified: Dict[float, Dict[str, str]] = {}
        """The settings that a pin has verified in this hold, each with the texts of the files then."""
        self._upper_mhz: Optional[float] = None  # the upper of two settings between which the clock is sliced

    def begin(self, limit_mhz: Optional[float]) -> None:
        """Begin a new hold of the board, of which nothing is pinned yet."""
        self.forget()
        self.limit_mhz, self._answers = limit_mhz, ANSWERS

    def forget(self) -> None:
        """Note that the clock is not pinned any longer."""
        self.mhz, self._pinned, self._verified, self._upper_mhz = None, {}, {}, None

    def lowers(self, mhz: float) -> bool:
        """True if a pin at ``mhz`` lowers the clock."""
        before = self.mhz if self.mhz is not None else self._now_mhz()
        return before is not None and mhz < before

    def put(self, mhz: float) -> None:
        """Write the limits, wait for the clock to settle, and watch both from now on.

        Raises: BadRequest, NotTaken, Forbidden, FileFailed.
        """
        was_mhz = self._now_mhz()
        clamped = self.clock.pin(mhz)
        self._settle(mhz, was_mhz)
        self._watch(mhz, clamped)
        if not clamped:
            self._verified[mhz] = dict(self._pinned)
        if clamped:
            told = ", ".join(
                "{} reads {}, but {} was written".format(path, now[:40], self._pinned[path])
                for path, now in self._reported.items()
            )
            text = "{}: heat, or another limit of the board, throttles the clock below the pin"
            self._events.append(event(self._tree, "clamped", text.format(told)))

    def slice(self, mhz: float) -> bool:
        """Switch to a setting that a pin has verified, from one that a pin has verified: the limits alone, without
        waiting for the clock. Returns false, and writes nothing, for any other setting.

        Raises: NotTaken, also while heat throttles the clock; Forbidden, FileFailed.
        """
        if self.mhz not in self._verified or mhz not in self._verified:
            return False
        if self.clock.pin(mhz):
            raise NotTaken("another limit of the board, such as heat, holds the clock below {:g} MHz".format(mhz))
        self._upper_mhz, self.mhz, self._pinned = max(mhz, self.mhz or mhz), mhz, self._verified[mhz]
        return True

    def keep(self, before_mhz: float) -> None:
        """After a failed change, leave the limits if they pin the clock no higher than before; otherwise move them back
        there, or lower. Raises nothing."""
        try:
            now_mhz = self.clock.pinned_mhz()
        except AgentError:
            now_mhz = None
        if now_mhz is not None and now_mhz < before_mhz and self._is_kept(now_mhz, {}):
            return
        lower = [mhz for mhz in self.clock.settings_mhz if mhz < before_mhz]
        candidates = [*lower[-1:], *lower[:1]]
        if self.mhz != before_mhz:  # this clock was changed before another one failed
            candidates.insert(0, before_mhz)
        elif not self._pinned or all(failure.clamped for failure in bring_back(self._tree, self._pinned)):
            return
        for mhz in candidates:
            try:
                clamped = self.clock.pin(mhz)
            except AgentError:
                continue
            if self._is_kept(mhz, clamped):
                return
        # Everything that can be written was; the watch retries the rest.

    def release(self, texts: Dict[str, str]) -> None:
        """Restore the clock alone. ``texts``: those of its files before it was pinned. Raises: NotRestored."""
        self.clock.restore(texts)
        self.forget()

    def look(self) -> List[Dict[str, Any]]:
        """The events since the last look; changed files are written again."""
        events: List[Dict[str, Any]] = []
        if self.mhz is None:
            return events
        changes = self._changed(events)
        if changes and self._is_clamped and changes == self._reported:
            return events  # writing the same text again would change nothing
        if changes:
            events += self._answer(changes)
        elif self._reported:
            self._reported, self._is_clamped = {}, False
            events.append(event(self._tree, "as pinned", "the limits match the pin again"))
        else:
            events += self._clock_above(self._upper_mhz or self.mhz)
        return events

    # --------------------------------------------------------------------------------------------------------- private

    def _watch(self, mhz: float, clamped: Dict[str, str]) -> None:
        """Expect the clock at ``mhz``. ``clamped``: the result of the pin. Raises: Forbidden, FileFailed."""
        now = {path: self._tree.read(path) for path in self.clock.files()}
        self._pinned = {**now, **clamped}
        self._reported = {path: now[path] for path in clamped if path in now}
        self._is_clamped = bool(self._reported)
        self._unreadable, self._above, self._upper_mhz = set(), 0, None
        self.mhz = mhz

    def _is_kept(self, mhz: float, clamped: Dict[str, str]) -> bool:
        try:
            self._watch(mhz, clamped)
        except AgentError:
            return False
        text = "a change of a clock failed; the {}'s is held at {:g} MHz".format(self.clock.unit, mhz)
        self._events.append(event(self._tree, "kept", text))
        return True

    def _changed(self, events: List[Dict[str, Any]]) -> Dict[str, str]:
        changes = {}
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
                changes[path] = now
        return changes

    def _answer(self, changes: Dict[str, str]) -> List[Dict[str, Any]]:
        what = ", ".join(
            "{} reads {}, but {} was pinned".format(path, now[:40], self._pinned[path]) for path, now in changes.items()
        )
        kind, more = "another writer", "it was written again {} times and is now left alone".format(ANSWERS)
        self._is_clamped = False
        if self._answers > 0:
            kind, more = self._write_again()
            if kind == "another writer":
                changes = {}
        if changes and changes == self._reported:
            return []
        self._reported = changes
        return [event(self._tree, kind, "{}; {}".format(what, more))]

    def _write_again(self) -> Tuple[str, str]:
        """Pin again; returns kind and outcome. Throttling uses up no answer: there is no other program to fight."""
        assert self.mhz is not None
        try:
            self._is_clamped = bool(self.clock.pin(self.mhz))
        except NotTaken:
            kind, more = "clamped", "writing it again does not change it"
        except AgentError as error:
            kind, more = "unanswered", "it cannot be written again: {}".format(error)
        else:
            if self._is_clamped:
                return "clamped", "writing it again does not change it"
            kind, more = "another writer", "it was written again"
        self._answers -= 1
        return kind, more

    def _clock_above(self, mhz: float) -> List[Dict[str, Any]]:
        """Report a clock above correct limits: once, at the second look in a row."""
        now_mhz = self._now_mhz()
        is_above = now_mhz is not None and now_mhz > HIGHER * mhz and not self.clock.is_suspended()
        self._above = self._above + 1 if is_above else 0
        if self._above != 2:
            return []
        text = "the clock is at {:g} MHz, but {:g} MHz is pinned".format(now_mhz or 0.0, mhz)
        if self.clock.reports_pin or self._answers <= 0:
            return [event(self._tree, "above the pin", text)]
        self._above = 0  # no file shows that another program has released the clock, only the clock itself
        kind, more = self._write_again()
        return [event(self._tree, kind, "{}; {}".format(text, more))]

    def _now_mhz(self) -> Optional[float]:
        """The current clock; None if it cannot be read."""
        try:
            return self.clock.now_mhz()
        except AgentError:
            return None

    def _settle(self, mhz: float, was_mhz: Optional[float]) -> None:
        """Wait until a clock that was at ``was_mhz`` has reached its limits.

        Raises: NotTaken if it stays higher; FileFailed, Forbidden if it cannot be read.
        """
        begin_s = self._tree.now_s()
        is_lowered = was_mhz is not None and was_mhz > mhz
        while True:
            failure: Optional[FileFailed] = None
            now_mhz: Optional[float] = None
            try:
                now_mhz = self.clock.now_mhz()
            except FileFailed as error:
                failure = error
            waited_s = self._tree.now_s() - begin_s
            is_above = now_mhz is not None and now_mhz > mhz * HIGHER
            is_enough = is_lowered or now_mhz is None or now_mhz >= mhz / HIGHER or waited_s >= RISE_S
            if failure is None and not is_above and is_enough:
                return
            if is_above and self.clock.is_suspended():
                return
            if waited_s >= SETTLE_S or waiting():
                break
            self._tree.sleep(POLL_S)
        if failure is not None:
            raise failure
        if is_above:
            raise NotTaken(
                "the limits are at {:g} MHz, but the clock is still at {:g} MHz after {:g} s".format(
                    mhz, now_mhz or 0.0, SETTLE_S
                )
            )
