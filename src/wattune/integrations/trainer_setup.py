"""Checks of a Transformers Trainer."""

from __future__ import annotations

from typing import Any

from wattune.errors import InputError

FUSED_OPTIMIZERS = ("lomo", "adalomo")
"""Optimizers that step during the backward pass, so that gradients cannot be accumulated."""


def check_trainer(trainer: Any) -> None:
    """Check that ``attach`` supports the Trainer's settings. Raises: InputError."""
    args = trainer.args
    if (sharing := _unsupported_sharing(trainer)) is not None:
        raise InputError(
            "a Trainer whose processes or GPUs share their work in another way than by DistributedDataParallel",
            value=sharing,
            allowed="one device, or one process for each under torchrun or accelerate launch",
        )
    if args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size",
            value=True,
            allowed="False",
            hint="wattune chooses the micro-batch size and keeps the recipe",
        )
    name = getattr(args.optim, "value", args.optim)
    if name in FUSED_OPTIMIZERS:
        raise InputError("an optimizer that steps during the backward pass", value=name, hint="choose another optim=")


def _unsupported_sharing(trainer: Any) -> str | None:
    mode = trainer.args.parallel_mode.value
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "DeepSpeed" if trainer.is_deepspeed_enabled else "FSDP"
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        return "tensor parallelism"
    if getattr(trainer.accelerator, "parallelism_config", None) is not None:
        return "a parallelism_config"
    return None if mode in ("not_parallel", "distributed") else "nn.DataParallel" if mode == "not_distributed" else mode
