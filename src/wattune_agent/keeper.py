"""Who holds the board, at which clock, and until when: what the agent decides, without its socket."""

import threading
import time
from typing import Any, Callable, Dict, List, Optional

from wattune_agent.cap_guard import told
from wattune_agent.ceiling import Ceiling
from wattune_agent.errors import AgentError, BadRequest, Busy, NoReading, NotThere
from wattune_agent.hold import Hold
from wattune_agent.party import Party, Teller, say
from wattune_agent.settings import at_most

__all__ = ["BLIND_S", "LEASE_S", "Keeper"]

LEASE_S = 10.0
"""Silence of a client after which its board is no longer left to it."""

BLIND_S = 2.0
"""Time without a reading under a cap after which the board goes to its lowest clock."""

CHECK_S = 1.0
"""Time between two looks at whether somebody else wrote to the clock."""

SHARED_S = 0.02
"""A reading younger than this is given to whoever asks: a mean since the last reading needs some time to be one of."""


class Keeper:
    """One board and the one party that holds it.

    A party that leaves, or is silent for ``lease_s``, loses the board: it is restored, or, where the party had asked
    for a guard, held at its lowest clock while the party is still there. A party that speaks again has its clock back,
    unless another one took the board meanwhile. Call ``tick`` a few times a second and ``sample`` ten times; all
    methods may be called from any thread. ``controller`` is a Controller or what has its methods; ``recover`` brings
    back what an ended process left behind and says what that was.
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
        self._teller = Teller(now_s)
        self._hold = Hold(controller, now_s)
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        self._holder: Optional[Party] = None
        self._wanted: Optional[float] = None
        self._base: Optional[float] = None
        self._ceiling: Optional[Ceiling] = None
        self._lapsed = False
        self._blind = False
        self._heard_s = self._seen_s = self._checked_s = self._now_s()

    # ------------------------------------------------------------------------------------------------ what is asked

    @property
    def mhz(self) -> Optional[float]:
        """What the clock is held at now; None: nothing is held."""
        return self._hold.mhz

    def holds(self, party: Party) -> bool:
        """Whether it is this party's board now."""
        return self._holder is party

    def describe(self) -> Dict[str, Any]:
        """The board, as its controller describes it, and the lease."""
        return dict(self._controller.describe(), lease_s=self.lease_s)

    def read(self, party: Optional[Party] = None) -> Dict[str, Any]:
        """A reading. Raises: NoReading, NotThere, Forbidden, FileFailed."""
        self._hear(party)
        if not self._reading.acquire(timeout=BLIND_S):
            raise NoReading("the sensor does not answer for {:g} s".format(BLIND_S))
        try:
            now_s = self._now_s()
            if self._latest is None or not 0 <= now_s - self._latest_s < SHARED_S:
                self._latest = None
                self._latest = self._controller.read()
                self._latest_s = self._now_s()
            return self._latest
        finally:
            self._reading.release()

    def pin(self, party: Party, mhz: float) -> Dict[str, Any]:
        """Take the board and hold its clock there, or at the guard's ceiling.

        Raises: Busy, BadRequest, and what the board raises.
        """
        settings = self._hold.settings
        if mhz not in settings:
            allowed = ", ".join("{:g}".format(s) for s in settings) or "none, it has no clock that can be set"
            raise BadRequest("{:g} MHz cannot be pinned; allowed: {}".format(mhz, allowed))
        with self._lock:
            self._take(party)
            before, wanted = self.mhz, self._wanted
            self._wanted = mhz
            try:
                self._apply(again=True)
            except Exception:
                # What its client saw fail is not tried again; of two clocks that it has wanted, the lower one is.
                is_held = self.mhz is not None and wanted is not None
                self._wanted = min(wanted or mhz, mhz) if is_held else None
                if self._wanted is None and self._ceiling is None:
                    self._forget()
                raise
            if self._ceiling is not None and before is not None and mhz < before:
                self._ceiling.lowered()
            return {"mhz": self.mhz}

    def guard(self, party: Party, cap_w: Optional[float], max_temp_c: Optional[float]) -> Dict[str, Any]:
        """Take the board and guard it; without both numbers, end the guard.

        Raises: Busy; NotThere, NoReading where there is nothing to guard by; Forbidden and what else keeps the clock
        from being changed.
        """
        if cap_w is None and max_temp_c is None:
            with self._lock:
                self._take(party)
                self._ceiling, self._blind = None, False
                self._apply()
            return {}
        board = self._controller.describe()
        if not board["settings_mhz"]:
            raise NotThere("{}: no clock that could be lowered, so no cap can be guarded".format(board["name"]))
        reading = self.read()
        if max_temp_c is not None and reading.get("temperature_c") is None:
            raise NotThere("{}: no temperature to hold a limit on".format(board["name"]))
        with self._lock:
            self._take(party)
            try:
                self._hold.claim()
            except Exception:
                if self._wanted is None and self._ceiling is None:
                    self._forget()
                raise
            ceiling = self._ceiling
            if ceiling is None or (ceiling.cap_w, ceiling.max_temp_c) != (cap_w, max_temp_c):
                settle_s = board["window_s"] + board["lag_s"] + board["period_s"]
                self._ceiling = Ceiling(board["settings_mhz"], cap_w, max_temp_c, settle_s)
                self._seen_s = self._now_s()
            self._apply()
        return {}

    def renew(self, party: Party) -> Dict[str, Any]:
        """Still here."""
        self._hear(party)
        return {}

    def restore(self, party: Party) -> Dict[str, Any]:
        """Bring the board back and give it up. Raises: Busy where another party holds it, NotRestored."""
        with self._lock:
            if self._holder is not None and self._holder is not party:
                raise self._busy()
            was_held = self.mhz is not None
            self._release()
            if was_held:  # and is back: what others have left is not this party's business
                self._quietly("what was left behind cannot be brought back", self._find_left_behind)
            else:
                self._find_left_behind()
        return {}

    def leave(self, party: Party) -> None:
        """The party is gone: bring back its board."""
        with self._lock:
            if self._holder is party:
                self._quietly("its client {} left".format(party.name), self._release)

    def open(self) -> None:
        """Bring back what an ended process left behind; whoever takes the board next is told."""
        with self._lock:
            # What cannot be brought back now may be possible later: an agent that is not there helps nobody.
            self._quietly("what was left behind cannot be brought back", self._find_left_behind)

    def _find_left_behind(self) -> None:
        for text in self._recover():
            say(text)
            self._notes.append(self._teller.event("left behind", text))

    def close(self) -> None:
        """Bring back the board for good; nothing can be held after that. Raises: NotRestored."""
        with self._lock:
            self._closed = True
            self._release()

    # ------------------------------------------------------------------------------------------- what time brings

    def tick(self) -> None:
        """Look at the lease, at the sensor, and at whether the clock is where it should be."""
        with self._lock:
            now_s = self._now_s()
            if self._hold.is_due() and self._target() is None:
                self._quietly("the board is still to be restored", self._apply)
            holder = self._holder
            if holder is None:
                return
            if holder.is_gone():
                self.leave(holder)
                return
            if not self._lapsed and now_s - self._heard_s > self.lease_s:
                self._lapse(now_s - self._heard_s)
            if self._ceiling is not None and not self._blind and now_s - self._seen_s > BLIND_S:
                self._blind = True
                self._tell("no reading", "no reading for {:.1f} s: lowest clock".format(now_s - self._seen_s))
                self._quietly("the clock cannot be lowered", self._apply)
            if now_s - self._checked_s >= CHECK_S:
                self._checked_s = now_s
                self._quietly("the clock cannot be held", self._look)

    def sample(self) -> None:
        """Read the sensor for the guard, where there is one."""
        ceiling = self._ceiling
        if ceiling is None:
            return
        try:
            reading = self.read()
            if ceiling.max_temp_c is not None and reading.get("temperature_c") is None:
                raise NoReading("no temperature")
        except AgentError as error:
            text = "no reading: {}".format(error)
            if self._teller.is_new(text):
                say(text)
            return
        with self._lock:
            if ceiling is not self._ceiling:  # ended meanwhile
                return
            self._seen_s = self._latest_s
            if self._blind:
                self._blind = False
                self._tell("reading again", "the sensor reads again")
            at = self._at(ceiling, reading)
            top = self._wanted if self._wanted is not None else self._base
            for event in ceiling(self._latest_s, reading["power_w"], reading.get("temperature_c"), at, top):
                self._tell("guard", told(event, ceiling.cap_w, ceiling.max_temp_c))
            self._quietly("the clock cannot be lowered", self._apply)

    def _at(self, ceiling: Ceiling, reading: Dict[str, Any]) -> Optional[float]:
        if self.mhz is not None:
            return self.mhz
        # Nothing is pinned: the guard begins at the clock that the board has chosen itself under this load.
        at = at_most(self._hold.settings, reading.get("clock_mhz"))
        self._base = at if self._base is None else max(self._base, at)
        return at

    def _lapse(self, silent_s: float) -> None:
        self._lapsed = True
        if self._ceiling is not None:
            self._tell("lease lapsed", "its client was silent for {:.0f} s: lowest clock, guarded".format(silent_s))
            self._quietly("the clock cannot be lowered", self._apply)
        else:
            self._tell("lease lapsed", "its client was silent for {:.0f} s: the board was restored".format(silent_s))
            self._quietly("its client is silent", self._apply)

    def _look(self) -> None:
        self._apply()
        self._tell_all(self._hold.look())

    # ------------------------------------------------------------------------------------------------- the board

    def _target(self) -> Optional[float]:
        if self._lapsed and self._ceiling is None:
            return None
        if self._ceiling is None:
            return self._wanted
        if self._lapsed or self._blind:
            return self._hold.settings[0]
        values = [v for v in (self._wanted, self._ceiling.value) if v is not None]
        return min(values) if values else None

    def _apply(self, again: bool = False) -> None:
        target = self._target()
        if target is None:
            self._tell_all(self._hold.give_back())
        else:
            self._hold.put(target, again)

    def _release(self) -> None:
        try:
            self._tell_all(self._hold.give_back(always=True))
        finally:
            self._forget()

    def _take(self, party: Party) -> None:
        if self._closed:
            raise Busy("the agent is going down")
        if self._holder is not None and self._holder is not party:
            if not self._lapsed or self._ceiling is not None:
                raise self._busy()
            self._tell("taken over", "while it was silent, {} took the board".format(party.name))
            self._release()
        if self._holder is None:
            self._forget()
            self._holder = party
            party.events.extend(self._notes)
            self._notes = []
        self._hear(party)

    def _busy(self) -> Busy:
        name = self._holder.name if self._holder is not None else "nobody"
        return Busy("{} holds the board; end it, or wait until it is done".format(name))

    def _hear(self, party: Optional[Party]) -> None:
        if party is None or self._holder is not party:
            return
        with self._lock:
            if self._holder is not party:
                return
            self._heard_s = self._now_s()
            if self._lapsed:
                self._lapsed = False
                self._tell("lease renewed", "its client speaks again: the board is pinned again")
                self._quietly("the clock cannot be held", self._apply)

    # -------------------------------------------------------------------------------------------------- what is said

    def _tell(self, kind: str, text: str) -> None:
        self._tell_all([self._teller.event(kind, text)])

    def _tell_all(self, events: List[Dict[str, Any]]) -> None:
        for event in events:
            self._teller.tell(self._holder, event)

    def _quietly(self, why: str, act: Callable[[], None]) -> None:
        """Nobody waits for the outcome of this: a failure becomes an event, and the next tick tries again."""
        try:
            act()
        except AgentError as error:
            if self._teller.is_new(str(error)):
                self._tell("failed", "{}: {}".format(why, error))
