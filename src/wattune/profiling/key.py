"""Key of a profile: all that the profile depends on."""

from __future__ import annotations

import torch

from wattune.algorithms import place
from wattune.devices import Device
from wattune.records import ProfileKey
from wattune.workloads import Workload


def profile_key(device: Device, workload: Workload, algorithm: str) -> ProfileKey:
    """The key of a table of this workload on this device. Neither weights nor data are read for it.

    ``software`` is torch's version without its patch level, such as "torch 2.6": the operations of a step and their
    kernels change with it. It also tells if a board's GPU should train but this torch uses the CPU. The version of
    wattune is in the table's provenance.
    """
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
