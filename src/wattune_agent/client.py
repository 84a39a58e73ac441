"""A board behind an agent's socket, with the methods of an in-process Controller."""

import os
import socket
import threading
import weakref
from contextlib import suppress
from typing import Any, Dict, List, Optional

from wattune_agent import SERVED
from wattune_agent.errors import AgentError, BadRequest, Busy, FileFailed, Forbidden, Gone, NotThere
from wattune_agent.protocol import ANSWER_LIMIT, SOCKET, STATED, Lines, known_fields, read_answer
from wattune_agent.time_source import TimeSource

TIMEOUT_S = 15.0
"""Time that the agent has for an answer; it may itself wait a few seconds for a clock to settle."""

RENEWALS = 4
"""Renewals within one lease."""


class AgentClient:
    """One connection to an agent. May be used from several threads, but not from a fork of this process.

    After the first ``pin`` or ``guard``, a thread tells the agent that this process is still alive. When the process
    ends, for any reason, the connection closes and the agent restores the board. If this client holds nothing and the
    agent has closed the connection, or restarted, the next request connects again.
    """

    def __init__(self, path: str = SOCKET, timeout_s: float = TIMEOUT_S, time: Optional[TimeSource] = None) -> None:
        """Connect. Raises: NotThere, Forbidden, Gone, Full."""
        self._path = path
        self._timeout_s = timeout_s
        self._time = time or TimeSource()
        self._lock = threading.RLock()
        self._events: List[Dict[str, Any]] = []
        self._number = 0
        self._protocol = SERVED[0]
        self._known: Dict[str, Any] = {"discover": []}
        self._holds = False
        self._closed = False
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._renewing: Optional[threading.Thread] = None
        self._socket: Optional[socket.socket] = None
        self._connect()
        _open.add(self)
        try:
            self._discover()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "AgentClient":
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.restore()
        finally:
            self.close()

    # ---------------------------------------------------------------------------------------- as a Controller has them

    def describe(self) -> Dict[str, Any]:
        """The board: as Controller.describe, with ``lease_s``."""
        return dict(self._board)

    def read(self) -> Dict[str, Any]:
        """A reading, as Controller.read. Raises: NoReading, NotThere, Forbidden, FileFailed, Gone."""
        return self._ask("read")

    def pin(self, mhz: float, others: Optional[Dict[str, float]] = None) -> Dict[str, Any]:
        """Hold the clock at ``mhz``, and the ``others`` that the board has beside it. The ``mhz`` in the answer is
        lower while the agent holds the lowest clock.

        Raises: Busy, BadRequest, Gone, and the board's errors.
        """
        state = self._ask("pin", **dict(others or {}, mhz=mhz))
        self._keep_renewing()
        return state

    def slice(self, mhz: float) -> None:
        """Switch the pinned clock, as Controller.slice. Raises: as ``pin``."""
        self._ask("slice", mhz=mhz)

    def guard(
        self, cap_w: Optional[float], max_temp_c: Optional[float] = None, window_s: Optional[float] = None
    ) -> None:
        """Have the agent look after the limits while this process does not ``read``; two None end that.

        Raises: Busy, NotThere, NoReading, Gone.
        """
        self._ask("guard", cap_w=cap_w, max_temp_c=max_temp_c, window_s=window_s)
        self._keep_renewing()

    def set_cap(self, cap_w: Optional[float]) -> None:
        """Hold another cap in place of the cap that another client asked for, until that ends; None ends it before.

        Raises: BadRequest if no client has a cap, Gone.
        """
        self._ask("set", cap_w=cap_w)

    def check(self) -> List[Dict[str, Any]]:
        """The agent's events since the last call. Raises: Gone."""
        self._ask("renew")
        with self._lock:
            events, self._events = self._events, []
        return events

    def restore(self) -> None:
        """Restore the board; do nothing if this client does not hold it. If the agent has stopped, ask its successor.

        Raises: NotRestored, Gone.
        """
        if self._is_forked or not self._holds:
            return
        try:
            self._ask("restore")
        except Busy:  # another client holds the board by now: the agent restored ours before that
            pass
        except Gone:
            with self._lock:
                self._hang_up()
                try:
                    self._connect()
                    self._ask("restore")
                except Busy:
                    pass
                except AgentError as error:
                    text = "{}; the board is restored when the agent starts again, or by `wattune restore`"
                    raise Gone(text.format(error)) from error
        self._holds = False
        self._stop_renewing()

    def close(self) -> None:
        """End the connection; the agent then restores what this client held."""
        if self._is_forked:
            return
        self._stop_renewing()
        with self._lock:
            self._closed = True
            self._hang_up()
        _open.discard(self)

    # ------------------------------------------------------------------------------------------------------ the socket

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout_s)
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise _unreachable(error, self._path) from error
        self._lines = Lines(connection, ANSWER_LIMIT)
        self._socket = connection

    def _discover(self) -> None:
        self._protocol = SERVED[0]
        self._board = self._ask("discover")
        self._known = self._board.get("requests", STATED)

    def _is_connected(self) -> bool:
        """False without a connection, and if the agent has closed it."""
        if self._socket is None:
            return False
        try:
            self._socket.setblocking(False)
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _ask(self, request: str, **fields: Optional[float]) -> Dict[str, Any]:
        if self._is_forked:  # checked first: another thread may have held the lock when this process was forked
            raise Gone("the connection to the agent belongs to process {}".format(self._pid))
        with self._lock:
            if not (self._holds or self._closed or self._is_connected()):
                self._hang_up()
                self._connect()
                self._discover()  # the agent that answers may be of another version
            fields = known_fields(request, fields, self._known)
            if self._socket is None:
                raise Gone("no connection to the agent at {}".format(self._path))
            self._number += 1
            message = dict(fields, wattune=self._protocol, id=self._number, request=request)
            held_before = self._holds
            self._holds = held_before or request in ("pin", "guard")  # even if the answer is lost
            try:
                reply = self._exchange(message)
                self._events.extend(reply.get("events") or [])
                del self._events[:-1000]
                spoken = reply.get("wattune")
                if spoken in SERVED and spoken < self._protocol:  # an older agent has refused, and done nothing
                    self._protocol = spoken
                    return self._ask(request, **fields)
                return read_answer(reply, self._protocol)
            except Busy:
                self._holds = held_before
                raise

    def _exchange(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Send a request and receive its answer. Raises: Gone, BadRequest."""
        try:
            self._send(message)
            while True:
                reply = self._lines.receive(self._timeout_s)
                if reply is None:
                    raise ConnectionResetError("the agent closed it")
                # Skip the answer to a request that was interrupted here, for example by Ctrl-C.
                if reply.get("id") in (message["id"], None):
                    return reply
        except socket.timeout as error:
            self._hang_up()
            raise Gone("no answer from the agent within {:g} s".format(self._timeout_s)) from error
        except OSError as error:
            self._hang_up()
            text = "lost the connection to the agent at {}: {}"
            raise Gone(text.format(self._path, error.strerror or error)) from error
        except FileFailed:  # a value is not finite: nothing was sent
            raise BadRequest("{} needs finite numbers".format(message["request"])) from None
        except BadRequest as error:
            self._hang_up()
            raise Gone("the process listening at {} is not a wattune-agent: {}".format(self._path, error)) from error

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            self._lines.send(message, self._timeout_s)
        except BrokenPipeError:
            pass  # an agent that refused the connection has said why
        except KeyboardInterrupt:  # perhaps half a line, after which the next one could not be parsed
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # ------------------------------------------------------------------------------------------------------- the lease

    def _keep_renewing(self) -> None:
        with self._lock:
            if self._renewing is None:
                self._ended = threading.Event()
                period_s = self._board["lease_s"] / RENEWALS
                self._renewing = threading.Thread(
                    target=self._renew, args=(self._ended, period_s), name="wattune-lease", daemon=True
                )
                self._renewing.start()

    def _renew(self, ended: threading.Event, period_s: float) -> None:
        while not self._time.wait(ended, period_s):
            with suppress(AgentError):  # the next request that waits for its answer reports it
                self._ask("renew")

    def _stop_renewing(self) -> None:
        self._ended.set()
        self._renewing = None


_open: "weakref.WeakSet[AgentClient]" = weakref.WeakSet()


def _unreachable(error: OSError, path: str) -> AgentError:
    if isinstance(error, PermissionError):
        return Forbidden(
            "this user may not use {}; join its group (sudo usermod -aG wattune $USER, then log in again), or "
            "run as root".format(path)
        )
    why = {
        FileNotFoundError: "there is no such socket",
        ConnectionRefusedError: "no process listens there",
        socket.timeout: "it does not respond",
        BlockingIOError: "it does not accept a connection",
    }.get(type(error), str(error.strerror or error))
    return NotThere(
        "no wattune-agent at {}: {}; start it: sudo wattune-agent serve, or sudo systemctl start wattune-agent; in a "
        "container, mount the socket's folder".format(path, why)
    )


def _close_in_child() -> None:
    """Close connections inherited by a fork, such as a data loader's worker, which would keep the parent's open."""
    for client in list(_open):
        if client._socket is not None:
            client._socket.close()


_register_at_fork = getattr(os, "register_at_fork", None)
if _register_at_fork is not None:  # Python 3.7; before that, the agent checks that the process is alive
    _register_at_fork(after_in_child=_close_in_child)
