"""Requirements of forward gradients, checked before training begins."""

from __future__ import annotations

import re

import torch
from torch import nn

from wattune.algorithms.base import Trainable
from wattune.algorithms.counting.staged_copy import Place, StagedCopy
from wattune.algorithms.counting.step_counting import SMALL_BATCHES, TrainingPass
from wattune.algorithms.precision import LOW_PRECISION, check_data_type
from wattune.errors import InputError, WorkloadError

_NOT_IMPLEMENTED = re.compile(r"Trying to use forward AD with (\S+) that does not support it")
"""Source: pytorch tools/autograd/gen_variable_type.py (the text of the NotImplementedError)."""


def check_forward_data_type(name: str) -> None:
    """Check that forward gradients support the data type. Raises: InputError."""
    check_data_type(name)
    if name in LOW_PRECISION:
        raise InputError(
            "data type of forward gradients", value=name, allowed="fp32, tf32", hint="backprop trains in fp16 and bf16"
        )


def check_supported(
    trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer, training_pass: TrainingPass
) -> None:
    """Run the pass once on a copy of the model without values, or with them if it needs them.

    Raises: WorkloadError, with its name, for an operation without a forward derivative, or one that is random but not
    dropout; InputError from the pass itself.
    """
    places: tuple[Place, ...] = "meta", "cpu"
    for place in places:
        try:
            stage = StagedCopy(place, trainable, module, optimizer)
            with stage.running():
                batch = stage.batch(trainable, SMALL_BATCHES[0])
                stage.set_gradients(False)
                with stage.forward(train=True):
                    training_pass(stage.module, trainable, batch, lambda _: None)
            return
        except InputError:
            raise
        except Exception as error:  # a model that fails without values may still run with them
            if match := _NOT_IMPLEMENTED.search(str(error)):
                raise WorkloadError(
                    "an operation of the model or its loss without a forward derivative",
                    value=match[1],
                    hint="train with backprop, or with perturb=differences",
                ) from error
            if place == "cpu":
                raise WorkloadError(
                    "a training step of the model fails", value=f"{type(error).__name__}: {error}"
                ) from error
