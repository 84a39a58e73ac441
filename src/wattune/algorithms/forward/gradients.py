"""Estimated gradients, added where an optimizer looks for them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn


def add_gradients(parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]) -> None:
    """Add gradients to those of the parameters; None leaves a parameter's as it is."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
