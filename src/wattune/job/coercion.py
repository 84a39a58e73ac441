"""Coercion: from what a caller may give to the object that a step works with.

A device is a spec such as ``"sim:jetson-nano"`` or an open device. A workload is an object, the path of a workload
file, or None for the built-in example. A record is the record or the path of its file.
"""

# Each function imports what it opens: planning from records must not wait for torch.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from wattune.program.workload import ProgramWorkload
from wattune.records import Record

if TYPE_CHECKING:
    from wattune.devices import Device
    from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]
"""Called with how much of how much is done, and a few words."""

R = TypeVar("R", bound=Record)


@contextmanager
def opened(device: str | Device, *, seed: int = 0) -> Iterator[Device]:
    """The device; one that is opened here, from a spec, is closed again. Raises: InputError, DeviceError."""
    from wattune.devices import open_device

    if not isinstance(device, str):
        yield device
        return
    board = open_device(device, seed=seed)
    try:
        yield board
    finally:
        board.close()


def as_workload(workload: str | Path | Workload | None, progress: Progress | None = None) -> Workload:
    """The workload; with ``progress`` the built-in example trains its initial weights now, if it lacks them.

    Raises: WorkloadError, UnknownName.
    """
    from wattune.workloads import example_workload, load_workload

    if workload is None:
        return example_workload(progress)
    return load_workload(workload) if isinstance(workload, (str, Path)) else workload


def profiled_workload(workload: str | Path | Workload | None, board: Device) -> Workload | None:
    """The workload to profile on this board, without weights. Without one, a replayed table has its own (None), and any
    other board profiles the built-in example.

    Raises: WorkloadError, UnknownName.
    """
    if workload is None and board.replayed_table is not None:
        return None
    return as_workload(workload).without_weights()


def as_trainable(
    workload: str | Path | Workload | ProgramWorkload | None, progress: Progress | None = None
) -> Workload | ProgramWorkload:
    """The program, or the workload: see ``as_workload``."""
    return workload if isinstance(workload, ProgramWorkload) else as_workload(workload, progress)


def as_record(kind: type[R], record: str | Path | R) -> R:
    """The record. Raises: RecordError."""
    return kind.load(record) if isinstance(record, (str, Path)) else record
