"""Messages between the leader of a data-parallel job and its other ranks, through the job's own store.

The collectives of training are of no use for this: they hang when a rank is gone, and a message here must also arrive
while the main thread waits in one.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch.distributed as dist

from wattune.errors import DeviceError

BEAT_EVERY_S = 0.5
"""Seconds from one sign of life to the next."""

SILENT_AFTER_S = 10.0
"""Seconds without a sign of life after which a rank counts as hanging. It comes from a thread of its own, so that no
evaluation is too long for it, and a process that is stopped or a lost network is."""

RANK_TIMEOUT_S = 30.0
"""Seconds in which a rank that does not go on, while others wait for it, ends the job."""

RAISE_WITHIN_S = 2.0
"""Seconds in which the main thread may notice that another rank is lost; it is interrupted after them."""

LEAVE_WITHIN_S = 3.0
"""Seconds that it then has to leave the session: a thread that waits in a collective cannot be interrupted."""

NEWS_WITHIN_S = 2.0
"""Seconds that an error may be ahead of the news that a rank is lost, which caused it."""

LEAST_TIMEOUT_S: Final = 10.0

FRAMEWORK_TIMEOUT_S = 600.0
"""Longer for Lightning and Transformers, which save a checkpoint on one rank alone while the others go on."""

LONGEST_SLEEP_S = 0.005
"""Longest time from one look for a message to the next: a wait in the store that ends without one prints a warning."""

OLD: Final = 64
"""Messages to all ranks that stay in the store: no rank is that many steps behind."""

LEADER: Final = 0


class RankLost(DeviceError):
    """Another rank of the job died, hangs, or left its session early."""


class Place(NamedTuple):
    """Progress of a rank: complete steps, and in the next one 0 in the user's code, 1 once it wants the step, 2
    once it has begun it, and one more after each of its backward passes."""

    steps: int = 0
    phase: int = 0


class Peer:
    """A rank as it was last heard of; ``process`` is its number if it runs on this computer."""

    def __init__(self, name: str, process: int | None = None):
        self.name = name
        self.is_over = False
        """True once the rank's session has ended."""
        self.heard_s = self.moved_s = time.monotonic()
        self.place = Place()
        self._beat = 0
        self._process = process

    def come(self, beat: int, place: Place | None) -> None:
        """Note how far the rank has come by its newest sign of life; None while it does what may take any time."""
        if beat == self._beat:
            return
        self._beat, self.heard_s = beat, time.monotonic()
        if place != self.place:
            self.moved_s = self.heard_s
        self.place = self.place if place is None else place

    def has_ended(self) -> bool:
        """True if the process is known to have ended."""
        if self._process is None:
            return False
        try:
            state = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        return state in "ZX"


def job_store(prefix: str) -> Any:
    """The keys of the job's store below a prefix, through a client that nobody else waits with."""
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "host"):  # only a TCPStore has one client for each process
        store = type(store)(store.host, store.port, None, False, wait_for_workers=False)
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


class Channel:
    """Messages of the leader to all other ranks, and theirs to the leader; how far each of them has come.

    ``store``: the keys of this job alone; ``peers``: all ranks. A rank that does not go on for ``timeout_s``, while
    others wait for it, is lost.
    """

    def __init__(self, store: Any, rank: int, peers: list[Peer], timeout_s: float = RANK_TIMEOUT_S):
        self.rank = rank
        self.names = [peer.name for peer in peers]
        self.place = Place()
        self.lost: str | None = None
        """The rank that is lost, and how, in words."""
        self.has_interrupted = False
        """True once the main thread was interrupted, since it did not notice that a rank is lost."""
        self._store, self._all, self._timeout_s = store, peers, timeout_s
        others = set(range(len(peers))) - {rank}
        self._peers = {other: peers[other] for other in (others if rank == LEADER else {LEADER})}
        for peer in peers:
            peer.heard_s = peer.moved_s = time.monotonic()
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._beats = 0
        self._is_busy = False
        self._losing = threading.Lock()
        self._leaving = threading.Event()
        self._done = threading.Event()
        self._looked_s = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, name="wattune-ranks", daemon=True)
        self._watcher.start()
        threading.Thread(target=self._watch_store, name="wattune-store", daemon=True).start()

    # -------------------------------------------------------------------------------------------------------- messages

    def tell_all(self, **message: Any) -> None:
        """Send a message of the leader to all ranks."""
        self.send("all", message)
        with suppress(RuntimeError):
            self._store.delete_key(f"all/{self._sent['all'] - OLD}")

    def send(self, kind: str, value: Any) -> None:
        """Send a message of this kind; without the store it is dropped, and the watcher notices that."""
        self._sent[kind] += 1
        with suppress(RuntimeError):
            self._store.set(f"{kind}/{self._sent[kind]}", pickle.dumps(value))

    def has(self, rank: int) -> bool:
        """True while this rank is in its session, and no rank is lost."""
        return self.lost is None and not (self._peers[rank].is_over or self._peers[rank].has_ended())

    def received(self, kind: str) -> Any:
        """The next message of this kind; None if it is still to come. Raises: RankLost."""
        key = f"{kind}/{self._received[kind] + 1}"
        try:
            if not self._store.check([key]):
                return None
            value = pickle.loads(self._store.get(key))
            if kind != "all":
                self._store.delete_key(key)
        except RuntimeError:
            raise RankLost(self._lose_store()) from None
        self._received[kind] += 1
        return value

    def receive(self, kind: str, rank: int = LEADER, within_s: float = math.inf) -> Any:
        """The next message of this kind, which ``rank`` sends. Raises: RankLost; DeviceError if none ``within_s``."""
        begun_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - begun_s
            lost = self.lost  # looked at first: what was sent before has arrived by then
            if lost is None and self._peers[rank].is_over:
                lost = f"{self.names[rank]} has ended its session, and this one makes more passes"
            message = self.received(kind)
            # Once a rank is lost, only the stop that caused it counts.
            if message is not None and (self.lost is None or (isinstance(message, dict) and "stop" in message)):
                return message
            if lost is not None:
                raise RankLost(lost)
            if waited_s > within_s:
                raise DeviceError(f"{self.names[rank]} has not answered within {within_s:g} s")
            time.sleep(min(LONGEST_SLEEP_S, waited_s / 10))

    def reach(self, phase: int) -> None:
        """Note how far this rank has come in its next step."""
        self.place = Place(self.place.steps, phase)

    def passed(self) -> None:
        """Note a backward pass of the step under way."""
        if self.place.phase >= 2:
            self.reach(self.place.phase + 1)

    def stepped(self) -> None:
        """Note a complete step."""
        self.place = Place(self.place.steps + 1, 1)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Context of what may take any time on this rank alone."""
        before, self._is_busy = self._is_busy, True
        try:
            yield
        finally:
            self._is_busy = before

    def check(self) -> None:
        """Check that every rank is there. Raises: RankLost."""
        if self.lost is not None:
            raise RankLost(self.lost)

    def lose(self, what: str) -> None:
        """End the job, since a rank is lost: ``what`` says which and how. The first loss counts on all ranks."""
        with self._losing:
            if self._done.is_set() or self.lost is not None:
                return
            with suppress(RuntimeError):
                what = self._store.compare_set("lost", "", what).decode()
            if self.lost is None:
                self._end(what)

    def _end(self, what: str) -> None:
        self.lost = what
        threading.Thread(target=self._end_session, name="wattune-rank-lost", daemon=True).start()

    @property
    def is_overdue(self) -> bool:
        """True while a rank gives no sign of life, although it is too early to call it lost."""
        now_s = time.monotonic()
        return any(not peer.is_over and now_s - peer.heard_s > NEWS_WITHIN_S for peer in self._peers.values())

    def wait_lost(self, *, longer: bool) -> None:
        """Wait for the news that a rank is lost, if it is to come: it may take a moment longer than the loss itself.

        ``longer``: a collective has failed, so that the news is to come; of another computer it takes longer.
        """
        until_s = time.monotonic() + (SILENT_AFTER_S + NEWS_WITHIN_S if longer else NEWS_WITHIN_S)
        while self.lost is None and (self.is_overdue or time.monotonic() < until_s):
            time.sleep(BEAT_EVERY_S / 10)

    def leave(self) -> None:
        """Say that the main thread is ending its session: it restores the board, and is not interrupted any more."""
        self._leaving.set()

    def close(self, reason: str | None = None) -> None:
        """End this rank's part; ``reason``: the error that ended it, None if it finished."""
        self._leaving.set()
        if self._done.is_set():
            return
        self._done.set()
        self._watcher.join(NEWS_WITHIN_S)
        ending = threading.Thread(target=self._say_over, args=(reason,), daemon=True)  # the store may never answer
        ending.start()
        ending.join(2 * NEWS_WITHIN_S)

    def _say_over(self, reason: str | None) -> None:
        with suppress(RuntimeError):
            if reason is not None:
                self._store.compare_set("lost", "", f"{self.names[self.rank]} ended with an error: {reason}")
            self._beat(is_over=True)
            until_s = time.monotonic() + NEWS_WITHIN_S
            while self.rank == LEADER and time.monotonic() < until_s and not all(map(self._is_gone, self._peers)):
                time.sleep(LONGEST_SLEEP_S)  # the store may end with this process

    def _is_gone(self, rank: int) -> bool:
        self._hear(rank)
        return self._peers[rank].is_over or self._peers[rank].has_ended()

    # --------------------------------------------------------------------------------------------------------- watcher

    def _watch(self) -> None:
        before_s = time.monotonic()
        try:
            while not self._done.wait(BEAT_EVERY_S):
                now_s = time.monotonic()
                slept_s, before_s = now_s - before_s, now_s
                self._looked_s = now_s
                self._beat()
                if self._store.check(["lost"]):
                    self.lose(self._store.get("lost").decode())
                for rank, peer in self._peers.items():
                    self._hear(rank)
                    if peer.is_over:
                        continue
                    if peer.has_ended():
                        self.lose(f"{peer.name} was killed or ended without a word")
                    elif slept_s > NEWS_WITHIN_S:
                        peer.heard_s = now_s  # this process was stopped itself, as all of a job are by Ctrl-Z
                    elif now_s - peer.heard_s > SILENT_AFTER_S:
                        self.lose(f"{peer.name} has given no sign of life for {SILENT_AFTER_S:g} s")
                if self.rank == LEADER:
                    self._look_for_late(now_s)
        except RuntimeError:
            self._lose_store()

    def _watch_store(self) -> None:
        """End the job if the store does not answer: no call of a client returns while its server is stopped."""
        before_s = time.monotonic()
        while not self._done.wait(BEAT_EVERY_S) and self.lost is None:
            now_s = time.monotonic()
            if now_s - before_s > NEWS_WITHIN_S:
                self._looked_s = now_s  # this process was stopped itself
            elif now_s - self._looked_s > SILENT_AFTER_S:
                server = f"{self.names[LEADER]} or its launcher"
                self._end(f"{server} is stopped: the store of the job has not answered for {SILENT_AFTER_S:g} s")
            before_s = now_s

    def _beat(self, *, is_over: bool = False) -> None:
        self._beats += 1
        place = None if self._is_busy else self.place
        self._all[self.rank].come(self._beats, place)
        self._store.set(f"beat/{self.rank}", pickle.dumps((self._beats, place, is_over)))

    def _hear(self, rank: int) -> None:
        if self._store.check([f"beat/{rank}"]):
            beat, place, is_over = pickle.loads(self._store.get(f"beat/{rank}"))
            self._peers[rank].come(beat, place)
            self._peers[rank].is_over = is_over

    def _lose_store(self) -> str:
        if LEADER in self._peers and self._peers[LEADER].has_ended():  # the store may have been its own
            self.lose(f"{self.names[LEADER]} was killed or ended without a word")
        what = f"the store of the job is gone, and {self.names[LEADER]} with it"
        self.lose(what)
        return self.lost or what

    def _look_for_late(self, now_s: float) -> None:
        """Lose a rank that others wait for, in time to end within the time limit."""
        patience_s = self._timeout_s - RAISE_WITHIN_S - LEAVE_WITHIN_S - 2 * BEAT_EVERY_S
        for peer in self._all:
            waiting = [other.moved_s for other in self._all if other.place > peer.place]
            if waiting and now_s - max(peer.moved_s, min(waiting)) > max(patience_s, BEAT_EVERY_S):
                hint = "for longer work on one rank alone give rank_timeout_s="
                self.lose(
                    f"{peer.name} does not go on after {peer.place.steps} steps, and others wait for it for "
                    f"{self._timeout_s:g} s; {hint}"
                )

    def _end_session(self) -> None:
        """End a session whose main thread does not end it itself: without one rank, the others wait in vain."""
        if self._leaving.wait(RAISE_WITHIN_S):
            return
        self.has_interrupted = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which also ends a sleep
        if self._leaving.wait(LEAVE_WITHIN_S):
            return
        print(f"wattune: {self.lost}; rank {self.rank} waits for it and is ended", file=sys.stderr, flush=True)
        os._exit(1)
