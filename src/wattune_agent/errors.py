"""Every error that the agent raises on purpose; ``code`` is its name on the socket."""

import re
from typing import Dict, Type


class AgentError(Exception):
    """Base class; its text is one line."""

    code = "failed"

    def __init_subclass__(cls) -> None:
        cls.code = re.sub("(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()  # NotThere: not-there
        _BY_CODE[cls.code] = cls


_BY_CODE: Dict[str, Type[AgentError]] = {}


class BadRequest(AgentError):
    """A request that does not exist, or a value that is not allowed."""


class NotThere(AgentError):
    """No such board, clock or sensor: says what was looked for, and what would help."""


class Forbidden(AgentError):
    """A file may not be read or written by this user: names it, and the remedies."""


class FileFailed(AgentError):
    """A file vanished, gave an error, or contains garbage."""


class NoReading(FileFailed):
    """The power sensor gave no reading."""


class NotTaken(AgentError):
    """The board did not reach the setting in time."""


class Busy(AgentError):
    """Another process controls the board: names it."""


class Full(AgentError):
    """The agent accepts no more connections; says nothing about which process controls the board."""


class NotKept(AgentError):
    """A snapshot could not be written or read; nothing was changed on the board."""


class NotRestored(AgentError):
    """A file or mode could not be restored; the snapshot stays where it is."""


class Gone(AgentError):
    """The agent stopped, or speaks another protocol."""


def error_of(code: str, message: str) -> AgentError:
    """The error sent as ``code`` and ``message``; an unknown code becomes an AgentError."""
    return _BY_CODE.get(code, AgentError)(message)
