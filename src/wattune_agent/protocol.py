"""The protocol on the socket: one JSON object per line, a few requests, nothing else.

    -> {"wattune": 1, "id": 7, "request": "pin", "mhz": 612.0}
    <- {"wattune": 1, "id": 7, "answer": {"mhz": 612.0}, "events": []}
    <- {"wattune": 1, "id": 7, "error": {"code": "busy", "message": "..."}, "events": []}

========  =====================================  ===================================================================
discover                                         the board: its clock, sensor, mode and problems; and ``requests``, the
                                                 fields of each request that the agent knows
read                                             power, rails, temperature, throttling and the present clock
pin       ``mhz``, ``memory_clock_mhz``,         take control and hold the clock there; a silent client loses it. The
          ``cpu_clock_mhz``                      clocks beside it may be null: as they were found
slice     ``mhz``                                switch the pinned clock quickly, to another of its settings
guard     ``cap_w``, ``max_temp_c``, ``window_s``  take control; while the client does not read, the agent does, and
                                                 holds the lowest clock of a board above a limit. Each may be null;
                                                 without ``window_s``, the cap is on every reading
set       ``cap_w``                              hold another cap in place of the holder's, for any client, until the
                                                 holder's ends; null ends that. The holder reads ``set_cap_w`` and
                                                 has to keep below that itself; the agent does while it does not read
renew                                            renew the lease
restore                                          restore the board and give up control
========  =====================================  ===================================================================

Every answer carries the ``events`` that the client has not received yet: ``{"time_s", "kind", "text"}``, in seconds of
the machine's monotonic clock.
"""

import json
import math
import socket
from typing import Any, Dict, Iterable, List, Optional, Tuple

from wattune_agent import PROTOCOL, SERVED
from wattune_agent.errors import AgentError, BadRequest, FileFailed, Gone, NotThere, error_of

SOCKET = "/run/wattune/agent.sock"
"""The agent's socket by default."""

REQUEST_LIMIT = 4096
"""Longest line of a request, in bytes."""

ANSWER_LIMIT = 1 << 20
"""Longest line of an answer, in bytes."""

REQUESTS: Dict[str, Dict[str, bool]] = {
    "discover": {},
    "read": {},
    "pin": {"mhz": False, "memory_clock_mhz": True, "cpu_clock_mhz": True},
    "slice": {"mhz": False},
    "guard": {"cap_w": True, "max_temp_c": True, "window_s": True},
    "set": {"cap_w": True},
    "renew": {},
    "restore": {},
}
"""The fields of each request, all of them numbers, and whether a field may be null; absent is null."""

STATED = {name: sorted(fields) for name, fields in REQUESTS.items()}
"""The requests and their fields, as an agent states them."""

RESTART = "restart the agent: `sudo systemctl restart wattune-agent`"
"""Remedy where an agent and its client differ."""


class Lines:
    """The lines of one socket, each a JSON object. Not for several threads at once."""

    def __init__(self, connection: socket.socket, limit: int) -> None:
        self._socket = connection
        self._limit = limit
        self._rest = b""

    def send(self, message: Dict[str, Any], timeout_s: Optional[float] = None) -> None:
        """Send one message; None waits without limit. Raises: OSError (``socket.timeout`` after ``timeout_s``),
        FileFailed for a number that JSON cannot represent."""
        line = line_of(message)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(line)

    def receive(self, timeout_s: Optional[float] = None) -> Optional[Dict[str, Any]]:
        """Receive the next message; None if the other side closed. A partial line stays for the next call.

        Raises: BadRequest for a line that is not a JSON object; OSError (``socket.timeout`` after a silence of
        ``timeout_s``).
        """
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._rest:
            if len(self._rest) > self._limit:
                raise BadRequest("a line of more than {} bytes".format(self._limit))
            more = self._socket.recv(65536)
            if not more:
                return None
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        if len(line) > self._limit:
            raise BadRequest("a line of more than {} bytes".format(self._limit))
        return _decoded(line)


def line_of(message: Dict[str, Any]) -> bytes:
    """The message as one line. Raises: FileFailed for a number that JSON cannot represent."""
    try:
        return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    except ValueError as error:
        raise FileFailed("the board's files contain a value that is not a number: {}".format(error)) from None


def check_request(message: Dict[str, Any]) -> Tuple[int, str, Dict[str, Optional[float]]]:
    """The request's id, name and fields. Raises: BadRequest, Gone for another version of the protocol."""
    if message.get("wattune") not in SERVED:
        raise Gone(_other_version("this agent", PROTOCOL, message.get("wattune")))
    number = message.get("id")
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadRequest("a request needs an id that is a whole number")
    name = message.get("request")
    if not isinstance(name, str) or name not in REQUESTS:
        raise BadRequest("unknown request: {!r:.40}; allowed: {}".format(name, ", ".join(REQUESTS)))
    fields = {key: None for key, may_be_null in REQUESTS[name].items() if may_be_null}
    fields.update({key: value for key, value in message.items() if key not in ("wattune", "id", "request")})
    if set(fields) != set(REQUESTS[name]):
        field_names = ", ".join(REQUESTS[name]) or "no fields"
        raise BadRequest("{} takes {}, not {:.80}".format(name, field_names, ", ".join(sorted(fields)) or "none"))
    return number, name, {key: _number(key, value, REQUESTS[name][key]) for key, value in fields.items()}


def known_fields(request: str, fields: Dict[str, Any], known: Dict[str, Iterable[str]]) -> Dict[str, Any]:
    """The fields of a request without the null ones that an agent does not know; ``known``: those that it states.

    Raises: NotThere for a request, or another field, that it does not know.
    """
    lacking = sorted(key for key, value in fields.items() if value is not None and key not in known.get(request, ()))
    if request not in known or lacking:
        raise NotThere("the running agent does not know {}; {}".format(" ".join([request] + lacking), RESTART))
    return {key: value for key, value in fields.items() if key in known[request]}


def answer(
    number: Optional[int], content: Dict[str, Any], events: List[Dict[str, Any]], protocol: int = PROTOCOL
) -> Dict[str, Any]:
    """The line that answers request ``number``, in the version of the protocol that it was asked in."""
    return {"wattune": protocol, "id": number, "answer": content, "events": events}


def failure(
    number: Optional[int], error: AgentError, events: List[Dict[str, Any]], protocol: int = PROTOCOL
) -> Dict[str, Any]:
    """The line that says why request ``number`` failed; None if the number could not be read."""
    content = {"code": error.code, "message": str(error)}
    return {"wattune": protocol, "id": number, "error": content, "events": events}


def read_answer(message: Dict[str, Any], protocol: int = PROTOCOL) -> Dict[str, Any]:
    """The content of an answer. Raises: the error that it carries; Gone if it does not follow this protocol."""
    error = message.get("error")
    is_same = message.get("wattune") == protocol
    if isinstance(error, dict) and is_same:
        raise error_of(str(error.get("code")), str(error.get("message")))
    content = message.get("answer")
    if not is_same or not isinstance(content, dict):
        raise Gone(_other_version("the agent", message.get("wattune"), protocol))
    return content


def _other_version(who: str, agents: object, clients: object) -> str:
    return (
        "{} speaks version {!r:.20} of the protocol, and its client version {!r:.20}; install one wattune for both and "
        "{}".format(who, agents, clients, RESTART)
    )


def _decoded(line: bytes) -> Dict[str, Any]:
    try:
        # Deep nesting raises RecursionError.
        message = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise BadRequest("not a line of JSON: {!r}".format(line[:40])) from None
    if not isinstance(message, dict):
        raise BadRequest("not a JSON object: {!r}".format(line[:40]))
    return message


def _refuse(word: str) -> None:
    raise ValueError(word)


def _number(name: str, value: Any, may_be_null: bool) -> Optional[float]:
    if value is None and may_be_null:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRequest("{} must be a number".format(name))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number <= 0:
        raise BadRequest("{} must be above zero and finite".format(name))
    return number
