"""The processor that training code runs on, and its many ways of running out of memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from wattune.errors import OutOfDeviceMemory

SIGNS = (
    "out of memory",  # CUDA's own, the caching allocator's, cuDNN's
    "can't allocate memory",  # the CPU allocator's
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "NvMapMemAlloc",  # Tegra's driver
    "NvMapMemHandleAlloc",
    "NVML_SUCCESS == r INTERNAL ASSERT",  # the allocator asks NVML why it failed, and Tegra has no NVML
)
"""Parts of a RuntimeError's message that mean out of memory.

Source: pytorch c10/cuda/CUDACachingAllocator.cpp and c10/core/CPUAllocator.cpp; NVIDIA/cudnn status codes;
dusty-nv/jetson-containers issues (NvMapMemAllocInternalTagged, the NVML assertion on Jetson).
"""


def place(trains_on: Literal["cpu", "gpu"]) -> torch.device:
    """The torch device of a board that trains on this processor: CUDA's current device, if there is one."""
    if trains_on == "gpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Raise OutOfDeviceMemory in place of an out-of-memory error; any other error passes through."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) and not _is_shortage(str(error)):
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OutOfDeviceMemory(f"{what} does not fit in memory: {first}") from error


def release() -> None:
    """Free memory that is no longer referenced, including PyTorch's cache on the GPU."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _is_shortage(message: str) -> bool:
    return any(sign.lower() in message.lower() for sign in SIGNS)
