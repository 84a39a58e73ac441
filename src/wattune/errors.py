"""Every error that wattune raises on purpose.

    WattuneError                exit code 1: ours
    |-- InputError              exit code 2: something the user gave is wrong
    |   |-- UnknownName         a device, model, ... that is not registered; lists the known ones
    |   |-- RecordError         a record that cannot be read, is cut off, foreign or contradicts itself
    |   |   `-- NoPoint         nothing of a profile can be chosen, for another reason than the cap
    |   |-- CapError            no measured point keeps the cap; names the lowest
    |   |-- WorkloadError       model, data or workload file that cannot be trained as given
    |   |-- OutputError         an output folder that is full, not empty or not writable
    |   `-- ServerRefused       a wattune server does not do what was asked, or not for this token
    |-- DeviceError             exit code 1: the board did not do what it was asked
    |   |-- BoardUnusable       exit code 2: no such board or sensor, not permitted, or busy; says what would help
    |   |-- OutOfDeviceMemory   the step does not fit in the device's memory
    |   `-- SensorError         the power sensor gave no reading
    |-- ServerError             exit code 1: a wattune server did not do what it should
    |   `-- ServerAway          it cannot be reached, or is too busy: try again later
    |-- TargetNotReached        exit code 3: the record is kept, marked
    |-- SafetyStop              exit code 4: training was stopped to keep the cap
    `-- Interrupted             exit code 130: stopped by the user; can be resumed

Vendor and library errors are mapped to one of these where they come in, with ``raise ... from``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class WattuneError(Exception):
    """Base class. ``exit_code`` is what the command line returns."""

    exit_code: ClassVar[int] = 1


class InputError(WattuneError):
    """Something that the user gave is wrong: one line with what, which value, what is allowed, what to do."""

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
    """A name that nothing is registered under."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        self.known = sorted(known)
        super().__init__(f"unknown {kind}", value=name, allowed=", ".join(self.known) or "none")


class RecordError(InputError):
    """A record that cannot be read, is cut off, belongs to something else or contradicts itself."""


class NoPoint(RecordError):
    """Nothing of a profile can be chosen: it does not fit in the memory limit, or no run reached the target."""


class CapError(InputError):
    """No measured point keeps the cap."""


class WorkloadError(InputError):
    """A model, a data set or a workload file that cannot be trained as it was given."""


class OutputError(InputError):
    """A place to write to that is full, not empty or not writable."""


class ServerRefused(InputError):
    """A server does not do what was asked, or not for this token. ``status`` is that of HTTP."""

    def __init__(self, what: str, *, status: int, hint: str | None = None):
        super().__init__(what, hint=hint)
        self.status = status


class DeviceError(WattuneError):
    """The board did not do what it was asked to do."""


class BoardUnusable(DeviceError):
    """The board is not there, lacks a sensor, is forbidden or busy: says what would help."""

    exit_code = 2


class OutOfDeviceMemory(DeviceError):
    """A step that does not fit in the device's memory.

    ``needed_bytes`` and ``available_bytes`` say by how much; None where the device does not tell.
    """

    def __init__(self, message: str, *, needed_bytes: float | None = None, available_bytes: float | None = None):
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class SensorError(DeviceError):
    """The power sensor gave no reading. Never replaced by a zero or a NaN."""


class ServerError(WattuneError):
    """A server failed at what was asked, or what answers is none."""


class ServerAway(ServerError):
    """A server cannot be reached, or is too busy. ``retry_after_s``: when it asks to be asked again; 0: unknown."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TargetNotReached(WattuneError):
    """Training ended before the target; the record is kept and says so."""

    exit_code = 3


class SafetyStop(WattuneError):
    """Training was stopped because the cap could not be kept; the record is kept and says so."""

    exit_code = 4


class Interrupted(WattuneError):
    """Stopped by the user; what was done is kept and can be resumed."""

    exit_code = 130


def _short(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= 120 else text[:117] + "..."
