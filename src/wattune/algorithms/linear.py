"""Linear layers and convolutions take their tangents by rules of their own: fewer products and less memory.

z = W x + b has the tangent W dx + dW x + db. Where only one of dx and dW is there, PyTorch's forward mode multiplies
the other as a tensor of zeros: three products or convolutions instead of two. And here the second product is added to
the first in place.

Source: pytorch aten/src/ATen/ZeroTensorFallback.cpp (zeros are made for every operation without a rule of its own).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms import forward_ad

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d


@contextmanager
def linear_tangents(module: nn.Module) -> Iterator[None]:
    """Inside, the linear layers and convolutions of ``module`` take their tangents so; others are as they are."""
    layers = [m for m in module.modules() if type(m) in (nn.Linear, *_CONVOLUTIONS) and "forward" not in vars(m)]
    for layer in layers:
        layer.forward = functools.partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: Any, input: Tensor) -> Tensor:
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    product = layer._conv_forward if isinstance(layer, _CONVOLUTIONS) else F.linear
    x, dx = forward_ad.unpacked(input)
    weight, dw = forward_ad.unpacked(layer.weight)
    bias, db = (None, None) if layer.bias is None else forward_ad.unpacked(layer.bias)
    z = product(x, weight, bias)
    tangent = None if dw is None else product(x, dw, db)
    if dw is None and db is not None:
        places = z.dim() - 2 if isinstance(layer, _CONVOLUTIONS) else 0
        tangent = db.view(-1, *[1] * places).expand_as(z).clone()
    if dx is not None:
        moved = product(dx, weight, None)
        tangent = moved if tangent is None else tangent.add_(moved)
    return forward_ad.dual(z, tangent)


@contextmanager
def after(layer: nn.Module, hook: Callable[[nn.Module, Any, Any], Any]) -> Iterator[None]:
    """Inside, the hook sees (and may replace) what the layer gives."""
    handle = layer.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def before(layer: nn.Module, hook: Callable[[nn.Module, Any], Any]) -> Iterator[None]:
    """Inside, the hook sees (and may replace) what the layer is given."""
    handle = layer.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
