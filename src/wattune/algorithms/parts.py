"""A model as a sequence of parts, each taking what the one before it gives: what a pipeline is cut from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from wattune.errors import WorkloadError


@runtime_checkable
class Cuttable(Protocol):
    """A model that says itself what it is a sequence of."""

    def parts(self) -> Sequence[nn.Module]:
        """Modules with the model's own layers; one after the other they are its forward pass."""


def parts(model: nn.Module) -> list[nn.Module]:
    """The parts of a model: those that it names itself, or the layers of an ``nn.Sequential``, nested ones taken apart.

    Raises: WorkloadError for a model that is no sequence, and one of whose parts share a parameter: a part of a
    pipeline has its own parameters.
    """
    found = _taken_apart(model)
    if len(found) == 1 and found[0] is model:
        raise WorkloadError(
            "a model that cannot be cut into parts",
            value=type(model).__name__,
            allowed="an nn.Sequential, or a model with a method parts() that lists modules to be run one after another",
        )
    owner: dict[int, int] = {}
    for place, part in enumerate(found):
        for name, parameter in part.named_parameters():
            if owner.setdefault(id(parameter), place) != place:
                raise WorkloadError("a parameter of two parts of the model", value=f"{name} of part {place + 1}")
    return found


def _taken_apart(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, Cuttable):
        return [inner for part in model.parts() for inner in _taken_apart(part)]
    if isinstance(model, nn.Sequential) and len(model):
        return [inner for part in model for inner in _taken_apart(part)]
    return [model]
