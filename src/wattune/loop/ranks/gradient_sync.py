"""Gradients of a data-parallel model: averaged over the ranks once per optimizer step, with its last micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wattune.errors import InputError

try:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
except ImportError:  # torch without distributed training
    FSDPModule = FullyShardedDataParallel = None  # type: ignore[assignment,misc]


_ALONE = nullcontext()


class GradientSync:
    """A model's way to average gradients over the ranks. Raises: InputError for one that is not supported.

    ``module`` is the model itself, inside what averages; ``is_sharded``: each rank has a part of each parameter.
    """

    def __init__(self, model: nn.Module, ranks: int):
        if isinstance(model, nn.DataParallel):
            raise InputError(
                "nn.DataParallel has one process for all GPUs, whose batches are split without regard to their speed",
                value=type(model).__name__,
                allowed="DistributedDataParallel under torchrun, with one process for each GPU",
            )
        if FullyShardedDataParallel is not None and isinstance(model, FullyShardedDataParallel):
            raise InputError("FullyShardedDataParallel is replaced in torch", allowed="fully_shard, or DDP")
        is_ddp = isinstance(model, DistributedDataParallel)
        self.is_sharded = FSDPModule is not None and isinstance(model, FSDPModule)
        if ranks > 1 and not is_ddp and not self.is_sharded:
            raise InputError(
                f"the job has {ranks} processes, but the model does not average its gradients over them",
                value=type(model).__name__,
                allowed="DistributedDataParallel(model), or fully_shard(model)",
                hint="tensor and pipeline parallelism are not supported",
            )
        self.module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._ranks = ranks
        self._fsdp = model if self.is_sharded else None
        self._is_open = self._averages = False

    def open(self) -> None:
        """Leave all gradients local but for the last micro-batch of each step, until ``close``.

        DDP averages in the next backward pass after any forward pass with gradients. An evaluation's forward pass has
        no backward pass, so a first micro-batch would be averaged, in a collective that other ranks may not be in.
        """
        self._is_open = True
        self.passed()

    def close(self) -> None:
        """Average in every backward pass again."""
        self._is_open = False
        self.passed()

    def mean(self, own: Tensor) -> Tensor:
        """The mean of a tensor over the ranks, all of which have to call this at the same place."""
        if self._ranks == 1:
            return own
        group, total = None if self._ddp is None else self._ddp.process_group, own.clone()
        dist.all_reduce(total, group=group)
        return total / self._ranks

    def ended(self, has_batch: bool) -> list[int]:
        """Ranks without another batch; all ranks have to call this at the same place."""
        flags = torch.zeros(self._ranks, device=next(self.module.parameters()).device)
        flags[dist.get_rank()] = not has_batch
        return (self.mean(flags) > 0).nonzero().flatten().tolist()

    def check_averages(self, *_: object) -> None:
        """Refuse a last pass of a step whose gradients would stay local. Raises: InputError."""
        is_local = self._ddp is not None and not self._ddp.require_backward_grad_sync
        if self._averages and is_local and torch.is_grad_enabled():
            raise InputError(
                "model.no_sync() around a pass of the session",
                allowed="session.backward(loss) alone, which averages gradients once a step",
            )

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch's passes: the gradients stay local unless it is the ``last`` of its step."""
        if self._fsdp is not None:
            self._fsdp.set_requires_gradient_sync(last)  # type: ignore[operator]
        return _ALONE if self._ddp is None else self._averaging(self._ddp, last=last)

    @contextmanager
    def _averaging(self, ddp: DistributedDataParallel, *, last: bool) -> Iterator[None]:
        self._averages = ddp.require_backward_grad_sync = last
        check = ddp.register_forward_pre_hook(self.check_averages)
        try:
            yield
        finally:
            check.remove()
            self.passed()

    def passed(self) -> None:
        """Take in that no micro-batch is under way any more."""
        self._averages = False
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = not self._is_open
