"""Facts about NVIDIA cards that need no driver: the one that CUDA trains on, and the data types of a chip.

Source: CUDA C++ programming guide, "CUDA environment variables" (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from wattune.errors import DeviceUnavailable

_is_elsewhere: ContextVar[bool] = ContextVar("_is_elsewhere", default=False)


@contextmanager
def trained_elsewhere() -> Iterator[None]:
    """Context in which cards are opened for other processes to train on: those that this one sees do not matter."""
    token = _is_elsewhere.set(True)
    try:
        yield
    finally:
        _is_elsewhere.reset(token)


def check_visible(uuid: str, names: Mapping[str, str]) -> None:
    """Check that the first card that CUDA shows to this process is the one with this UUID.

    Inside ``trained_elsewhere``, any will do. ``names``: UUID -> name of each card, in the driver's order, which is
    that of their PCI addresses. Raises: DeviceUnavailable.
    """
    if len(names) < 2 or _is_elsewhere.get():
        return
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.isdecimal():
        # CUDA counts the fastest card first, unless its order is set to that of PCI addresses.
        if len(set(names.values())) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise DeviceUnavailable(
                f"CUDA_VISIBLE_DEVICES={first} does not say on which of {len(names)} different GPUs training runs, "
                "since CUDA counts the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID in the environment, or "
                f"CUDA_VISIBLE_DEVICES={uuid}"
            )
        if list(names).index(uuid) == int(first):
            return
    elif [known for known in names if first.startswith("GPU-") and known.startswith(first)] == [uuid]:
        return
    raise DeviceUnavailable(
        f"there are {len(names)} GPUs, and training would not surely run on this one: set "
        f"CUDA_VISIBLE_DEVICES={uuid} in the environment"
    )


def data_types(capability: tuple[int, ...]) -> frozenset[str]:
    """The data types that a chip of this compute capability trains in."""
    if capability >= (8, 0):
        return frozenset({"fp32", "tf32", "fp16", "bf16"})
    return frozenset({"fp32", "fp16"} if capability >= (5, 3) else {"fp32"})
