"""The agent's Unix socket: its permissions, and a thread for each connection."""

import errno
import fcntl
import grp
import math
import os
import signal
import socket
import stat
import struct
import threading
import time as real_time
import traceback
from contextlib import suppress
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from wattune_agent import PROTOCOL, SERVED
from wattune_agent.errors import AgentError, BadRequest, Busy, Forbidden, Full, NotThere
from wattune_agent.lease import LEASE_S, BoardLease, Party, say
from wattune_agent.protocol import REQUEST_LIMIT, SOCKET, Lines, answer, check_request, failure, line_of
from wattune_agent.snapshot import has_ended, started_at
from wattune_agent.time_source import TimeSource

MOST = 32
"""Most connections at once."""

MOST_OF_USER = 24
"""Most connections of one user other than root: the others must still be able to ask."""

SILENT_S = 2.0
"""Silence after which a connection may be closed for a new one, if all places are taken: long enough that a flood of
connections cannot displace itself all the time."""

CLOSING_S = 1.0
"""Time that such a connection has to end."""

BACKLOG = 128
"""Connections that may wait to be accepted."""

EVENTS = 50
"""Most events in one answer; the rest follow with the next."""

SEND_S = 5.0
"""Time after which a client that does not receive its answer is disconnected."""

TICK_S = 0.2
SAMPLE_S = 0.1

HUNG_S = 30.0
"""Time without a step of the guard after which systemd is no longer told that it is alive. A driver may take ten
seconds."""


class AgentServer:
    """A server on ``path`` for the lease ``keeper``. Members of ``group`` may connect; without one, only this user.

    Raises, on construction: Busy if another agent listens there; BadRequest for an unusable path; Forbidden; NotThere
    for an unknown group.
    """

    def __init__(
        self, keeper: BoardLease, path: str = SOCKET, group: Optional[str] = None, time: Optional[TimeSource] = None
    ) -> None:
        self._keeper = keeper
        self._path = path
        self._time = time or TimeSource()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._peers: Set[_Peer] = set()
        self._beats: Dict[str, float] = {}
        """When each thread of the guard began its latest step."""
        self._claim = _claim(path)
        try:
            keeper.open()  # before any client can connect
            self._listener = _listen(path, group)
            self._inode = os.stat(path).st_ino
        except BaseException:
            os.close(self._claim)
            raise

    def stop(self) -> None:
        """Make ``run`` return; may be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Serve until ``stop``, then restore the board. Raises: NotRestored."""
        threads = [
            threading.Thread(target=self._repeat, args=(TICK_S, self._keeper.tick), name="tick", daemon=True),
            threading.Thread(target=self._repeat, args=(SAMPLE_S, self._keeper.sample), name="sample", daemon=True),
        ]
        try:
            for thread in threads:
                thread.start()
            _tell_systemd("READY=1")
            while not self._stop.is_set():
                self._accept()
                if all(real_time.monotonic() - began_s < HUNG_S for began_s in list(self._beats.values())):
                    _tell_systemd("WATCHDOG=1")
        finally:
            self._stop.set()
            self._end()

    # ------------------------------------------------------------------------------------------------- connections

    def _accept(self) -> None:
        try:
            self._listener.settimeout(TICK_S)
            connection, _ = self._listener.accept()
        except socket.timeout:
            return
        except OSError:  # out of file descriptors, or the client has disconnected
            self._stop.wait(TICK_S)
            return
        pid, uid = _credentials(connection)
        with self._lock:
            most, peers = MOST_OF_USER, [peer for peer in self._peers if peer.uid == uid != 0]
            if len(peers) < MOST_OF_USER:
                most, peers = MOST, list(self._peers)
        if len(peers) >= most and not self._close_silent(peers):
            # Without a thread: a flood of connections must take no time and no descriptors from the guard.
            self._refuse(connection, most)
            return
        peer = _Peer(connection, pid, uid, self._time.now_s())
        with self._lock:
            self._peers.add(peer)
        threading.Thread(target=self._attend, args=(peer,), name=peer.name, daemon=True).start()

    def _close_silent(self, peers: Iterable["_Peer"]) -> bool:
        """Close the connection that has been silent longest and holds nothing; returns true if its place is free."""
        until_s = self._time.now_s() - SILENT_S
        free = [peer for peer in peers if peer.silent_since_s <= until_s and not self._keeper.holds(peer)]
        if not free:
            return False
        peer = min(free, key=lambda peer: peer.silent_since_s)
        peer.shut()
        return peer.closed.wait(CLOSING_S)

    def _refuse(self, connection: socket.socket, most: int) -> None:
        """Say why, and close the connection at once: the client reads that even if it cannot send its request."""
        message = failure(None, Full("{} connections are open already".format(most)), [])
        with suppress(OSError):
            connection.setblocking(False)
            connection.send(line_of(message))
        connection.close()

    def _attend(self, peer: "_Peer") -> None:
        try:
            while not self._stop.is_set():
                number, protocol = None, PROTOCOL
                try:
                    peer.silent_since_s = self._time.now_s()
                    message = peer.lines.receive()
                    peer.silent_since_s = math.inf
                    if message is None:
                        return
                    number = _number_of(message)
                    protocol = message["wattune"] if message.get("wattune") in SERVED else PROTOCOL
                    reply = self._reply(peer, message)
                except AgentError as error:
                    reply = failure(number, error, peer.take(), protocol)
                    if number is None:  # not the protocol: the start of the next request is unknown
                        peer.tell(reply)
                        return
                if not peer.tell(reply):
                    return
        except OSError:  # the connection was lost
            pass
        finally:
            try:
                self._keeper.leave(peer)
            finally:
                with self._lock:
                    self._peers.discard(peer)
                peer.close()

    def _reply(self, peer: "_Peer", message: Dict[str, Any]) -> Dict[str, Any]:
        number, name, fields = check_request(message)
        keeper, mhz = self._keeper, fields.pop("mhz", None) or 0.0
        calls: Dict[str, Callable[[], Optional[Dict[str, Any]]]] = {
            "discover": keeper.describe,
            "read": lambda: keeper.read(peer),
            "pin": lambda: keeper.pin(peer, mhz, {key: value for key, value in fields.items() if value is not None}),
            "slice": lambda: keeper.slice(peer, mhz),
            "guard": lambda: keeper.guard(peer, **fields),
            "set": lambda: keeper.set_cap(peer, **fields),
            "renew": lambda: keeper.renew(peer),
            "restore": lambda: keeper.restore(peer),
        }
        try:
            content = calls[name]() or {}
        except AgentError:
            raise
        except Exception as error:
            # An entry point: a bug here must not end a client's guard.
            say(traceback.format_exc())
            raise AgentError("the agent failed: {}: {}".format(type(error).__name__, error)) from error
        return answer(number, content, peer.take(), message["wattune"])

    # ---------------------------------------------------------------------------------------------------- the rest

    def _repeat(self, period_s: float, act: Callable[[], None]) -> None:
        while not self._time.wait(self._stop, period_s):
            self._beats[threading.current_thread().name] = real_time.monotonic()
            try:
                act()
            except Exception:  # noqa: BLE001 - an entry point: the guard continues
                say(traceback.format_exc())

    def _end(self) -> None:
        self._listener.close()
        with suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        try:
            self._keeper.close()
        finally:
            with self._lock:
                peers = list(self._peers)
            for peer in peers:
                peer.shut()
            os.close(self._claim)


def serve(
    controller: Any,
    path: str = SOCKET,
    group: Optional[str] = None,
    lease_s: float = LEASE_S,
    recover: Optional[Callable[[], List[str]]] = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then restore the board. Runs in the main thread.

    Raises: as AgentServer, and NotRestored.
    """
    keeper = BoardLease(controller, lease_s=lease_s, recover=recover)
    server = AgentServer(keeper, path, group)
    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            before[number] = signal.signal(number, lambda *_: server.stop())
        say("{} at {}".format(controller.describe()["name"], path))
        server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Peer(Party):
    """The other side of one connection. ``silent_since_s``: infinite while a request is answered."""

    def __init__(self, connection: socket.socket, pid: Optional[int], uid: Optional[int], now_s: float = 0.0) -> None:
        super().__init__("process {} of user {}".format(pid or "?", "?" if uid is None else uid))
        self.lines = Lines(connection, REQUEST_LIMIT)
        self._socket = connection
        self.silent_since_s = now_s
        self.closed = threading.Event()
        self.uid = uid
        self._pid = pid
        self._start_tick = None if pid is None else started_at(pid)

    def is_gone(self) -> bool:
        # A connection outlives its process if a fork, such as a data loader's worker, still has it open.
        return self._pid is not None and self._start_tick is not None and has_ended(self._pid, self._start_tick)

    def take(self) -> List[Dict[str, Any]]:
        """Events for the next answer."""
        return [self.events.popleft() for _ in range(min(EVENTS, len(self.events)))]

    def tell(self, message: Dict[str, Any]) -> bool:
        """Send an answer; returns false if the other side did not receive it."""
        try:
            self.lines.send(message, SEND_S)
        except AgentError as error:  # a value that JSON cannot carry
            self.lines.send(failure(message["id"], error, [], message["wattune"]), SEND_S)
        except OSError:
            return False
        return True

    def shut(self) -> None:
        """Wake the thread that waits for this side."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        self.closed.set()


def _tell_systemd(state: str) -> None:
    """Tell the state to systemd, if it started this process: a unit with Type=notify waits for it.

    Source: sd_notify(3), "Notes".
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with suppress(OSError):  # nobody listens, or not at once: the next one follows
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as messages:
            messages.sendto(state.encode("ascii"), "\0" + path[1:] if path.startswith("@") else path)


def _number_of(message: Dict[str, Any]) -> Optional[int]:
    number = message.get("id")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _claim(path: str) -> int:
    """Lock a file beside the socket for the life of this process. Raises: Busy, Forbidden, NotThere."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o755)
        descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _mapped(error, path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Busy("another wattune-agent listens at {}; stop it, or choose another --socket".format(path)) from None
    return descriptor


def _listen(path: str, group: Optional[str]) -> socket.socket:
    """Open a socket at the path, where it appears only once clients can connect, with its permissions set.

    It is bound to a name beside the path, of the same length because the kernel limits it, and then moved.
    """
    try:
        number = -1 if group is None else grp.getgrnam(group).gr_gid
    except KeyError:
        raise NotThere("no group {}; create it: sudo groupadd --system {}".format(group, group)) from None
    hidden = path[:-1] + "~"
    _clear(path)
    _clear(hidden)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(hidden)
        os.chown(hidden, -1, number)
        os.chmod(hidden, 0o600 if group is None else 0o660)
        listener.listen(BACKLOG)
        os.rename(hidden, path)
    except OSError as error:
        listener.close()
        raise _mapped(error, path) from error
    finally:
        os.umask(mask)
    return listener


def _clear(path: str) -> None:
    """Remove the socket of an agent that was killed; nothing else."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _mapped(error, path) from error
    if not stat.S_ISSOCK(kind):
        raise BadRequest("{} exists, but is not a socket; it is not touched: choose another --socket".format(path))
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(1.0)
    try:
        probe.connect(path)
    except OSError as error:
        if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
            raise _mapped(error, path) from error
    else:
        raise Busy("another process listens at {} already; choose another --socket".format(path))
    finally:
        probe.close()
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _mapped(error, path) from error


def _mapped(error: OSError, path: str) -> AgentError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Forbidden("this user may not create {}; run the agent as root, or choose a --socket".format(path))
    return BadRequest("cannot listen at {}: {}".format(path, error.strerror or error))


def _credentials(connection: socket.socket) -> Tuple[Optional[int], Optional[int]]:
    """Process and user of the other side, as the kernel saw them connect; None if it does not report them."""
    form = struct.Struct("3i")
    try:
        pid, uid, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    except (OSError, AttributeError):
        return None, None
    return pid or None, uid
