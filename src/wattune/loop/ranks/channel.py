"""Messages between rank 0 of a data-parallel job and its other ranks, and what ends a job in which one is lost.

All of it goes through the job's own store. The collectives of training hang when a rank is gone, and a message here
must also arrive while the main thread waits in one.
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
from typing import Any, Final, NamedTuple

import torch.distributed as dist

from wattune.errors import DeviceError, WattuneError
from wattune_agent.snapshot import has_ended

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
"""Messages of a kind that stay in the store: no rank is that many of them behind."""

LEADER: Final = 0


class RankLost(DeviceError):
    """Another rank of the job died, hangs, or left its session early."""


class Place(NamedTuple):
    """Progress of a rank: complete steps, and in the next one 0 in the user's code, 1 once it wants the step, 2
    once it has begun it, and one more after each of its backward passes."""

    steps: int = 0
    phase: int = 0


class Peer:
    """A rank as it was last heard of."""

    def __init__(self, number: int):
        self.name = f"rank {number}"
        self.process: tuple[int, int] | None = None
        """Number and start of its process, if that runs on this computer."""
        self.place = Place()
        self.is_over = False
        """True once the rank's session has ended."""
        self.heard_s = math.inf  # a rank may come late to the meeting
        self.moved_s = time.monotonic()
        self._beat = 0

    def come(self, beat: int, place: Place | None, is_over: bool) -> None:
        """Note the rank's newest sign of life; ``place`` is None while the rank does what may take any time."""
        if beat == self._beat:
            return
        self._beat, self.is_over, self.heard_s = beat, is_over, time.monotonic()
        if place != self.place:
            self.moved_s = self.heard_s
        self.place = self.place if place is None else place

    def has_ended(self) -> bool:
        """True if the process is known to have ended."""
        return self.process is not None and has_ended(*self.process)


def job_store(prefix: str) -> Any:
    """The keys of the job's store below a prefix, through a client that nobody else waits with."""
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "host"):  # only a TCPStore has one client for each process
        store = type(store)(store.host, store.port, None, False, wait_for_workers=False)
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


class Channel:
    """Messages of this rank, and how far the others have come. ``store``: the keys of this job alone.

    Rank 0 watches all ranks, and each of them watches rank 0. A rank that does not go on for ``timeout_s``, while
    others wait for it, is lost. Once a rank is lost, the job ends on all ranks.
    """

    def __init__(self, store: Any, rank: int, ranks: int, timeout_s: float = RANK_TIMEOUT_S):
        self.rank = rank
        self.peers = [Peer(number) for number in range(ranks)]
        self.place = Place()
        self.lost: str | None = None
        """The rank that is lost, and how, in words."""
        self.has_interrupted = False
        """True once the main thread was interrupted, since it did not notice that a rank is lost."""
        self._store, self._timeout_s = store, timeout_s
        self._own = self.peers[rank]
        self._own.heard_s = time.monotonic()
        self._watched = [peer for peer in (self.peers if rank == LEADER else self.peers[:1]) if peer is not self._own]
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._beats = 0
        self._is_busy = False
        self._leaving, self._done = threading.Event(), threading.Event()
        self._exchanging = threading.Thread(target=self._exchange, name="wattune-ranks", daemon=True)
        self._exchanging.start()
        threading.Thread(target=self._guard, name="wattune-rank-guard", daemon=True).start()

    # -------------------------------------------------------------------------------------------------------- messages

    def send(self, kind: str, value: Any) -> None:
        """Send a message of this kind; without the store it is dropped, and another thread notices that."""
        self._sent[kind] += 1
        with suppress(RuntimeError):
            self._store.set(f"{kind}/{self._sent[kind]}", pickle.dumps(value))
            self._store.delete_key(f"{kind}/{self._sent[kind] - OLD}")

    def received(self, kind: str) -> Any:
        """The next message of this kind; None if it is still to come. Raises: RankLost."""
        try:
            value = self._read(f"{kind}/{self._received[kind] + 1}")
        except RuntimeError:
            raise RankLost(self._lose_store()) from None
        self._received[kind] += value is not None
        return value

    def receive(self, kind: str, rank: int = LEADER, within_s: float = math.inf) -> Any:
        """The next message of this kind, which ``rank`` sends. Raises: RankLost; DeviceError if none ``within_s``."""
        begun_s, peer = time.monotonic(), self.peers[rank]
        while True:
            waited_s = time.monotonic() - begun_s
            lost = self.lost  # looked at first: what was sent before has arrived by then
            if lost is None and peer.is_over:
                lost = f"{peer.name} has ended its session, and this one makes more passes"
            message = self.received(kind)
            # Once a rank is lost, only the stop that caused it counts.
            if message is not None and (self.lost is None or (isinstance(message, dict) and "stop" in message)):
                return message
            if lost is not None:
                raise RankLost(lost)
            if waited_s > within_s:
                raise DeviceError(f"{peer.name} has not answered within {within_s:g} s")
            time.sleep(min(LONGEST_SLEEP_S, waited_s / 10))

    def _read(self, key: str) -> Any:
        return pickle.loads(self._store.get(key)) if self._store.check([key]) else None

    # -------------------------------------------------------------------------------------------------------- progress

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

    def _exchange(self) -> None:
        """Tell how far this rank has come, and hear how far the others have, until the end."""
        try:
            while not self._done.wait(BEAT_EVERY_S):
                self._beat()
                if self._store.check(["lost"]):
                    self.lose("")
                self._hear()
        except RuntimeError:
            self._lose_store()

    def _beat(self, *, is_over: bool = False) -> None:
        self._beats += 1
        sign = self._beats, None if self._is_busy else self.place, is_over
        self._store.set(f"beat/{self.rank}", pickle.dumps(sign))
        self._own.come(*sign)

    def _hear(self) -> None:
        for peer in self._watched:
            if (sign := self._read(f"beat/{self.peers.index(peer)}")) is not None:
                peer.come(*sign)

    # ------------------------------------------------------------------------------------------------------ lost ranks

    def has(self, rank: int) -> bool:
        """True while this rank is in its session, and no rank is lost."""
        return self.lost is None and not (self.peers[rank].is_over or self.peers[rank].has_ended())

    def check(self) -> None:
        """Check that every rank is there. Raises: RankLost."""
        if self.lost is not None:
            raise RankLost(self.lost)

    def lose(self, what: str) -> None:
        """End the job, since a rank is lost: ``what`` says which and how. The first loss counts on all ranks."""
        if not self._done.is_set():
            with suppress(RuntimeError):
                what = self._store.compare_set("lost", "", what).decode()
            self.lost = self.lost or what

    def _lose_store(self) -> str:
        leader = self.peers[LEADER]
        if leader is not self._own and leader.has_ended():  # the store may have been its own
            self.lose(f"{leader.name} was killed or ended without a word")
        what = f"the store of the job is gone, and {leader.name} with it"
        self.lose(what)
        return self.lost or what

    def _guard(self) -> None:
        """Notice that a rank is lost, and end a session whose main thread does not end it itself then."""
        before_s = time.monotonic()
        while self.lost is None:
            if self._done.wait(BEAT_EVERY_S):
                return
            now_s = time.monotonic()
            if now_s - before_s > NEWS_WITHIN_S:  # this process was stopped itself, as all of a job are by Ctrl-Z
                for peer in self.peers:
                    peer.heard_s = max(peer.heard_s, now_s)
            before_s = now_s
            self._judge(now_s)
        if self._leaving.wait(RAISE_WITHIN_S):
            return
        self.has_interrupted = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which also ends a sleep
        if self._leaving.wait(LEAVE_WITHIN_S):
            return
        print(f"wattune: {self.lost}; rank {self.rank} waits for it and is ended", file=sys.stderr, flush=True)
        os._exit(1)

    def _judge(self, now_s: float) -> None:
        waited_s = now_s - self._own.heard_s
        if waited_s > SILENT_AFTER_S:  # no call of a client returns while the store is stopped
            server = f"{self.peers[LEADER].name} or its launcher"
            self.lost = f"{server} is stopped: the store of the job has not answered for {SILENT_AFTER_S:g} s"
        if waited_s > NEWS_WITHIN_S:
            return  # the others may have gone on
        for peer in self._watched:
            is_gone = peer.has_ended()
            if is_gone:
                with suppress(RuntimeError):
                    self._hear()  # its last word may have come since
            if peer.is_over:
                continue
            if is_gone:
                self.lose(f"{peer.name} was killed or ended without a word")
            elif now_s - peer.heard_s > SILENT_AFTER_S:
                self.lose(f"{peer.name} has given no sign of life for {SILENT_AFTER_S:g} s")
        # A rank that others wait for is lost in time for all to end within the time limit.
        patience_s = max(BEAT_EVERY_S, self._timeout_s - RAISE_WITHIN_S - LEAVE_WITHIN_S - 3 * BEAT_EVERY_S)
        for peer in self.peers if self.rank == LEADER else ():
            waiting = [other.moved_s for other in self.peers if other.place > peer.place]
            if waiting and now_s - max(peer.moved_s, min(waiting)) > patience_s:
                self.lose(
                    f"{peer.name} does not go on after {peer.place.steps} steps, and others wait for it for "
                    f"{self._timeout_s:g} s; for longer work on one rank alone give rank_timeout_s="
                )

    # -------------------------------------------------------------------------------------------------------- the end

    def leave(self) -> None:
        """Say that the main thread is ending its session: it restores the board, and is not interrupted any more."""
        self._leaving.set()

    def end(self, error: BaseException | None) -> RankLost | None:
        """End this rank's part, which ``error`` ended. Returns: the loss of another rank, if that was the cause."""
        is_own = isinstance(error, WattuneError) or (isinstance(error, KeyboardInterrupt) and not self.has_interrupted)
        is_overdue = error is not None and self._is_overdue()
        if error is not None and (is_overdue or not is_own):
            # The news of a loss may come after it. A collective fails by nothing else, also on another computer.
            is_collective = isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL"))
            until_s = time.monotonic() + NEWS_WITHIN_S + (SILENT_AFTER_S if is_collective else 0.0)
            while self.lost is None and (self._is_overdue() or time.monotonic() < until_s):
                time.sleep(BEAT_EVERY_S / 10)
        self.close(None if error is None else (str(error).strip() or type(error).__name__).splitlines()[0])
        # A device of a lost rank does not answer either.
        is_cause = is_overdue or not is_own or isinstance(error, DeviceError)
        if error is None or self.lost is None or isinstance(error, RankLost) or not is_cause:
            return None
        return RankLost(self.lost)

    def _is_overdue(self) -> bool:
        """True while a rank gives no sign of life, although it is too early to call it lost."""
        now_s = time.monotonic()
        return any(not peer.is_over and now_s - peer.heard_s > NEWS_WITHIN_S for peer in self._watched)

    def close(self, reason: str | None = None) -> None:
        """End this rank's part; ``reason``: the error that ended it, None if it finished."""
        self._leaving.set()
        if self._done.is_set():
            return
        self._done.set()
        within_s = SILENT_AFTER_S if reason is None and self.lost is None else NEWS_WITHIN_S
        ending = threading.Thread(target=self._say_over, args=(reason, within_s), daemon=True)
        ending.start()
        ending.join(within_s + 2 * NEWS_WITHIN_S)  # the store may never answer

    def _say_over(self, reason: str | None, within_s: float) -> None:
        self._exchanging.join()
        with suppress(RuntimeError):
            if reason is not None:
                self._store.compare_set("lost", "", f"{self._own.name} ended with an error: {reason}")
            self._beat(is_over=True)
            until_s = time.monotonic() + within_s
            while self.rank == LEADER and time.monotonic() < until_s:  # the store may end with this process
                self._hear()
                if all(peer.is_over or peer.has_ended() for peer in self._watched):
                    return
                time.sleep(LONGEST_SLEEP_S)
