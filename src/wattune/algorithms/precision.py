"""Training in a data type: the same contexts for running a step and for counting it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wattune.errors import InputError

LOW_PRECISION: dict[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Data types trained with autocast: parameters, their gradients and the optimizer stay in fp32."""

DATA_TYPES = ("fp32", "tf32", *LOW_PRECISION)


def check_data_type(name: str) -> None:
    """Check that the data type is supported. Raises: InputError."""
    if name not in DATA_TYPES:
        raise InputError("unknown data type", value=name, allowed=", ".join(DATA_TYPES))


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
