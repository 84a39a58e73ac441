"""The worker processes of a server: started, started again when they die, killed when they hang, stopped with it."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from wattune.server.jobs import leases
from wattune.server.settings import Settings
from wattune.server.store import Database, StoreUnavailable

LOOK_EVERY_S = 0.5
PATIENCE_S = 2 * leases.BEAT_EVERY_S
STOP_S = 5.0
"""How long a worker may take to come to its next evaluation when the server ends."""

SHORT_LIFE_S = 10.0
"""A worker that dies sooner is started again later each time, up to ``LONGEST_WAIT_S``."""

LONGEST_WAIT_S = 30.0

log = logging.getLogger("wattune.server.jobs.supervisor")


@dataclass
class _Place:
    """Room for one worker process; ``ends`` where it is not started again."""

    offers_example: bool = False
    ends: bool = False
    name: str = ""
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    not_before_s: float = 0.0
    short_lives: int = field(default=0)


class Supervisor:
    """Looks after ``settings.workers`` worker processes; a context."""

    def __init__(self, settings: Settings, database: Database):
        self._settings, self._database = settings, database
        count = min(settings.workers, 1) if settings.executor else settings.workers
        self._places = [_Place() for _ in range(count)] or [_Place(ends=True)]
        self._places[0].offers_example = True
        self._dead: dict[str, str] = {}
        self._trusts_from_s, self._offset_s = 0.0, time.time() - time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wattune-supervisor", daemon=True)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def alive(self) -> int:
        """How many workers are running."""
        return sum(self._lives(place) for place in list(self._places) if not place.ends)

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers that are running."""
        return [place.process.pid for place in list(self._places) if place.process is not None and self._lives(place)]

    def stop(self) -> None:
        """End all workers; what they were at is given back and does not count as an attempt."""
        self._stopping.set()
        self._thread.join()
        living = [place for place in self._places if place.process is not None]
        for place in living:
            assert place.process is not None
            with suppress(ProcessLookupError):
                place.process.terminate()
        until_s = time.monotonic() + STOP_S
        for place in living:
            assert place.process is not None
            try:
                place.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                place.process.kill()
                place.process.wait()
            self._close(place)
            with suppress(StoreUnavailable), self._database.session() as session:
                leases.release_worker(session, place.name, time.time())

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for place in self._places:
                self._look_after(place)
            try:
                self._release_dead()
                if self._knows_the_time():
                    self._kill_late()
            except StoreUnavailable:  # the next look tries again
                self._trusts_from_s = time.monotonic() + PATIENCE_S
            self._stopping.wait(LOOK_EVERY_S)

    def _knows_the_time(self) -> bool:
        """Whether leases that look late are: not where nobody could renew them, as the machine slept, its clock was
        set or the database was away, until everybody has had the time to."""
        now_s = time.monotonic()
        offset_s = time.time() - now_s
        if abs(offset_s - self._offset_s) > leases.BEAT_EVERY_S:
            self._trusts_from_s = now_s + PATIENCE_S
        self._offset_s = offset_s
        return now_s >= self._trusts_from_s

    def _look_after(self, place: _Place) -> None:
        now_s = time.monotonic()
        if place.process is not None and (code := place.process.poll()) is not None:
            self._close(place)
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            place.process = None
            if place.ends and code == 0:
                place.not_before_s = float("inf")
                return
            self._dead.setdefault(place.name, f"the worker ended {how}")
            log.warning("worker %s ended %s", place.name, how)
            place.short_lives = place.short_lives + 1 if now_s - place.started_s < SHORT_LIFE_S else 0
            # The first time at once: whatever it was is as likely to be over as not.
            wait_s = min(2.0 ** (place.short_lives - 2), LONGEST_WAIT_S) if place.short_lives > 1 else 0.0
            place.not_before_s = now_s + wait_s
        if place.process is None and now_s >= place.not_before_s:
            self._start(place)

    def _start(self, place: _Place) -> None:
        place.name = f"w{self._places.index(place) + 1}-{secrets.token_hex(3)}"
        place.started_s = time.monotonic()
        task = {
            "name": place.name,
            "store": str(self._settings.store),
            "database_url": self._settings.database_url,
            "executor": self._settings.executor,
            "at_once": self._settings.workers,
            "offers_example": place.offers_example,
            "works": not place.ends,
        }
        try:
            place.process = subprocess.Popen(
                [sys.executable, "-m", "wattune.server.jobs.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            # Not on its command line, which everybody on the machine can read: a URL may hold a password.
            assert place.process.stdin is not None
            place.process.stdin.write(json.dumps(task).encode() + b"\n")
            place.process.stdin.flush()
        except OSError as error:
            log.warning("cannot start a worker: %s", error)
            place.not_before_s = time.monotonic() + LONGEST_WAIT_S

    def _kill_late(self) -> None:
        """A worker that does not renew its lease hangs: it is killed, and another one starts in its place."""
        with self._database.session(reads_only=True) as session:
            late = leases.late(session, time.time())
        for place in self._places:
            if place.name in late and place.process is not None:
                self._dead.setdefault(place.name, f"the worker did not answer for {leases.LEASE_S:.0f} s")
                place.process.kill()
        if late - {place.name for place in self._places}:  # of workers that nobody knows any more
            with self._database.session() as session:
                leases.release_expired(session, time.time())

    def _release_dead(self) -> None:
        for name, reason in list(self._dead.items()):
            if any(place.name == name and self._lives(place) for place in self._places):
                continue
            with self._database.session() as session:
                leases.release_worker(session, name, time.time(), reason=reason)
            del self._dead[name]

    @staticmethod
    def _lives(place: _Place) -> bool:
        return place.process is not None and place.process.poll() is None

    @staticmethod
    def _close(place: _Place) -> None:
        if place.process is not None and place.process.stdin is not None:
            with suppress(OSError):
                place.process.stdin.close()
