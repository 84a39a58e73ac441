"""Every error that the agent raises on purpose; ``code`` is its name on the socket."""

from typing import List, Type

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
    """A request that does not exist, or a value that is not allowed."""

    code = "bad-request"


class NotThere(AgentError):
    """No such board, clock or sensor: says what was looked for, and what would help."""

    code = "not-there"


class Forbidden(AgentError):
    """A file may not be read or written by this user: names it, and the remedies."""

    code = "forbidden"


class FileFailed(AgentError):
    """A file vanished, gave an error, or contains garbage."""

    code = "file-failed"


class NoReading(FileFailed):
    """The power sensor gave no reading."""

    code = "no-reading"


class NotTaken(AgentError):
    """The board did not reach the setting in time."""

    code = "not-taken"


class Busy(AgentError):
    """Another process controls the board: names it."""

    code = "busy"


class Full(AgentError):
    """The agent accepts no more connections; says nothing about which process controls the board."""

    code = "full"


class NotKept(AgentError):
    """A snapshot could not be written or read; nothing was changed on the board."""

    code = "not-kept"


class NotRestored(AgentError):
    """A file or mode could not be restored; the snapshot stays where it is."""

    code = "not-restored"


class Gone(AgentError):
    """The agent stopped, or speaks another protocol."""

    code = "gone"


_KINDS: List[Type[AgentError]] = [AgentError, NoReading, *AgentError.__subclasses__()]
_BY_CODE = {kind.code: kind for kind in _KINDS}


def error_of(code: str, message: str) -> AgentError:
    """The error sent as ``code`` and ``message``; an unknown code becomes an AgentError."""
    return _BY_CODE.get(code, AgentError)(message)
