"""A model as a sequence of parts, each taking the output of the one before: the units of a pipeline's modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from wattune.errors import WorkloadError


@runtime_checkable
class HasParts(Protocol):
    """A model that defines its own sequence of parts."""

    def parts(self) -> Sequence[nn.Module]:
        """Modules with the model's own layers; run one after the other they are its forward pass."""


def parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model: those that it defines itself, or the layers of an ``nn.Sequential``, flattened.

    Raises: WorkloadError if the model is not a sequence, or if two of its parts share a parameter: every part of a
    pipeline has its own parameters.
    """
    sequence = _flatten(model)
    if len(sequence) == 1 and sequence[0] is model:
        raise WorkloadError(
            "a model that cannot be cut into parts",
            value=type(model).__name__,
            allowed="an nn.Sequential, or a model with a method parts() that lists modules to be run one after another",
        )
    owner: dict[int, int] = {}
    for place, part in enumerate(sequence):
        for name, parameter in part.named_parameters():
            if owner.setdefault(id(parameter), place) != place:
                raise WorkloadError("a parameter shared by two parts of the model", value=f"{name} of part {place + 1}")
    return sequence


def _flatten(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, HasParts):
        return [inner for part in model.parts() for inner in _flatten(part)]
    if isinstance(model, nn.Sequential) and len(model):
        return [inner for part in model for inner in _flatten(part)]
    return [model]
