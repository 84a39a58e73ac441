"""Tangents of linear layers and convolutions by our own rules: fewer products and less memory than PyTorch's.

A layer is linear in its input and in its parameters, so with * for the product with the weight,

    z = x * W + b,    dz = x * dW + dx * W + db

- linear: x (B, ..., I), W (O, I), b (O,), z (B, ..., O); x * W is x W^T
- convolution: x (B, I, size...), W (O, I / groups, kernel...), b (O,), z (B, O, size...); x * W convolves

and dx, dW, db, dz have the shapes of x, W, b, z. The primal pass takes one product, the tangent one for each of dx and
dW that is present. If only one of them is, PyTorch's forward mode multiplies the other as a tensor of zeros: three
products or convolutions instead of two. Here, too, dx * W is added to x * dW + db in place. If only one layer uses its
parameters, it gets dW and db directly, without dual tensors.

Source: pytorch aten/src/ATen/ZeroTensorFallback.cpp (zeros are made for every operation without a rule of its own).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms.forward import forward_ad

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d


class LinearTangents:
    """The linear layers and convolutions of a module; other layers are unaffected.

    ``exclusive``: ids of the parameters that only one such layer uses: it is the module itself, or part of a plain
    ``nn.Sequential``. (A model with its own forward pass may use a layer's weight outside the layer.)
    """

    def __init__(self, module: nn.Module):
        layers = [m for m in module.modules() if type(m) in (nn.Linear, *_CONVOLUTIONS) and "forward" not in vars(m)]
        owners = {layer for layer in _in_sequence(module) if layer in layers}
        others = {id(p) for m in module.modules() if m not in owners for p in m.parameters(recurse=False)}
        owners = {layer for layer in owners if not any(id(p) in others for p in layer.parameters())}
        self.exclusive = frozenset(id(p) for layer in owners for p in layer.parameters())
        self._layers = [(layer, layer in owners) for layer in layers]

    @contextmanager
    def active(self, tangents: Mapping[int, Tensor]) -> Iterator[None]:
        """Apply this module's rules to the layers; ``tangents``: id of an ``exclusive`` parameter -> its tangent."""
        for layer, is_owner in self._layers:
            forward: Callable[[Tensor], Tensor]
            if is_owner:
                dw, db = tangents.get(id(layer.weight)), tangents.get(id(layer.bias))
                forward = functools.partial(_forward_along, layer, dw, db)
            else:
                forward = functools.partial(_forward, layer)
            # Into the instance's dictionary: a module's __setattr__ searches parameters and layers first, every step.
            vars(layer)["forward"] = forward
        try:
            yield
        finally:
            for layer, _ in self._layers:
                del vars(layer)["forward"]


def _in_sequence(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for inner in module:
            yield from _in_sequence(inner)
    else:
        yield module


def _forward(layer: Any, input: Tensor) -> Tensor:
    weight, dw = forward_ad.unpacked(layer.weight)
    bias, db = (None, None) if layer.bias is None else forward_ad.unpacked(layer.bias)
    return _dual_product(layer, input, weight, bias, dw, db)


def _forward_along(layer: Any, dw: Tensor | None, db: Tensor | None, input: Tensor) -> Tensor:
    return _dual_product(layer, input, layer.weight, layer.bias, dw, db)


def _dual_product(
    layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, dw: Tensor | None, db: Tensor | None
) -> Tensor:
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    product = layer._conv_forward if isinstance(layer, _CONVOLUTIONS) else F.linear
    x, dx = forward_ad.unpacked(input)
    z = product(x, weight, bias)  # (B, ..., O), or (B, O, size...)
    dz = None if dw is None else product(x, dw, db)  # x * dW + db
    if dw is None and db is not None:
        sizes = z.dim() - 2 if isinstance(layer, _CONVOLUTIONS) else 0
        dz = db.view(-1, *[1] * sizes).expand_as(z).clone()  # (O,) -> (O, 1...) -> the shape of z
    if dx is not None:
        along_x = product(dx, weight, None)  # dx * W
        dz = along_x if dz is None else dz.add_(along_x)
    return forward_ad.dual(z, dz)


@contextmanager
def after(layer: nn.Module, hook: Callable[[nn.Module, Any, Any], Any]) -> Iterator[None]:
    """Register a hook that sees (and may replace) the layer's output, for the duration of the context."""
    handle = layer.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def before(layer: nn.Module, hook: Callable[[nn.Module, Any], Any]) -> Iterator[None]:
    """Register a hook that sees (and may replace) the layer's input, for the duration of the context."""
    handle = layer.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
