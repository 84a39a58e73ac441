"""Key of a profile: all that the profile depends on."""

from __future__ import annotations

import torch

from wattune.algorithms import place
from wattune.devices import Device
from wattune.errors import InputError
from wattune.records import ProfileKey
from wattune.workloads import Workload

UNKNOWN = "as recorded"
"""Value of the fields of a key that a replayed table does not tell."""


def profile_key(device: Device, workload: Workload | None, algorithm: str) -> ProfileKey:
    """The key of a table of this workload on this device. Neither weights nor data are read for it.

    Without a workload, on a replayed table, it is the table's own.

    ``software`` is torch's version without its patch level, such as "torch 2.6": the operations of a step and their
    kernels change with it. It also tells if a board's GPU should train but this torch uses the CPU. The version of
    wattune is in the table's provenance.

    Raises: InputError without a workload on any other device.
    """
    if workload is None:
        return _key_of_table(device, algorithm)
    major, minor = torch.__version__.split(".")[:2]
    misplaced = device.executes_steps and device.trains_on == "gpu" and place("gpu").type == "cpu"
    elsewhere = " on the CPU" if misplaced else ""
    return ProfileKey(
        device=device.name,
        mode=device.mode,
        model=workload.model_fingerprint(),
        input_shape="x".join(str(size) for size in workload.input_shape),
        data_type=workload.data_type,
        optimizer=workload.optimizer_key(),
        algorithm=algorithm,
        software=f"torch {major}.{minor}{elsewhere}",
    )


def _key_of_table(device: Device, algorithm: str) -> ProfileKey:
    table = device.replayed_table
    if table is None:
        raise InputError("a profile without a workload", allowed="only on a replayed table")
    key = table.key or ProfileKey(
        device=device.name,
        mode=device.mode,
        model=f"{table.workload} of {table.device}",
        input_shape=UNKNOWN,
        data_type=UNKNOWN,
        optimizer=UNKNOWN,
        algorithm=algorithm,
        software=UNKNOWN,
    )
    return key.model_copy(update={"device": device.name, "mode": device.mode, "algorithm": algorithm})
