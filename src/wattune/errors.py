"""Every error that wattune raises on purpose.

    WattuneError                exit code 1: base class
    |-- InputError              exit code 2: invalid input by the user
    |   |-- UnknownName         a device, model, ... that is not registered; lists the registered ones
    |   |-- RecordError         a record that is unreadable, truncated, inconsistent or of something else
    |   |   `-- NoFeasiblePoint no point of a profile can be chosen, for another reason than the cap
    |   |-- CapError            no measured point stays under the cap; names the lowest
    |   |-- WorkloadError       a model, data set or workload file that cannot be trained as given
    |   |-- OutputError         an output folder that is full, not empty or not writable
    |   `-- ServerRefused       a wattune server rejected the request or the token
    |-- DeviceError             exit code 1: the board did not do what it was asked to
    |   |-- DeviceUnavailable   exit code 2: no such board or sensor, not permitted, or busy; says what would help
    |   |-- OutOfDeviceMemory   the step does not fit in the device's memory
    |   `-- SensorError         the power sensor gave no reading
    |-- ServerError             exit code 1: a wattune server failed, or is not a wattune server
    |   `-- ServerUnavailable   it is unreachable or busy: retry later
    |-- TargetNotReached        exit code 3: training, or every proxy run, ended before the target; records are saved
    |-- SafetyStop              exit code 4: training was stopped because the cap could not be enforced
    `-- Interrupted             exit code 130: stopped by the user; can be resumed

Vendor and library errors are mapped to one of these at the call that raises them, with ``raise ... from``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar


class WattuneError(Exception):
    """Base class. ``exit_code`` is the exit code of the command line."""

    exit_code: ClassVar[int] = 1


class InputError(WattuneError):
    """Invalid input by the user: one line with what is wrong, the value, what is allowed and what to do."""

    exit_code = 2

    def __init__(self, what: str, *, value: object = None, allowed: str | None = None, hint: str | None = None):
        self.what = what
        self.value = value
        self.allowed = allowed
        self.hint = hint
        parts = [what if value is None else f"{what}: {_short(value)}"]
        if allowed:
            parts.append(f"allowed: {allowed}")
        if hint:
            parts.append(hint)
        super().__init__("; ".join(parts))


class UnknownName(InputError):
    """A name that is not registered."""

    def __init__(self, kind: str, name: str, registered: Iterable[str]):
        self.registered = sorted(registered)
        allowed = ", ".join(self.registered) or "none"
        super().__init__(f"unknown {kind}", value=name, allowed=allowed, hint=did_you_mean(name, self.registered))


class RecordError(InputError):
    """A record that is unreadable, truncated, inconsistent or of something else."""


class NoFeasiblePoint(RecordError):
    """No point of a profile can be chosen: none fits in the memory limit, or no run reached the target."""


class CapError(InputError):
    """No measured point stays under the cap."""


class WorkloadError(InputError):
    """A model, data set or workload file that cannot be trained as given."""


class OutputError(InputError):
    """An output folder or file that is full, not empty or not writable."""


class ServerRefused(InputError):
    """A server rejected the request or the token. ``status``: the HTTP status."""

    def __init__(self, what: str, *, status: int, hint: str | None = None):
        super().__init__(what, hint=hint)
        self.status = status


class DeviceError(WattuneError):
    """The board did not do what it was asked to do."""


class DeviceUnavailable(DeviceError):
    """The board is absent, lacks a sensor, is not permitted or busy; the message says what would help."""

    exit_code = 2


class OutOfDeviceMemory(DeviceError):
    """A step that does not fit in the device's memory.

    ``needed_bytes`` and ``available_bytes`` are None if the device does not report them.
    """

    def __init__(self, message: str, *, needed_bytes: float | None = None, available_bytes: float | None = None):
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class SensorError(DeviceError):
    """The power sensor gave no reading. A missing reading is never replaced by a zero or a NaN."""


class ServerError(WattuneError):
    """A server failed to handle a request, or is not a wattune server."""


class ServerUnavailable(ServerError):
    """A server is unreachable or busy. ``retry_after_s``: its Retry-After in seconds; 0 if unknown."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TargetNotReached(WattuneError):
    """Training, or every proxy run, ended before the target. A training record is saved, and says so."""

    exit_code = 3


class SafetyStop(WattuneError):
    """Training was stopped because the cap could not be enforced; the record is saved and says so."""

    exit_code = 4


class Interrupted(WattuneError):
    """Stopped by the user; progress is saved and can be resumed."""

    exit_code = 130


def did_you_mean(given: str | int, known: Iterable[Any]) -> str | None:
    """A hint with the known name that is most like the given one, or the nearest number; None if none is near."""
    names = list(known)
    if isinstance(given, int):
        near: list[Any] = [min(names, key=lambda one: abs(one - given))] if names else []
    else:
        texts = [str(one) for one in names]
        parts = [one for one in texts if len(given) > 2 and given.lower() in one.lower()]
        near = difflib.get_close_matches(given, texts, n=1) or parts
    return f"did you mean {near[0]}?" if near else None


def _short(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= 120 else text[:117] + "..."
