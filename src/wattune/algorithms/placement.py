"""The processor and data type that training code runs with, and the many ways of running out of memory."""

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
        is_named = any(sign.lower() in str(error).lower() for sign in SIGNS)
        if not is_named and not isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OutOfDeviceMemory(f"{what} does not fit in memory: {first}") from error


def release() -> None:
    """Free memory that is no longer referenced, including PyTorch's cache on the GPU."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


LOW_PRECISION: dict[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Data types trained with autocast: parameters, their gradients and the optimizer stay in fp32."""


def autocast(device_type: str, data_type: str) -> torch.autocast:
    """Context of a forward pass and its loss; no effect for fp32 and tf32."""
    lower = LOW_PRECISION.get(data_type)
    return torch.autocast(device_type, dtype=lower or torch.bfloat16, enabled=lower is not None)


@contextmanager
def matrix_precision(device_type: str, data_type: str) -> Iterator[None]:
    """Use TF32 in matrix products and convolutions for "tf32", else full fp32; restore the setting afterwards.

    It affects CUDA only: on every other device tf32 is fp32.
    """
    if device_type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = data_type == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
