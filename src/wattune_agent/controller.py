"""The controller of one board in this process: it pins its clocks, reads, and leaves the board as it was found.

The order of the steps guarantees that. Before the first write: take the lock, restore what a killed process left
behind, write the snapshot to disk, install the signal handlers. After the last: compare every file with the snapshot,
only then delete the snapshot, and only then release the lock. So a process can be killed at any moment: either nothing
has changed yet, or the snapshot exists. A clock that is pinned beside the first one enters the same snapshot before
its own first write.
"""

import os
import sys
import threading
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional, Tuple

from wattune_agent.board import Board, PowerSensor
from wattune_agent.conditions import Conditions
from wattune_agent.discovery import find_board
from wattune_agent.errors import AgentError, BadRequest, Busy, NoReading, NotKept, NotRestored, NotTaken, NotThere
from wattune_agent.file_knob import FileKnob
from wattune_agent.folders import Lock, board_lock
from wattune_agent.held_clock import HeldClock, event
from wattune_agent.leftover import busy_with, give_back, restore_left_behind
from wattune_agent.mode import mode_id
from wattune_agent.settings import exceeds
from wattune_agent.signals import call_before_end, ending, forget
from wattune_agent.signals import held as signals_held
from wattune_agent.slicing import load_switch
from wattune_agent.snapshot import Snapshot, family_of, snapshots

CONDITIONS_S = 1.0
"""Time between two reads of temperatures, counters and the mode, which change slowly and take many files."""

LOOK_S = 2.0
"""Time between two looks for a clock or a sensor that was not there."""

FIGURES = ("rail", "covers", "resolution_w", "period_s", "window_s", "lag_s")
"""Attributes of a sensor that a description has, by the same names."""

AS_FOUND = (
    "{} throttles the board already: the limits restored at the end may be the throttled ones, lower than the board's "
    "own; let the board cool down first, or set the power mode again afterwards"
)
"""A limit set by throttling and one written by another program look the same."""

PATIENCE_S = 10.0
"""Time that a signal handler waits for another thread to finish with the board."""


class Controller:
    """One board. It may be called from several threads; a forked child of the process does not control the board."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._tree = board.tree
        self._turn = threading.RLock()
        self._lock: Optional[Lock] = None
        self._snapshot: Optional[Snapshot] = None
        self._pid = os.getpid()
        self._looked_s = self._tree.now_s()
        self._mode_id: Optional[int] = None
        self._events: List[Dict[str, Any]] = []
        self._holds: Dict[FileKnob, HeldClock] = {}
        self._conditions: Optional[Tuple[float, Conditions]] = None
        self._mode: Optional[Tuple[float, Dict[str, str]]] = None

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------------- reading

    def describe(self) -> Dict[str, Any]:
        """The board's properties; ``rail`` is empty without a sensor, ``settings_mhz`` without a clock.

        A part that was missing is looked for again: when a machine starts, drivers come one after another.
        """
        self._look_for_missing()
        board, clock, sensor = self.board, self.board.clock, self.board.sensor or PowerSensor()
        return {
            "family": board.family,
            "name": board.name,
            "mode": dict(self._now_mode()),
            "unit": clock.unit if clock is not None else "",
            "knob": clock.knob if clock is not None else "",
            "settings_mhz": self._settings_mhz(clock) if clock is not None else [],
            "others_mhz": {name: self._settings_mhz(other) for name, other in board.others.items()},
            **{name: getattr(sensor, name) for name in FIGURES},
            "problems": list(board.problems),
            "real": self._tree.is_real,
            "card": board.facts(),
            "switch_s": None if board.is_card else load_switch(self._tree, board.name),
        }

    def read(self) -> Dict[str, Any]:
        """Power, temperature, causes of throttling, and the current clock (None if it cannot be read).

        Raises: NotThere without a sensor, NoReading, Forbidden.
        """
        if self.board.sensor is None:
            raise NotThere("no power sensor: " + ("; ".join(self.board.problems) or "none was found"))
        power_w = self._power_w(self.board.sensor)
        now = self._now_conditions()
        return {
            "power_w": power_w,
            "temperature_c": now.temperature_c,
            "throttled": list(now.throttled),
            "over_current": now.over_current,
            "notices": list(now.notices),
            "clock_mhz": self.board.clock_mhz(),
        }

    def check(self) -> List[Dict[str, Any]]:
        """The board's events since the last call; call it about once a second while the board is pinned.

        Limits that another program changed are written again, up to a few times.
        """
        with self._alone():
            if self._is_ours() and any(held.mhz is not None for held in self._all()):
                for held in self._all():
                    self._events += held.look()
                self._look_at_mode()
            events = list(self._events)
            del self._events[:]
        return events

    # --------------------------------------------------------------------------------------------------------- changes

    def claim(self) -> None:
        """Take control of the board until ``restore``, without changing it; restore what a killed process left. A later
        ``pin`` then fails only for reasons that cannot be known now.

        Raises: NotThere without a clock, Forbidden, Busy, NotKept, NotRestored; control is then released.
        """
        clock = self._clock()
        with self._alone():
            if self._snapshot is not None and self._is_ours():
                return
            self._take_lock(clock)
            try:
                snapshot = self._of_now(clock)
                snapshot.save()  # only to check that it can be written: the first change saves it again
                snapshot.remove()
            except BaseException:
                self._let_go()
                raise

    def pin(self, mhz: float, others: Optional[Dict[str, float]] = None) -> Dict[str, Any]:
        """Set the clock to one of its settings and verify it; the same for the ``others`` by their names. Of the clocks
        beside the first, those that are not named are as they were found.

        A clock above the limit that the board had is refused: its power mode sets that limit, in the same file.

        Raises: BadRequest, NotThere without a clock, Busy, NotKept, NotTaken, Forbidden, FileFailed. If the first pin
        fails, the board is restored first; NotRestored if that fails too. If a change of a pinned clock fails, the
        clock stays pinned where it was, or lower.
        """
        first = self._held(self._clock())
        wanted = [(first, mhz)]
        for name, other_mhz in sorted((others or {}).items()):
            if name not in self.board.others:
                allowed = ", ".join(self.board.others) or "none"
                raise BadRequest("{} cannot set {}; allowed: {}".format(self.board.name, name, allowed))
            wanted.append((self._held(self.board.others[name]), other_mhz))
        for held, held_mhz in wanted:
            if held_mhz not in held.clock.settings_mhz:
                name, unit = self._name_of(held.clock), held.clock.measure
                listed = ", ".join("{:g}".format(setting) for setting in held.clock.settings_mhz)
                raise BadRequest("{} has no {:g} {m}; it has {} {m}".format(name, held_mhz, listed, m=unit))
        with self._alone():
            self._take()
            with self._or_back() if first.mhz is None else self._or_kept():
                for held, held_mhz in wanted:
                    self._check_limit(held, held_mhz)
                for held, _ in wanted:
                    self._note(held.clock.files())
                # What is lowered comes first: no setting on the way draws more than both ends.
                for held, held_mhz in sorted(wanted, key=lambda pair: not pair[0].lowers(pair[1])):
                    held.put(held_mhz)
                for held in self._all():
                    if held.mhz is not None and held not in dict(wanted):
                        held.release(self._found(held))
        return dict(others or {}, mhz=mhz)

    def slice(self, mhz: float) -> None:
        """Switch the pinned clock to a setting in a millisecond, if pins have verified both settings since the last
        ``restore``; otherwise pin it. The snapshot holds what both change.

        Raises: as ``pin``. After a failure the clock stays pinned where it was, or lower.
        """
        with self._alone():
            held = self._held(self._clock())
            if held.mhz is not None and self._snapshot is not None and self._is_ours():
                with self._or_kept():
                    if held.slice(mhz):
                        return
        others = {name: self._held(clock).mhz for name, clock in self.board.others.items()}
        self.pin(mhz, {name: other_mhz for name, other_mhz in others.items() if other_mhz is not None})

    def restore(self) -> None:
        """Restore the board to its original state; do nothing if nothing has changed.

        Raises: NotRestored, after restoring as much as possible; the snapshot stays and the restore can be retried.
        """
        if self._lock is None or not self._is_ours():
            return
        with self._alone():
            if self._snapshot is None:
                self._let_go()
                return
            self._mode = None
            for held in self._all():
                held.forget()
            try:
                messages = give_back(self._tree, self._snapshot)
            except NotKept:
                self._let_go()
                raise
            self._let_go()
            self._events += [event(self._tree, "clamped", text) for text in messages]

    def close(self) -> None:
        """Restore the board and give up control, even if that fails. Raises: NotRestored; ``restore_left_behind`` can
        then try again from the snapshot."""
        if not self._is_ours():
            return
        with self._alone():
            try:
                self.restore()
            finally:
                if self._snapshot is not None:
                    with suppress(NotKept):  # without an owner: others need not wait for this process to end
                        self._snapshot._replace(pid=0).save()
                self._let_go()

    # --------------------------------------------------------------------------------------------------------- private

    def _clock(self) -> FileKnob:
        if self.board.clock is None:
            raise NotThere("no clock that can be set: " + ("; ".join(self.board.problems) or "none was found"))
        return self.board.clock

    def _held(self, clock: FileKnob) -> HeldClock:
        return self._holds.setdefault(clock, HeldClock(self._tree, clock, self._events))

    def _all(self) -> List[HeldClock]:
        clocks = [self.board.clock, *self.board.others.values()]
        return [self._held(clock) for clock in clocks if clock is not None]

    def _name_of(self, clock: FileKnob) -> str:
        return self.board.name if clock is self.board.clock else "the {} of {}".format(clock.unit, self.board.name)

    def _found(self, held: HeldClock) -> Dict[str, str]:
        """The texts of this clock's files before it was pinned; empty if it never was."""
        assert self._snapshot is not None
        return {path: self._snapshot.files[path] for path in held.clock.files() if path in self._snapshot.files}

    def _let_loose(self, held: HeldClock) -> None:
        """Restore a clock whose first pin failed beside others that stay pinned. Raises nothing: the snapshot remains
        until the board is restored."""
        found = self._found(held)
        if found:
            try:
                held.release(found)
            except AgentError:
                held.forget()

    def _take(self) -> None:
        """Prepare the first write: lock, snapshot, signals. A failure here leaves nothing behind."""
        if self._snapshot is not None:
            if not self._is_ours():
                raise Busy("process {} controls the board; a forked child of it cannot".format(self._pid))
            return
        if ending():
            raise NotTaken("the process is ending: the board is no longer changed")
        clock = self._clock()
        self._take_lock(clock)
        try:
            snapshot = self._of_now(clock)
            snapshot.save()
            for clamp in () if self.board.is_card else self.board.conditions().throttled:
                self._events.append(event(self._tree, "clamped", AS_FOUND.format(clamp)))
        except BaseException:
            self._let_go()
            raise
        self._snapshot = snapshot
        for held in self._all():
            held.begin(self._limit_now(held.clock))
        self._mode_id = mode_id(self._tree)
        call_before_end(self._end)

    def _take_lock(self, clock: FileKnob) -> None:
        """Take the lock, and restore what a killed process left."""
        for path in clock.files():
            self._tree.check_writable(path)
        family = self.board.family
        lock = self._lock or board_lock(self._tree, family)
        if not lock.acquire():
            raise busy_with(self._tree, family)
        self._lock, self._pid = lock, os.getpid()
        try:
            for text in restore_left_behind(self._tree, lock, family):
                self._events.append(event(self._tree, "left behind", text))
        except BaseException:
            self._let_go()
            raise

    def _of_now(self, clock: FileKnob) -> Snapshot:
        family = self.board.family
        return Snapshot.of_now(self._tree, family, clock.files(), self._mode_of_board())

    def _let_go(self) -> None:
        forget(self._end)
        self._snapshot = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _note(self, paths: List[str]) -> None:
        """Add these files to the snapshot before any of them is changed. Raises: NotKept, Forbidden, FileFailed."""
        assert self._snapshot is not None
        snapshot = self._snapshot.with_files(self._tree, paths)
        if snapshot is not self._snapshot:
            snapshot.save()
            self._snapshot = snapshot

    def _look_at_mode(self) -> None:
        """Report, but do not undo, another program's switch of the power mode."""
        now = mode_id(self._tree)
        if now is None or now == self._mode_id:
            return
        text = (
            "another program switched the power mode from {} to {}: the limits of the previous mode will be restored; "
            "set the mode again after the pin has ended"
        ).format(self._mode_id, now)
        self._events.append(event(self._tree, "mode switched", text))
        self._mode_id = now

    def _settings_mhz(self, clock: FileKnob) -> List[float]:
        """The settings that the power mode allows: the lowest at least."""
        held = self._held(clock)
        if self._snapshot is None:
            held.limit_mhz = self._limit_before_pin(clock)
        limit_mhz = held.limit_mhz
        return [mhz for mhz in clock.settings_mhz if limit_mhz is None or not exceeds(mhz, limit_mhz)] or [
            clock.settings_mhz[0]
        ]

    def _limit_before_pin(self, clock: FileKnob) -> Optional[float]:
        """The upper limit of a clock that this controller has not pinned, or the one before a process pinned it."""
        for snapshot in self._snapshots():
            if any(path in snapshot.files for path in clock.files()):
                return clock.limit_mhz(snapshot.files)
        return self._limit_now(clock)

    def _snapshots(self) -> List[Snapshot]:
        """The valid snapshots of this family of boards on disk."""
        found = []
        for path in snapshots(self._tree):
            if family_of(path) == self.board.family:
                with suppress(NotKept):
                    found.append(Snapshot.load(path))
        return found

    def _limit_now(self, clock: FileKnob) -> Optional[float]:
        """The upper limit; None if it cannot be read, or if it may be that of heat."""
        if self._now_conditions().throttled:
            return None
        try:
            return clock.limit_mhz({path: self._tree.read(path) for path in clock.files()})
        except AgentError:
            return None

    def _check_limit(self, held: HeldClock, mhz: float) -> None:
        if held.limit_mhz is not None and mhz not in self._settings_mhz(held.clock):
            name = self._name_of(held.clock)
            limit = "{:g} MHz is above {:g} MHz, the limit of {}".format(mhz, held.limit_mhz, name)
            if self._mode_id is None:
                raise BadRequest(limit + " before; raise it first, or choose a lower clock")
            raise BadRequest(
                limit
                + " in its present power mode; switch to a mode that allows it (sudo nvpmodel -m ID), or choose a "
                "lower clock"
            )

    def _power_w(self, sensor: PowerSensor) -> float:
        try:
            return sensor.read()
        except NoReading:
            # The files of a driver that was loaded again have other numbers.
            found = self._found_again()
            # Another rail would measure something else under the same cap.
            if found is None or found.sensor is None or found.sensor.rail != sensor.rail:
                raise
            self.board.sensor = found.sensor
            return found.sensor.read()

    def _look_for_missing(self) -> None:
        board = self.board
        if board.is_card or (board.clock is not None and board.sensor is not None):
            return  # a card's parts come with its driver; a knob that it lacks may have been left out on purpose
        found = self._found_again()
        if found is None:
            return
        if (board.clock is None and found.clock is not None) or (board.sensor is None and found.sensor is not None):
            if board.clock is None:
                board.clock, board.others = found.clock, found.others
            board.sensor, board.problems = board.sensor or found.sensor, found.problems

    def _found_again(self) -> Optional[Board]:
        """The board as it is found now; None if it is gone, or was looked for a moment ago."""
        now_s = self._tree.now_s()
        if now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        try:
            return find_board(self._tree, self.board.family)
        except AgentError:
            return None

    def _now_conditions(self) -> Conditions:
        now_s, cached = self._tree.now_s(), self._conditions
        if cached is None or now_s - cached[0] >= CONDITIONS_S:
            cached = self._conditions = (now_s, self.board.conditions())
        return cached[1]

    def _now_mode(self) -> Dict[str, str]:
        now_s, cached = self._tree.now_s(), self._mode
        if cached is None or now_s - cached[0] >= CONDITIONS_S:
            cached = self._mode = (now_s, self._mode_of_board())
        return cached[1]

    def _mode_of_board(self) -> Dict[str, str]:
        before = self._mode_before_pin()
        return self.board.mode() if before is None else before

    def _mode_before_pin(self) -> Optional[Dict[str, str]]:
        """The mode before the clocks of CPU or memory were pinned, whose limits are parts of it; None if none is."""
        if not self.board.others:
            return None
        pinned = {path for clock in self.board.others.values() for path in clock.files()}
        for snapshot in [self._snapshot] if self._snapshot is not None else self._snapshots():
            if not pinned.isdisjoint(snapshot.files):
                return dict(snapshot.mode)
        return None

    def _is_ours(self) -> bool:
        return self._pid == os.getpid()

    def _end(self) -> None:
        """Restore the board at a signal or at exit. Errors go to stderr, since there is no caller to raise to."""
        if not self._is_ours():
            return
        if not self._turn.acquire(timeout=PATIENCE_S):
            sys.stderr.write("wattune: the board could not be restored; its snapshot remains: run wattune restore\n")
            return
        try:
            self.restore()
        except AgentError as error:
            sys.stderr.write("wattune: {}\n".format(error))
        finally:
            self._turn.release()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Admit one thread at a time, and hold back signals."""
        with signals_held():
            with self._turn:
                yield

    @contextmanager
    def _or_back(self) -> Iterator[None]:
        """Restore the board before re-raising any exception from inside."""
        try:
            yield
        except BaseException as error:
            try:
                self.restore()
            except NotRestored as second:
                raise NotRestored("{}; and before that: {}".format(second, error)) from error
            raise

    @contextmanager
    def _or_kept(self) -> Iterator[None]:
        """Keep every clock pinned that was before re-raising any exception from inside: only a pin may hold the cap."""
        before = [(held, held.mhz) for held in self._all()]
        try:
            yield
        except BaseException:
            for held, before_mhz in before:
                if before_mhz is None:
                    self._let_loose(held)
                elif held.mhz is not None:
                    held.keep(before_mhz)
            raise
