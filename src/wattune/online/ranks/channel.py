"""Messages between the leader of a data-parallel job and its other ranks, through the job's own store.

The collectives of training are of no use for this: they hang when a rank is gone, and a message here must also arrive
while the main thread waits in one.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch.distributed as dist

from wattune.errors import DeviceError

BEAT_EVERY_S = 1.0
"""Seconds from one sign of life to the next."""

SILENT_AFTER_S = 10.0
"""Seconds without a sign of life after which a rank counts as hanging. It comes from a thread of its own, so that no
evaluation is too long for it, and a process that is stopped or a lost network is."""

LOOK_S = 0.05
"""Seconds from one look to the next for whether a message still can come."""

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

_FOREVER = timedelta(days=20)
"""Longest wait for a message, in milliseconds less than 2**31."""

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
        """True once the rank has said that its session is over."""
        self.heard_s = self.moved_s = time.monotonic()
        self.place = Place()
        self._process = process

    def come(self, place: Place | None) -> None:
        """Note a sign of life, and how far the rank has come; None while it does what may take any time."""
        now_s = time.monotonic()
        self.heard_s = now_s
        if place != self.place:
            self.moved_s = now_s
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


class Mailbox:
    """Messages in the job's store, in the order in which they were sent. ``prefix`` is before the meeting's keys."""

    def __init__(self, store: Any, prefix: str, rank: int):
        self.rank = rank
        self._store, self._is_gone = store, False
        self._sending = threading.Lock()
        # A client of the store can do one thing at a time, and waiting for a message is one.
        self._outgoing = under(prefix, _client(store))
        self._incoming = under(prefix, _client(store))

    def send(self, to: int, message: dict[str, Any]) -> None:
        """Send a message; without the store it is dropped, and reading notices that."""
        with self._sending:
            self._try(lambda: self._put(to, json.dumps({"from": self.rank, **message})))

    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages to this rank, until its own one. Raises: RuntimeError once the store is gone."""
        for number in itertools.count(1):
            key = f"to/{self.rank}/{number}"
            message = json.loads(self._incoming.get(key))
            self._incoming.delete_key(key)
            if message["from"] == self.rank:
                return
            yield message

    def is_read(self, rank: int) -> bool:
        """True once a rank has read all that was sent to it."""
        with self._sending:
            number = self._try(lambda: self._outgoing.add(f"to/{rank}", 0))
            return not number or not self._try(lambda: self._outgoing.check([f"to/{rank}/{number}"]))

    def _put(self, to: int, text: str) -> None:
        number = self._outgoing.add(f"to/{to}", 1)
        self._outgoing.set(f"to/{to}/{number}", text)

    def _try(self, call: Callable[[], Any]) -> Any:
        """The value of a call of the store, None once the store is gone: torch prints a trace at each try."""
        try:
            return None if self._is_gone else call()
        except RuntimeError:
            self._is_gone = True
            return None


def under(prefix: str, store: Any) -> Any:
    """The keys of a store below a prefix."""
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _client(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "host"):  # only a TCPStore has one client for each process
        store.set_timeout(_FOREVER)
        return store
    return type(store)(store.host, store.port, None, False, _FOREVER, wait_for_workers=False)


class Channel:
    """Messages of the leader to all other ranks, and theirs to the leader; how far each of them has come.

    ``peers``: all ranks. A rank that does not go on for ``timeout_s``, while others wait for it, is lost.
    """

    def __init__(self, mailbox: Mailbox, peers: list[Peer], timeout_s: float = RANK_TIMEOUT_S):
        self.rank = mailbox.rank
        self.names = [peer.name for peer in peers]
        self.place = Place()
        self.lost: str | None = None
        """The rank that is lost, and how, in words."""
        self.has_interrupted = False
        """True once the main thread was interrupted, since it did not notice that a rank is lost."""
        self._mailbox, self._all, self._timeout_s = mailbox, peers, timeout_s
        for peer in peers:
            peer.come(None)
        others = set(range(len(peers))) - {self.rank}
        self._peers = {rank: peers[rank] for rank in (others if self.rank == LEADER else {LEADER})}
        self._inboxes: dict[tuple[int, str], queue.SimpleQueue[Any]] = {}
        self._is_busy = False
        self._losing = threading.Lock()
        self._leaving = threading.Event()
        self._done = threading.Event()
        self._reader = threading.Thread(target=self._read, name="wattune-rank", daemon=True)
        self._reader.start()
        threading.Thread(target=self._beat, name="wattune-ranks", daemon=True).start()

    # -------------------------------------------------------------------------------------------------------- messages

    def send(self, message: dict[str, Any], *, to: int | None = None) -> None:
        """Send a message to the other side, all ranks or the leader, or to one rank."""
        for rank, peer in self._peers.items():
            if to in (None, rank) and not peer.is_over:
                self._mailbox.send(rank, message)

    def inbox(self, rank: int, kind: str) -> queue.SimpleQueue[Any]:
        """A rank's messages that begin with this field; of the leader's, all but calls are of the kind ""."""
        return self._inboxes.setdefault((rank, kind), queue.SimpleQueue())

    def has(self, rank: int) -> bool:
        """True while this rank is in its session, and no rank is lost."""
        return self.lost is None and not (self._peers[rank].is_over or self._peers[rank].has_ended())

    def receive(self, rank: int = LEADER, kind: str = "", within_s: float = math.inf) -> dict[str, Any]:
        """A rank's next message; once a rank is lost, only the stop that caused it.

        Raises: RankLost; DeviceError if there is none ``within_s``.
        """
        inbox, until_s = self.inbox(rank, kind), time.monotonic() + within_s
        while True:
            is_late = time.monotonic() > until_s
            lost = self.lost  # looked at first: what was sent before is in the inbox by then
            if lost is None and self._peers[rank].is_over:
                lost = f"{self.names[rank]} has ended its session, and this one makes more passes"
            try:
                message: dict[str, Any] = inbox.get(timeout=0.0 if is_late or lost is not None else LOOK_S)
            except queue.Empty:
                if lost is not None:
                    raise RankLost(lost) from None
                if is_late:
                    raise DeviceError(f"{self.names[rank]} has not answered within {within_s:g} s") from None
                continue
            if self.lost is None or "stop" in message:
                return message

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
        """End the job, since a rank is lost: ``what`` says which and how."""
        with self._losing:
            if self._done.is_set() or self.lost is not None:
                return
            self.lost = what
        self.send({"lost": what})
        threading.Thread(target=self._end_session, name="wattune-rank-lost", daemon=True).start()

    @property
    def is_overdue(self) -> bool:
        """True while a rank gives no sign of life, although it is too early to call it lost."""
        now_s = time.monotonic()
        return any(not peer.is_over and now_s - peer.heard_s > 2 * BEAT_EVERY_S for peer in self._peers.values())

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
        if self.lost is not None:  # before its consequence
            self.send({"lost": self.lost})
        if self.rank == LEADER:
            self.send({"over": reason})
            until_s = time.monotonic() + NEWS_WITHIN_S
            for rank, peer in self._peers.items():  # the store may end with this process
                while not self._has_heard(rank, peer) and time.monotonic() < until_s:
                    time.sleep(0.005)
        if LEADER not in self._peers or not self._peers[LEADER].is_over:
            self._mailbox.send(self.rank, {})
        self._reader.join(NEWS_WITHIN_S)
        if self.rank != LEADER:  # at last: once the leader has heard it, the store may be gone
            self.send({"over": reason})

    def _has_heard(self, rank: int, peer: Peer) -> bool:
        return peer.is_over or peer.has_ended() or self._mailbox.is_read(rank)

    # --------------------------------------------------------------------------------------------------------- threads

    def _read(self) -> None:
        try:
            for message in self._mailbox.messages():
                sender = message.pop("from")
                peer = self._peers[sender]
                if "beat" in message:
                    peer.come(None if message["beat"] is None else Place(*message["beat"]))
                elif "over" in message:
                    peer.is_over = True
                    if message["over"] is not None:
                        self.lose(f"{peer.name} ended with an error: {message['over']}")
                    if sender == LEADER:
                        return  # nobody else writes to this rank
                elif "lost" in message:
                    self.lose(message["lost"])
                else:
                    is_answer = sender != LEADER or "call" in message
                    self.inbox(sender, next(iter(message)) if is_answer else "").put(message)
        except RuntimeError:
            if LEADER in self._peers and self._peers[LEADER].has_ended():  # the store may have been its own
                self.lose(f"{self.names[LEADER]} was killed or ended without a word")
            self.lose(f"the store of the job is gone, and {self.names[LEADER]} with it")

    def _beat(self) -> None:
        before_s = time.monotonic()
        while not self._done.wait(BEAT_EVERY_S):
            place = None if self._is_busy else self.place
            self._all[self.rank].come(place)
            self.send({"beat": place})
            now_s = time.monotonic()
            slept_s, before_s = now_s - before_s, now_s
            for peer in self._peers.values():
                if peer.is_over:
                    continue
                if peer.has_ended():
                    self.lose(f"{peer.name} was killed or ended without a word")
                elif slept_s > 2 * BEAT_EVERY_S:
                    peer.heard_s = now_s  # this process was stopped itself, as all of a job are by Ctrl-Z
                elif now_s - peer.heard_s > SILENT_AFTER_S:
                    self.lose(f"{peer.name} has given no sign of life for {SILENT_AFTER_S:g} s")
            if self.rank == LEADER:
                self._look_for_late(now_s)

    def _look_for_late(self, now_s: float) -> None:
        """Lose a rank that others wait for, in time to end within the time limit."""
        patience_s = self._timeout_s - RAISE_WITHIN_S - LEAVE_WITHIN_S - BEAT_EVERY_S
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
