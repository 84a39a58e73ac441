"""The lease on the board: its holder, clock and expiry, which the agent decides here, apart from its socket."""

import math
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional

from wattune_agent.cap_guard import is_too_hot
from wattune_agent.errors import AgentError, BadRequest, Busy, NoReading, NotThere
from wattune_agent.protocol import STATED
from wattune_agent.readings import Joules

LEASE_S = 10.0
"""Silence of a client after which its lease on the board lapses."""

BLIND_S = 2.0
"""Time without a reading under a limit after which the board goes to its lowest clock."""

UNREAD_S = 1.0
"""Time without a reading of the client after which the agent reads the sensor itself, and after as much again lowers
the clock of a board above its limit: a client that guards its limit reads ten times a second."""

CHECK_S = 1.0
"""Time between two checks for another program's writes to the clock."""

SHARED_S = 0.02
"""A reading younger than this is shared by all callers: a mean since the last reading needs some time to cover."""

RETRY_S = 5.0
"""Time between two attempts to restore a board that could not be restored."""

SAY_S = 60.0
"""Time after which a lasting failure is reported again."""


def say(text: str) -> None:
    """Print one line for the agent's operator; stderr may be closed."""
    with suppress(OSError, ValueError):
        print("wattune-agent: " + text, file=sys.stderr, flush=True)


class Party:
    """A sender of requests to the agent. ``events`` wait here for the next answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: Deque[Dict[str, Any]] = deque(maxlen=1000)

    def is_gone(self) -> bool:
        """True if the process is known to have ended, although its connection is open."""
        return False


class _Limits(NamedTuple):
    """The limits that the holder guards, and the window of its cap in seconds (None: every reading counts)."""

    cap_w: Optional[float]
    max_temp_c: Optional[float]
    window_s: Optional[float]

    def has_all(self, reading: Dict[str, Any]) -> bool:
        """True if the limits can be judged by this reading."""
        return self.max_temp_c is None or reading.get("temperature_c") is not None


class BoardLease:
    """One board and the party that holds it.

    A party that leaves, or is silent for ``lease_s``, loses the board: it is restored, or, if the party asked for a
    guard, held at its lowest clock while the party is still connected. A party that responds again gets its clock
    back, unless another one took the board meanwhile.

    The party keeps its limits itself, by its readings. If it does not read, the agent does, and holds the lowest clock
    while the board is above a limit or cannot be read, until the party reads again.

    Call ``tick`` a few times a second and ``sample`` ten times; all methods may be called from any thread.
    ``controller`` is a Controller or an object with its methods; ``recover`` restores what an ended process left behind
    and describes it.
    """

    def __init__(
        self,
        controller: Any,
        *,
        lease_s: float = LEASE_S,
        now_s: Callable[[], float] = time.monotonic,
        recover: Optional[Callable[[], List[str]]] = None,
    ) -> None:
        self._controller = controller
        self._now_s = now_s
        self._recover = recover or (lambda: [])
        self.lease_s = lease_s
        # Two locks, so that a sensor that hangs does not keep the clock from being lowered or restored.
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._latest: Optional[Dict[str, Any]] = None
        self._latest_s = 0.0
        self._notes: List[Dict[str, Any]] = []
        self._said_s: Dict[str, float] = {}
        self.mhz: Optional[float] = None
        """The clock that is held now, as far as is known; None if none is. A failed change leaves it there, or lower;
        the next one tries again."""
        self._others_held: Dict[str, float] = {}
        self._is_sure = True
        self._owed_s: Optional[float] = None  # when a board that is due to be restored was last changed
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        self._holder: Optional[Party] = None
        self._pin_mhz: Optional[float] = None
        self._others: Dict[str, float] = {}
        self._limits: Optional[_Limits] = None
        self._set_w: Optional[float] = None  # the cap that another party set in place of the holder's
        self._lapsed = False
        self._is_low = False  # until the holder reads again
        self._joules: Optional[Joules] = None  # of the agent's own readings, since it began to read
        self._heard_s = self._checked_s = self._now_s()
        self._watched_s = self._heard_s  # when the holder last read, or tried to
        self._seen_s = self._heard_s  # the latest reading, of the holder or the agent

    # ------------------------------------------------------------------------------------------------ what is asked

    @property
    def _settings(self) -> List[float]:
        """The settings at which the clock can be held."""
        return list(self._controller.describe()["settings_mhz"])

    def describe(self) -> Dict[str, Any]:
        """The board, as its controller describes it, the lease, and the fields of each request that is served."""
        return dict(self._controller.describe(), lease_s=self.lease_s, requests=STATED)

    def read(self, party: Party) -> Dict[str, Any]:
        """A reading. Raises: NoReading, NotThere, Forbidden, FileFailed."""
        self.renew(party)
        if party is not self._holder:
            return self._read()
        self._watched_s = self._now_s()  # also while a slow meter is asked
        reading = self._read()
        with self._lock:
            if party is self._holder and self._limits is not None and self._limits.has_all(reading):
                self._watched_s = self._seen_s = self._now_s()
                if self._is_low:
                    self._is_low = False
                    self._tell("reading again", "its client reads the sensor again: the board is its client's again")
                    self._quietly("the clock cannot be held", self._apply)
        return reading if self._set_w is None else dict(reading, set_cap_w=self._set_w)

    def _read(self) -> Dict[str, Any]:
        if not self._reading.acquire(timeout=BLIND_S):
            raise NoReading("the sensor has not responded for {:g} s".format(BLIND_S))
        try:
            now_s = self._now_s()
            if self._latest is None or not 0 <= now_s - self._latest_s < SHARED_S:
                self._latest = None
                self._latest = self._controller.read()
                self._latest_s = self._now_s()
            return self._latest
        finally:
            self._reading.release()

    def pin(
        self, party: Party, mhz: float, others: Optional[Dict[str, float]] = None, *, is_slice: bool = False
    ) -> Dict[str, Any]:
        """Take the board and hold its clock at ``mhz``, or at the lowest while the party does not read the sensor, and
        the ``others`` where they are asked for: those are not lowered.

        Raises: Busy, BadRequest, and the board's errors.
        """
        settings = self._settings
        if mhz not in settings:
            clocks = ", ".join("{:g}".format(s) for s in settings) or "none, it has no clock that can be set"
            raise BadRequest("{:g} MHz cannot be pinned; allowed: {}".format(mhz, clocks))
        with self._lock:
            self._take(party)
            last_pin, last_others = self._pin_mhz, self._others
            self._pin_mhz, self._others = mhz, dict(others or {})
            try:
                self._apply(again=not is_slice, is_slice=is_slice)
            except Exception:
                # A change that failed for its client is not retried; of the two clocks it wanted, keep the lower.
                is_held = self.mhz is not None and last_pin is not None
                self._pin_mhz = min(last_pin or mhz, mhz) if is_held else None
                self._others = last_others
                if self._pin_mhz is None and self._limits is None:
                    self._forget()
                raise
            return dict(self._others, mhz=self.mhz)

    def slice(self, party: Party, mhz: float) -> Dict[str, Any]:
        """Switch the clock that the party holds, quickly. Raises: BadRequest without a pin; as ``pin``."""
        with self._lock:
            self._take(party)
            if self._pin_mhz is None:
                raise BadRequest("only a pinned clock can be switched, to another of its settings")
            return self.pin(party, mhz, self._others, is_slice=True)

    def guard(
        self, party: Party, cap_w: Optional[float], max_temp_c: Optional[float], window_s: Optional[float] = None
    ) -> None:
        """Take the board, and guard it while the party does not; without both numbers, end the guard.

        Raises: Busy; NotThere, NoReading if there is no clock or reading to guard with; Forbidden and other errors that
        prevent a change of the clock.
        """
        if cap_w is None and max_temp_c is None:
            with self._lock:
                self._take(party)
                self._limits, self._is_low, self._set_w = None, False, None
                self._apply()
            return
        board = self._controller.describe()
        if not board["settings_mhz"]:
            raise NotThere("{}: no clock can be lowered, so no cap can be enforced".format(board["name"]))
        limits = _Limits(cap_w, max_temp_c, window_s)
        if not limits.has_all(self._read()):
            raise NotThere("{}: no temperature is available, so it cannot be limited".format(board["name"]))
        with self._lock:
            self._take(party)
            try:
                if self.mhz is None:  # a board that cannot be changed cannot be guarded
                    self._controller.claim()
            except Exception:
                if self._pin_mhz is None and self._limits is None:
                    self._forget()
                raise
            self._limits, self._joules = limits, None
            self._watched_s = self._seen_s = self._now_s()

    def set_cap(self, party: Party, cap_w: Optional[float]) -> None:
        """Set another cap in place of the holder's, until the holder's ends; None: the holder's own again.

        Raises: BadRequest if there is none.
        """
        with self._lock:
            if self._limits is None or self._limits.cap_w is None:
                raise BadRequest("no client has a cap now that another one could take the place of")
            self._set_w, self._joules = cap_w, None
            text = "the cap is {:g} W now, by {}; asked: {:g} W"
            self._tell("cap set", text.format(self._cap_w, party.name, self._limits.cap_w))

    @property
    def _cap_w(self) -> Optional[float]:
        """The cap that holds now."""
        return self._limits.cap_w if self._set_w is None and self._limits is not None else self._set_w

    def holds(self, party: Party) -> bool:
        """True if the party has the board."""
        return self._holder is party

    def renew(self, party: Party) -> None:
        """Renew the lease, if the party has it."""
        if self._holder is not party:
            return
        with self._lock:
            if self._holder is not party:
                return
            self._heard_s = self._now_s()
            if self._lapsed:
                self._lapsed = False
                self._tell("lease renewed", "its client responds again: the board is pinned again")
                self._quietly("the clock cannot be held", self._apply)

    def restore(self, party: Party) -> None:
        """Restore the board and release it. Raises: Busy if another party holds it, NotRestored."""
        with self._lock:
            if self._holder is not None and self._holder is not party:
                raise self._busy()
            was_held = self.mhz is not None
            self._release()
            if was_held:  # and is restored: what others left behind must not fail this party's request
                self._quietly("a board that was left behind cannot be restored", self._find_left_behind)
            else:
                self._find_left_behind()

    def leave(self, party: Party) -> None:
        """Restore the board of a party that has disconnected."""
        with self._lock:
            if self._holder is party:
                self._quietly("its client {} disconnected".format(party.name), self._release)

    def open(self) -> None:
        """Restore what an ended process left behind; the next holder of the board gets the event."""
        with self._lock:
            # A restore that fails now may succeed later, so the agent starts anyway.
            self._quietly("a board that was left behind cannot be restored", self._find_left_behind)

    def _find_left_behind(self) -> None:
        for text in self._recover():
            say(text)
            self._notes.append(self._event("left behind", text))

    def close(self) -> None:
        """Restore the board for the last time; nothing can be held after that. Raises: NotRestored."""
        with self._lock:
            self._closed = True
            self._release()

    # ------------------------------------------------------------------------------------------- what time brings

    def tick(self) -> None:
        """Check the lease, the sensor and the clock."""
        with self._lock:
            now_s = self._now_s()
            is_due = self.mhz is None and self._owed_s is not None and now_s - self._owed_s >= RETRY_S
            if is_due and self._target() is None:
                self._quietly("the board has not been restored yet", self._apply)
            holder = self._holder
            if holder is None:
                return
            if holder.is_gone():
                self.leave(holder)
                return
            if not self._lapsed and now_s - self._heard_s > self.lease_s:
                self._lapse(now_s - self._heard_s)
            if self._limits is not None and now_s - self._seen_s > BLIND_S:
                self._lower("no reading", "no reading for {:.1f} s: lowest clock".format(now_s - self._seen_s))
            if now_s - self._checked_s >= CHECK_S:
                self._checked_s = now_s
                self._quietly("the clock cannot be held", self._look)

    def sample(self) -> None:
        """Read the sensor in place of a holder that asked for a guard and does not read."""
        limits = self._limits
        if limits is None or self._now_s() - self._watched_s <= UNREAD_S:
            self._joules = None
            return
        try:
            reading = self._read()
            if not limits.has_all(reading):
                raise NoReading("no temperature")
        except AgentError as error:
            text = "no reading: {}".format(error)
            if self._is_new(text):
                say(text)
            return
        with self._lock:
            if limits is self._limits:  # else ended meanwhile
                self._judge(limits, reading, self._now_s())

    def _judge(self, limits: _Limits, reading: Dict[str, Any], now_s: float) -> None:
        """Lower the clock of a board above its limits that its client does not watch."""
        self._seen_s = now_s
        if self._joules is None:
            self._joules = Joules(0.0, self._cap_w, limits.window_s)
        self._joules.add(now_s, reading["power_w"])
        is_hot = is_too_hot(reading.get("temperature_c"), limits.max_temp_c)
        if now_s - self._watched_s >= 2 * UNREAD_S and (is_hot or self._joules.is_above):
            limit = "{:g} C".format(limits.max_temp_c or 0.0) if is_hot else "{:g} W".format(self._cap_w or 0.0)
            text = "above a limit of {}, and its client does not read the sensor: lowest clock"
            self._lower("guard", text.format(limit))

    def _lower(self, kind: str, text: str) -> None:
        """Hold the lowest clock until the holder reads again."""
        if not self._is_low:
            self._is_low = True
            self._tell(kind, text)
            self._quietly("the clock cannot be lowered", self._apply)

    def _lapse(self, silent_s: float) -> None:
        text = "its client was silent for {:.0f} s: ".format(silent_s)
        if self._limits is not None:
            self._lower("lease lapsed", text + "lowest clock, until it reads the sensor again")
        else:
            self._lapsed = True
            self._tell("lease lapsed", text + "the board was restored")
            self._quietly("its client is silent", self._apply)

    def _look(self) -> None:
        """Check that the clock is still held."""
        self._apply()
        if self.mhz is not None:
            self._tell_all(self._controller.check())

    # ------------------------------------------------------------------------------------------------- the board

    def _target(self) -> Optional[float]:
        if self._lapsed:
            return None
        return self._settings[0] if self._is_low else self._pin_mhz

    def _apply(self, again: bool = False, is_slice: bool = False) -> None:
        """Bring the board to its target; ``again`` writes the clocks even if they are there."""
        target, others = self._target(), self._others
        if target is None:
            if self.mhz is not None or self._owed_s is not None:
                self._give_back()
            return
        if target == self.mhz and others == self._others_held and self._is_sure and not again:
            return
        if self.mhz is None:
            self._owed_s = self._now_s()  # after a failure the board has been restored, unless that failed too
        self._is_sure = False
        if is_slice and self.mhz is not None and others == self._others_held:
            self._controller.slice(target)
            self.mhz = target
        else:
            self.mhz = self._controller.pin(target, others)["mhz"]
        self._others_held = dict(others)
        self._is_sure, self._owed_s = True, None

    def _give_back(self) -> None:
        """Restore the board. Raises: NotRestored; the restore is then still due."""
        self.mhz, self._others_held, self._owed_s = None, {}, self._now_s()
        self._controller.restore()
        self._owed_s = None
        self._tell_all(self._controller.check())

    def _release(self) -> None:
        try:
            self._give_back()
        finally:
            self._forget()

    def _take(self, party: Party) -> None:
        if self._closed:
            raise Busy("the agent is shutting down")
        if self._holder is not None and self._holder is not party:
            if not self._lapsed:
                raise self._busy()
            self._tell("taken over", "{} took the board while its client was silent".format(party.name))
            self._release()
        if self._holder is None:
            self._forget()
            self._holder = party
            party.events.extend(self._notes)
            self._notes = []
        self.renew(party)

    def _busy(self) -> Busy:
        name = self._holder.name if self._holder is not None else "another client"
        return Busy("{} holds the board; stop it, or wait until it finishes".format(name))

    # -------------------------------------------------------------------------------------------------- what is said

    def _event(self, kind: str, text: str) -> Dict[str, Any]:
        return {"time_s": self._now_s(), "kind": kind, "text": text}

    def _tell(self, kind: str, text: str) -> None:
        self._tell_all([self._event(kind, text)])

    def _tell_all(self, events: List[Dict[str, Any]]) -> None:
        """Tell the holder, if there is one, and the agent's log."""
        for event in events:
            if self._holder is not None:
                self._holder.events.append(event)
            say("{}: {}".format(event["kind"], event["text"]))

    def _is_new(self, text: str) -> bool:
        """True unless the text was reported in the last minute: some failures repeat ten times a second."""
        now_s = self._now_s()
        if now_s - self._said_s.get(text, -math.inf) < SAY_S:
            return False
        if len(self._said_s) >= 100:
            self._said_s.clear()
        self._said_s[text] = now_s
        return True

    def _quietly(self, why: str, act: Callable[[], None]) -> None:
        """Run ``act`` without a caller to raise to: a failure becomes an event, and the next tick tries again."""
        try:
            act()
        except AgentError as error:
            if self._is_new(str(error)):
                self._tell("failed", "{}: {}".format(why, error))
