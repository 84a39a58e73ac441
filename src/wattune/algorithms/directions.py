"""One random direction of all perturbed parameters of a module, drawn as one vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Moving(NamedTuple):
    """A perturbed parameter with its name, and the scale of its direction."""

    name: str
    parameter: nn.Parameter
    scale: float


class Direction:
    """Normal numbers for each of these parameters (which are on one device), times its scale.

    They are one vector, drawn and multiplied at once: a small operation for each parameter would take longer to launch
    than to run, and threads that run side by side would wait for each other at each of them.
    """

    def __init__(self, moving: Sequence[Moving], generator: torch.Generator | None):
        self._moving = moving
        parameters = [p.detach() for _, p, _ in moving]
        first = parameters[0]
        count = sum(p.numel() for p in parameters)
        self._flat = torch.empty(count, dtype=first.dtype, device=first.device).normal_(generator=generator)
        self._tangents: Sequence[Tensor] = torch._utils._unflatten_dense_tensors(self._flat, parameters)  # type: ignore[no-untyped-call]
        for (_, _, scale), tangent in zip(moving, self._tangents, strict=True):
            if scale != 1:
                tangent.mul_(scale)

    def multiply(self, factor: Tensor | float) -> None:
        """All of it, in place."""
        self._flat.mul_(factor)

    def __iter__(self) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
        """Each parameter with its name and what it moves along."""
        for (name, parameter, _), tangent in zip(self._moving, self._tangents, strict=True):
            yield name, parameter, tangent if tangent.dtype == parameter.dtype else tangent.to(parameter.dtype)
