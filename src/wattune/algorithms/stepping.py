"""What every training loop on one device needs: the model on its processor, a part of a batch, a copy of a state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Batch, Trainable
from wattune.algorithms.placement import shortage_said
from wattune.errors import InputError, WorkloadError


class Opened(NamedTuple):
    """A model with its initial weights, and the device that it is on."""

    module: nn.Module
    device: torch.device


def opened(trainable: Trainable, seed: int, on: torch.device | None) -> Opened:
    """The model of a new training. Raises: WorkloadError where nothing trains, OutOfDeviceMemory."""
    with shortage_said("the model"):
        module = trainable.model(seed)
        if on is not None:
            module = module.to(on)
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        raise WorkloadError("the model has no parameter that trains", value=type(module).__name__)
    return Opened(module, trained[0].device)


def check_sizes(batch_size: int, micro_batch_size: int | None) -> None:
    """Raises: InputError for a batch size that cannot be."""
    if batch_size < 1:
        raise InputError("batch size", value=batch_size, allowed="1 and up")
    if micro_batch_size is not None and not 1 <= micro_batch_size <= batch_size:
        raise InputError("micro-batch size", value=micro_batch_size, allowed=f"1 to the batch size {batch_size}")


def part(batch: Batch, start: int, end: int, device: torch.device) -> Batch:
    """The samples from ``start`` to ``end`` of a batch, on the device."""
    x, y = tree_map(lambda v: v[start:end].to(device) if isinstance(v, Tensor) else v, batch)
    return x, y


def copied(values: Any) -> Any:
    """A copy on the CPU: a second one of everything in a small GPU's memory may be the one that does not fit."""
    return tree_map(lambda v: v.detach().to("cpu", copy=True) if isinstance(v, Tensor) else v, values)


@contextmanager
def misfit_said() -> Iterator[None]:
    """Raises: InputError where a state that is loaded in here is of another model."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(
            "the training state does not fit the model", value=str(error), hint="give that of the same workload"
        ) from error


@contextmanager
def untouched(found: Sequence[nn.Module]) -> Iterator[None]:
    """The modules train in here; buffers, modes and random numbers are as they were afterwards."""
    buffers = [(b, b.clone()) for part in found for b in part.buffers()]
    modes = [(module, module.training) for part in found for module in part.modules()]
    on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=None if on_cuda else []):
        for part in found:
            part.train()
        try:
            yield
        finally:
            for buffer, value in buffers:
                buffer.copy_(value)
            for module, training in modes:
                module.training = training
