"""Training of a model's last parts only: the parts before them are frozen, and none of their activations is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wattune.algorithms.base import Batch, Trainable, differentiable_loss
from wattune.algorithms.model_parts import parts
from wattune.algorithms.placement import autocast
from wattune.errors import InputError


def divided(model: nn.Module, last: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Divide the model before the last ``last`` parts that have trained parameters. Parts without parameters, such as
    activation functions, belong to the part before them.

    Raises: WorkloadError if the model has no parts, InputError if fewer have trained parameters.
    """
    layers = parts(model)
    places = [place for place, part in enumerate(layers) if any(p.requires_grad for p in part.parameters())]
    if last > len(places):
        raise InputError(
            "last of the algorithm backprop",
            value=last,
            allowed=f"1 to {len(places)}, the number of the model's parts with trained parameters",
        )
    return nn.Sequential(*layers[: places[-last]]), nn.Sequential(*layers[places[-last] :])


def last_forward(frozen: nn.Module, trained: nn.Module, x: Any) -> Tensor:
    """Run the frozen parts without a tape, and the others with one."""
    with torch.no_grad():
        x = frozen(x)
    output: Tensor = trained(x)
    return output


@dataclass(frozen=True)
class LastPartsPass:
    """The pass of backpropagation through the last parts, as a ``TrainingPass`` to be counted."""

    last: int

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Run the pass on a copy of the model, whose frozen parameters require no gradient."""
        with autocast("cpu", trainable.data_type):
            loss = differentiable_loss(trainable, last_forward(*divided(module, self.last), batch[0]), batch[1])
        phase("backward")
        loss.backward()  # type: ignore[no-untyped-call]
