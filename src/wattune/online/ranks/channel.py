"""Messages between the leader of a data-parallel job and its other ranks, over TCP.

The collectives of training are of no use for this: they hang when a rank is gone, and a message here must also arrive
while the main thread waits in one. One JSON value per line; the first line of a connection is the token of the job.
"""

from __future__ import annotations

import _thread
import hmac
import json
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from wattune.errors import DeviceError, InputError

BEAT_EVERY_S = 1.0
"""Seconds from one sign of life to the next."""

SILENT_AFTER_S = 10.0
"""Seconds without a sign of life after which a rank counts as hanging. It comes from a thread of its own, so that no
evaluation is too long for it, and a process that is stopped or a lost network is."""

JOIN_WITHIN_S = 60.0
"""Seconds within which the ranks connect."""

RAISE_WITHIN_S = 2.0
"""Seconds in which the main thread may notice that another rank is lost; it is interrupted after them."""

LEAVE_WITHIN_S = 3.0
"""Seconds that it then has to leave the session: a thread that waits in a collective cannot be interrupted."""

NEWS_WITHIN_S = 1.0
"""Seconds that an error may be ahead of the news that a rank is lost, which caused it."""

LEADER: Final = 0


class RankLost(DeviceError):
    """Another rank of the job died, hangs, or left its session early."""


class Connection:
    """A socket to one other rank."""

    def __init__(self, sock: socket.socket, rank: int, name: str):
        self.rank = rank
        self.name = name
        self.heard_s = time.monotonic()
        self.is_over = False
        """True once the other side has said that its session is over, or the connection ended."""
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; one that cannot be sent is dropped, since reading notices the end of the connection."""
        with suppress(OSError), self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def lines(self) -> Any:
        """The messages of the other side, until its end."""
        with self._socket.makefile("rb") as stream:
            for line in stream:
                self.heard_s = time.monotonic()
                yield json.loads(line)

    def end(self) -> None:
        """Say no more; the other side is still heard."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Channel:
    """This rank's connections: those of the leader to all others, and of the others to the leader.

    ``names``: each rank in words. Messages are for those that ``handle`` them, all others of the leader for
    ``receive``.
    """

    def __init__(self, rank: int, names: list[str]):
        self.rank = rank
        self.names = names
        self.lost: str | None = None
        """The rank that is lost, and how, in words."""
        self.has_interrupted = False
        """True once the main thread was interrupted, since it did not notice that a rank is lost."""
        self._handlers: dict[str, Callable[[int, dict[str, Any]], None]] = {}
        self._early: list[tuple[int, dict[str, Any]]] = []
        self._handling = threading.Lock()
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._connections: list[Connection] = []
        self._is_open = False
        self._losing = threading.Lock()
        self._lost = threading.Event()
        self._leaving = threading.Event()
        self._done = threading.Event()

    # --------------------------------------------------------------------------------------------------------- opening

    @staticmethod
    def listen(host: str) -> tuple[socket.socket, dict[str, Any]]:
        """A socket for the other ranks, and what they need to find it. ``host``: this computer's address for them."""
        is_local = host in ("localhost", "127.0.0.1")
        server = socket.create_server(("127.0.0.1" if is_local else "", 0))
        server.settimeout(JOIN_WITHIN_S)
        return server, {"host": host, "port": server.getsockname()[1], "token": secrets.token_hex(16)}

    def accept(self, server: socket.socket, token: str) -> None:
        """Accept the connections of all other ranks. Raises: InputError if some do not come."""
        missing = set(range(len(self.names))) - {self.rank}
        with server:
            while missing:
                try:
                    sock, _ = server.accept()
                    sock.settimeout(JOIN_WITHIN_S)
                    with sock.makefile("rb", buffering=0) as stream:
                        said = stream.readline(200).decode(errors="replace").split()
                except OSError as error:
                    self.close()
                    absent = ", ".join(self.names[rank] for rank in sorted(missing))
                    raise InputError(f"{absent} did not connect to rank 0: {error}") from error
                is_known = len(said) == 2 and hmac.compare_digest(said[0].encode(), token.encode())
                if not is_known or not said[1].isdigit() or int(said[1]) not in missing:
                    sock.close()
                    continue
                missing.discard(int(said[1]))
                self._add(sock, int(said[1]))
        self._start()

    def connect(self, address: dict[str, Any]) -> None:
        """Connect to the leader. Raises: InputError if it cannot be reached."""
        place = address["host"], address["port"]
        try:
            sock = socket.create_connection(place, timeout=JOIN_WITHIN_S)
        except OSError as error:
            raise InputError(
                f"rank {self.rank} cannot reach rank 0 at {place[0]}:{place[1]}: {error}",
                hint="open the port between the computers of the job",
            ) from error
        sock.sendall(f"{address['token']} {self.rank}\n".encode())
        self._add(sock, LEADER)
        self._start()

    def _add(self, sock: socket.socket, rank: int) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.append(Connection(sock, rank, self.names[rank]))

    def _start(self) -> None:
        self._is_open = True
        for connection in self._connections:
            threading.Thread(target=self._read, args=(connection,), name="wattune-rank", daemon=True).start()
        threading.Thread(target=self._beat, name="wattune-ranks", daemon=True).start()

    # -------------------------------------------------------------------------------------------------------- messages

    def send(self, message: dict[str, Any], *, to: int | None = None) -> None:
        """Send a message to the other side, all ranks or the leader, or to one rank."""
        for connection in self._connections:
            if to in (None, connection.rank):
                connection.send(message)

    def handle(self, field: str, call: Callable[[int, dict[str, Any]], None]) -> None:
        """Call with (rank, message) for each message with this field, in the thread that reads it; also for those that
        came before."""
        with self._handling:
            self._handlers[field] = call
            early, self._early = self._early, []
        for rank, message in early:
            self._take(rank, message)

    def has(self, rank: int) -> bool:
        """True while this rank is connected and in its session."""
        return any(connection.rank == rank and not connection.is_over for connection in self._connections)

    @property
    def is_led(self) -> bool:
        """True while the leader is connected and in its session."""
        return self.lost is None and self.has(LEADER)

    def receive(self) -> dict[str, Any]:
        """The leader's next message; once a rank is lost, only the stop that caused it. Raises: RankLost."""
        message = self._inbox.get()
        while message is not None and self.lost is not None and "stop" not in message:
            message = self._inbox.get()
        if message is None:
            self._inbox.put(None)  # for the next call
            raise RankLost(self.lost or f"{self.names[LEADER]} has ended its session, and this one makes more passes")
        return message

    def check(self) -> None:
        """Check that every rank is there. Raises: RankLost."""
        if self.lost is not None:
            raise RankLost(self.lost)

    def wait_lost(self) -> None:
        """Wait for the news that a rank is lost, if it is to come: it may take a moment longer than the loss itself."""
        self._lost.wait(NEWS_WITHIN_S)

    def leave(self) -> None:
        """Say that the main thread is ending its session: it restores the board, and is not interrupted any more."""
        self._leaving.set()

    def close(self, reason: str | None = None) -> None:
        """End this rank's part; ``reason``: the error that ended it, None if it finished."""
        self._is_open = False
        self._leaving.set()
        self._done.set()
        for connection in self._connections:
            connection.send({"over": reason})
            connection.end()

    # --------------------------------------------------------------------------------------------------------- threads

    def _read(self, connection: Connection) -> None:
        try:
            for message in connection.lines():
                if "beat" in message:
                    continue
                if "over" in message:
                    connection.is_over = True
                    if message["over"] is not None:
                        self._lose(f"{connection.name} ended with an error: {message['over']}")
                    elif connection.rank == LEADER:
                        self._inbox.put(None)
                elif "lost" in message:
                    self._lose(message["lost"])
                else:
                    self._take(connection.rank, message)
        except (OSError, ValueError):
            pass
        if not connection.is_over:
            connection.is_over = True
            self._lose(f"{connection.name} was killed or ended without a word")
        connection.close()

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        with self._handling:
            call = next((call for field, call in self._handlers.items() if field in message), None)
            if call is None and rank != LEADER:
                self._early.append((rank, message))
        if call is not None:
            call(rank, message)
        elif rank == LEADER:
            self._inbox.put(message)

    def _beat(self) -> None:
        before_s = time.monotonic()
        while not self._done.wait(BEAT_EVERY_S):
            self.send({"beat": 1})
            now_s = time.monotonic()
            slept_s, before_s = now_s - before_s, now_s
            for connection in self._connections:
                if slept_s > 2 * BEAT_EVERY_S:
                    connection.heard_s = now_s  # this process was stopped itself, as all of a job are by Ctrl-Z
                elif now_s - connection.heard_s > SILENT_AFTER_S and not connection.is_over:
                    self._lose(f"{connection.name} has given no sign of life for {SILENT_AFTER_S:g} s")

    def _lose(self, what: str) -> None:
        with self._losing:
            if not self._is_open or self.lost is not None:
                return
            self.lost = what
        self._lost.set()
        self.send({"lost": what})
        self._inbox.put(None)
        threading.Thread(target=self._end_session, name="wattune-rank-lost", daemon=True).start()

    def _end_session(self) -> None:
        """End a session whose main thread does not end it itself: without one rank, the others wait in vain."""
        if self._leaving.wait(RAISE_WITHIN_S):
            return
        self.has_interrupted = True
        _thread.interrupt_main()
        if self._leaving.wait(LEAVE_WITHIN_S):
            return
        print(f"wattune: {self.lost}; rank {self.rank} waits for it and is ended", file=sys.stderr, flush=True)
        os._exit(1)
