"""The controller of one board in this process: it pins the clock, reads, and leaves the board as it was found.

The order of the steps guarantees that. Before the first write: take the lock, restore what a killed process left
behind, write the snapshot to disk, install the signal handlers. After the last: compare every file with the snapshot,
only then delete the snapshot, and only then release the lock. So a process can be killed at any moment: either nothing
has changed yet, or the snapshot exists.
"""

import os
import sys
import threading
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type

from wattune_agent.board import Board, Clock, Conditions
from wattune_agent.conditions import conditions
from wattune_agent.discovery import find_board
from wattune_agent.errors import AgentError, BadRequest, Busy, NotKept, NotRestored, NotTaken, NotThere
from wattune_agent.leftover import busy_with, give_back, left_behind, lock_path, restore_left_behind
from wattune_agent.limits import bring_back
from wattune_agent.lock import Lock
from wattune_agent.mode import mode, mode_files, mode_id, switch_mode
from wattune_agent.settings import exceeds
from wattune_agent.signals import call_before_end, ending, forget, held
from wattune_agent.snapshot import Snapshot, family_of, snapshots
from wattune_agent.watch import ANSWERS, ClockWatch, event, now_of, settle

__all__ = ["Controller", "left_behind", "restore_left_behind"]

CONDITIONS_S = 1.0
"""Time between two reads of temperatures, counters and the mode, which change slowly and take many files."""

LOOK_S = 2.0
"""Time between two looks for a clock or a sensor that was not there."""

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
        self._watch: Optional[ClockWatch] = None
        self._mhz: Optional[float] = None
        self._answers = ANSWERS
        self._pid = os.getpid()
        self._looked_s = self._tree.now_s()
        self._limit_mhz: Optional[float] = None
        self._mode_id: Optional[int] = None
        self._events: List[Dict[str, Any]] = []
        self._conditions: Optional[Tuple[float, Conditions]] = None
        self._mode: Optional[Tuple[float, Dict[str, str]]] = None

    def __enter__(self) -> "Controller":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------------- reading

    def describe(self) -> Dict[str, Any]:
        """The board's properties; ``rail`` is empty without a sensor, ``settings_mhz`` without a clock.

        A part that was missing is looked for again: when a machine starts, drivers come one after another.
        """
        self._look_for_missing()
        board, clock, sensor = self.board, self.board.clock, self.board.sensor
        board.mode = self._now_mode()
        return {
            "family": board.family,
            "name": board.name,
            "mode": dict(board.mode),
            "unit": clock.unit if clock is not None else "",
            "settings_mhz": self._settings_mhz(clock) if clock is not None else [],
            "rail": sensor.rail if sensor is not None else "",
            "covers": sensor.covers if sensor is not None else "",
            "resolution_w": sensor.resolution_w if sensor is not None else 0.0,
            "period_s": sensor.period_s if sensor is not None else 0.0,
            "window_s": sensor.window_s if sensor is not None else 0.0,
            "lag_s": sensor.lag_s if sensor is not None else 0.0,
            "problems": list(board.problems),
            "real": self._tree.is_real,
        }

    def read(self) -> Dict[str, Any]:
        """Power, temperature, causes of throttling, and the current clock (None if it cannot be read).

        Raises: NotThere without a sensor, NoReading, Forbidden.
        """
        if self.board.sensor is None:
            raise NotThere("no power sensor: " + ("; ".join(self.board.problems) or "none was found"))
        reading = self.board.sensor.read()
        now = self._now_conditions()
        try:
            clock_mhz = self.board.clock.now_mhz() if self.board.clock is not None else None
        except AgentError:
            clock_mhz = None
        return {
            "power_w": reading.power_w,
            "rails_w": dict(reading.rails_w),
            "temperature_c": now.temperature_c,
            "throttled": list(now.throttled),
            "over_current": now.over_current,
            "clock_mhz": clock_mhz,
        }

    def check(self) -> List[Dict[str, Any]]:
        """The board's events since the last call; call it about once a second while the board is pinned.

        Limits that another program changed are written again, up to a few times.
        """
        with self._alone():
            if self._watch is not None and self._is_ours():
                self._events += self._watch.look()
                self._answers = self._watch.answers
                self._look_at_mode()
            events, self._events = self._events, []
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
            for path in clock.files():
                self._tree.check_writable(path)
            self._take_lock(clock)
            try:
                snapshot = self._of_now(clock)
                snapshot.save()  # only to check that it can be written: the first change saves it again
                snapshot.remove()
            except BaseException:
                self._let_go()
                raise

    def pin(self, mhz: float) -> Dict[str, Any]:
        """Set the clock to one of its settings and verify it.

        A clock above the limit that the board had is refused: its power mode sets that limit, in the same file.

        Raises: BadRequest, NotThere without a clock, Busy, NotKept, NotTaken, Forbidden, FileFailed. If the first pin
        fails, the board is restored first; NotRestored if that fails too. If a change of a pinned clock fails, the
        clock stays pinned where it was, or lower.
        """
        clock = self._clock()
        if mhz not in clock.settings_mhz:
            clocks = ", ".join("{:g}".format(setting) for setting in clock.settings_mhz)
            raise BadRequest("{} has no {:g} MHz; it has {} MHz".format(self.board.name, mhz, clocks))
        with self._alone():
            self._take()
            with self._or_back() if self._mhz is None else self._or_kept(clock, self._mhz):
                self._check_limit(clock, mhz)
                self._put(clock, mhz)
        return {"mhz": mhz}

    def switch_mode(self, number: int) -> None:
        """Switch to another power mode until ``restore``. The switch ends a pin: pin again.

        Raises: NotThere, BadRequest, Forbidden, NotTaken; Busy, NotKept, NotRestored as ``pin``.
        """
        before = mode_id(self._tree)
        if before == number:
            return
        if before is None:
            raise NotThere("the current power mode is unknown and could not be restored, so it was not switched")
        with self._alone():
            self._take()
            with self._or_back():
                self._note(mode_files(self._tree), before)
                self._watch = self._mhz = self._mode = None
                switch_mode(self._tree, number)
                self._mode_id = number
                self._limit_mhz = self._limit_now(self._clock())

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
            self._watch = self._mhz = self._mode = None
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
                    try:
                        self._snapshot._replace(
                            pid=0
                        ).save()  # without an owner: others need not wait for this process to end
                    except NotKept:
                        pass
                self._let_go()

    # --------------------------------------------------------------------------------------------------------- private

    def _clock(self) -> Clock:
        if self.board.clock is None:
            raise NotThere("no clock that can be set: " + ("; ".join(self.board.problems) or "none was found"))
        return self.board.clock

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
            for clamp in conditions(self._tree).throttled:
                self._events.append(event(self._tree, "clamped", AS_FOUND.format(clamp)))
        except BaseException:
            self._let_go()
            raise
        self._snapshot, self._answers = snapshot, ANSWERS
        self._limit_mhz = self._limit_now(clock)
        self._mode_id = mode_id(self._tree)
        call_before_end(self._end)

    def _take_lock(self, clock: Clock) -> None:
        """Take the lock, and restore what a killed process left."""
        family = self.board.family
        lock = self._lock or Lock(self._tree, lock_path(clock.files()))
        if not lock.acquire():
            raise busy_with(self._tree, family, lock.path)
        self._lock, self._pid = lock, os.getpid()
        try:
            for text in restore_left_behind(self._tree, lock, family):
                self._events.append(event(self._tree, "left behind", text))
        except BaseException:
            self._let_go()
            raise

    def _of_now(self, clock: Clock) -> Snapshot:
        family = self.board.family
        return Snapshot.of_now(self._tree, family, clock.files(), mode(self._tree, family))

    def _let_go(self) -> None:
        forget(self._end)
        self._snapshot = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _put(self, clock: Clock, mhz: float) -> None:
        """Write the limits, wait for the clock to settle, and watch both from now on."""
        self._note(clock.files())
        was_mhz = now_of(clock)
        clamped = clock.pin(mhz)
        settle(self._tree, clock, mhz, was_mhz)
        self._watch = ClockWatch(self._tree, clock, mhz, self._answers, clamped)
        self._mhz = mhz
        if clamped:
            text = "{}: heat, or another limit of the board, throttles the clock below the pin"
            self._events.append(event(self._tree, "clamped", text.format(self._watch.told)))

    def _keep(self, clock: Clock, before_mhz: float) -> float:
        """After a failed change, leave the limits if they pin the clock no higher than before; otherwise move them back
        there, or lower. Returns the pinned clock; raises nothing."""
        try:
            now_mhz = clock.pinned_mhz()
        except AgentError:
            now_mhz = None
        if now_mhz is not None and now_mhz < before_mhz and self._watched(clock, now_mhz, {}):
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
            if self._watched(clock, mhz, clamped):
                return mhz
        return before_mhz  # everything that can be written was; the watch retries the rest

    def _watched(self, clock: Clock, mhz: float, clamped: Dict[str, str]) -> bool:
        try:
            self._watch = ClockWatch(self._tree, clock, mhz, self._answers, clamped)
        except AgentError:
            return False
        text = "a change of the clock failed; it is held at {:g} MHz, lower than before".format(mhz)
        self._events.append(event(self._tree, "kept", text))
        return True

    def _note(self, paths: List[str], mode_number: Optional[int] = None) -> None:
        """Add these files, and the mode to return to, to the snapshot before any of them is changed.

        Raises: NotKept, and errors of reading the clock's files; a mode's files are saved as far as possible.
        """
        assert self._snapshot is not None
        if mode_number is not None and self._snapshot.mode_id is not None:
            return
        snapshot = self._snapshot.with_files(self._tree, paths, mode_number)
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

    def _settings_mhz(self, clock: Clock) -> List[float]:
        """The settings that the power mode allows: the lowest at least."""
        if self._snapshot is None:
            self._limit_mhz = self._limit_before_pin(clock)
        limit_mhz = self._limit_mhz
        return [mhz for mhz in clock.settings_mhz if limit_mhz is None or not exceeds(mhz, limit_mhz)] or [
            clock.settings_mhz[0]
        ]

    def _limit_before_pin(self, clock: Clock) -> Optional[float]:
        """The upper limit of a clock that this controller has not pinned, or the one before a process pinned it."""
        for path in snapshots(self._tree):
            if family_of(path) == self.board.family:
                try:
                    return clock.limit_mhz(Snapshot.load(path).files)
                except NotKept:
                    pass
        return self._limit_now(clock)

    def _limit_now(self, clock: Clock) -> Optional[float]:
        """The upper limit; None if it cannot be read, or if it may be that of heat."""
        if self._now_conditions().throttled:
            return None
        try:
            return clock.limit_mhz({path: self._tree.read(path) for path in clock.files()})
        except AgentError:
            return None

    def _check_limit(self, clock: Clock, mhz: float) -> None:
        if self._limit_mhz is not None and mhz not in self._settings_mhz(clock):
            raise BadRequest(
                "{:g} MHz is above {:g} MHz, the limit of {} in its present power mode; switch to a mode that allows "
                "it (--mode ID, or sudo nvpmodel -m ID), or choose a lower clock".format(
                    mhz, self._limit_mhz, self.board.name
                )
            )

    def _look_for_missing(self) -> None:
        board, now_s = self.board, self._tree.now_s()
        if (board.clock is not None and board.sensor is not None) or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        try:
            found = find_board(self._tree, board.family)
        except AgentError:
            return
        if (board.clock is None and found.clock is not None) or (board.sensor is None and found.sensor is not None):
            board.clock = board.clock or found.clock
            board.sensor = board.sensor or found.sensor
            board.problems = found.problems

    def _now_conditions(self) -> Conditions:
        now_s, cached = self._tree.now_s(), self._conditions
        if cached is None or now_s - cached[0] >= CONDITIONS_S:
            cached = self._conditions = (now_s, conditions(self._tree))
        return cached[1]

    def _now_mode(self) -> Dict[str, str]:
        now_s, cached = self._tree.now_s(), self._mode
        if cached is None or now_s - cached[0] >= CONDITIONS_S:
            cached = self._mode = (now_s, mode(self._tree, self.board.family))
        return cached[1]

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
        with held():
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
    def _or_kept(self, clock: Clock, before_mhz: float) -> Iterator[None]:
        """Keep the clock pinned before re-raising any exception from inside: only the pin may hold the cap."""
        try:
            yield
        except BaseException:
            self._mhz = self._keep(clock, before_mhz)
            raise
