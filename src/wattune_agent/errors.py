"""Every error that the agent raises on purpose.

AgentError              ``code`` is its name on the socket
|-- BadRequest          what was asked for cannot be asked for, or not with this value
|-- NotThere            no such board, clock or sensor here: says what was looked for, and what would help
|-- Forbidden           a file may not be read or written: names it, and the ways out
|-- FileFailed          a file that was there vanished, gave an error or nonsense
|   `-- NoReading       ... and it was the power sensor's
|-- NotTaken            the board did not go to the clock that was written, in time
|-- Busy                another process controls the board
|-- Full                the agent takes no more connections
|-- NotKept             a snapshot could not be written or read; nothing was changed on the board
|-- NotRestored         a file could not be brought back; the snapshot stays, ``restore`` tries again
`-- Gone                the agent went away, or does not speak this protocol
"""

from typing import Dict, Type

__all__ = [
    "AgentError",
    "BadRequest",
    "Busy",
    "FileFailed",
    "Forbidden",
    "Full",
    "Gone",
    "NoReading",
    "NotKept",
    "NotRestored",
    "NotTaken",
    "NotThere",
    "error_of",
]


class AgentError(Exception):
    """Base class; its text is one line."""

    code = "failed"


class BadRequest(AgentError):
    """Something was asked for that does not exist, or with a value that is not allowed."""

    code = "bad-request"


class NotThere(AgentError):
    """No such board, clock or sensor: what was looked for, and what would help."""

    code = "not-there"


class Forbidden(AgentError):
    """A file may not be read or written by this user: which one, and the ways out."""

    code = "forbidden"


class FileFailed(AgentError):
    """A file that was there vanished, gave an error, or holds nonsense."""

    code = "file-failed"


class NoReading(FileFailed):
    """The power sensor gave no reading."""

    code = "no-reading"


class NotTaken(AgentError):
    """The board did not go to the setting in time."""

    code = "not-taken"


class Busy(AgentError):
    """Another process controls the board: which one."""

    code = "busy"


class Full(AgentError):
    """The agent takes no more connections; it says nothing of who controls the board."""

    code = "full"


class NotKept(AgentError):
    """A snapshot could not be written or read; nothing was changed on the board."""

    code = "not-kept"


class NotRestored(AgentError):
    """Something could not be brought back; the snapshot stays where it is."""

    code = "not-restored"


class Gone(AgentError):
    """The agent went away, or speaks another protocol."""

    code = "gone"


_BY_CODE: Dict[str, Type[AgentError]] = {
    kind.code: kind
    for kind in (
        AgentError,
        BadRequest,
        NotThere,
        Forbidden,
        FileFailed,
        NoReading,
        NotTaken,
        Busy,
        Full,
        NotKept,
        NotRestored,
        Gone,
    )
}


def error_of(code: str, message: str) -> AgentError:
    """The error that travelled as ``code`` and ``message``; an unknown code is an AgentError."""
    return _BY_CODE.get(code, AgentError)(message)
