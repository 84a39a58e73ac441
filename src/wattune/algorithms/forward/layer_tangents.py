"""Tangents of common layers by our own rules: fewer products and less memory than PyTorch's forward mode.

With * for the product with the weight (the matrix product, or the convolution) a linear layer or convolution has

    z = x * W + b,    dz = x * dW + dx * W + db

- linear: x (B, ..., I), W (O, I), b (O,), z (B, ..., O); x * W is x W^T
- convolution: x (B, I, size...), W (O, I / groups, kernel...), b (O,), z (B, O, size...); x * W convolves

and dx, dW, db, dz have the shapes of x, W, b, z. If only one of dx and dW is present, PyTorch multiplies the other as a
tensor of zeros: three products instead of two, for each frozen layer and for the first one that learns.

Source: pytorch aten/src/ATen/ZeroTensorFallback.cpp (zeros are made for every operation without a rule of its own).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms.forward import forward_ad

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d


def _is_linear(layer: nn.Module) -> bool:
    return type(layer) in (nn.Linear, *_CONVOLUTIONS) and "forward" not in vars(layer)


def has_rule(layer: nn.Module) -> bool:
    """Return whether ``along`` knows the layer."""
    return _is_linear(layer) or type(layer) in (nn.GroupNorm, nn.LayerNorm)


def along(layer: Any, x: Tensor, tangents: list[Tensor]) -> Tensor:
    """The layer's output; ``tangents`` of the input, of its shape, are replaced by those of the output."""
    if _is_linear(layer):
        for j, dx in enumerate(tangents):
            tangents[j] = _product_of(layer)(dx, layer.weight, None)
    else:
        _normalise(layer, x, tangents)
    output: Tensor = layer(x)
    return output


def _product_of(layer: Any) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    return layer._conv_forward if isinstance(layer, _CONVOLUTIONS) else F.linear


def _normalise(layer: Any, x: Tensor, tangents: list[Tensor]) -> None:
    """z = y w + b with y = (x - mean x) / s of each group of numbers, so dz = (dx - mean dx - y mean(y dx)) w / s."""
    if isinstance(layer, nn.GroupNorm):
        groups = x.reshape(len(x), layer.num_groups, -1)
        weight = None if layer.weight is None else layer.weight.view(-1, *[1] * (x.dim() - 2))  # (C, 1...)
    else:
        groups, weight = x.flatten(x.dim() - len(layer.normalized_shape)), layer.weight
    variance, mean = torch.var_mean(groups, -1, correction=0, keepdim=True)
    scale = (variance + layer.eps).rsqrt()
    y = (groups - mean).mul_(scale)
    for j, tangent in enumerate(tangents):
        dx = tangent.reshape(groups.shape)
        along_y = (y * dx).mean(-1, keepdim=True)
        dz = (dx - dx.mean(-1, keepdim=True)).addcmul_(y, along_y, value=-1).mul_(scale).view(x.shape)
        tangents[j] = dz if weight is None else dz.mul_(weight)


@contextmanager
def linear_rules(module: nn.Module) -> Iterator[None]:
    """Apply the rule of linear layers to those inside the module, for dual inputs and dual parameters."""
    layers = [layer for layer in module.modules() if _is_linear(layer)]
    for layer in layers:
        # Into the instance's dictionary: a module's __setattr__ searches parameters and layers first, every step.
        vars(layer)["forward"] = functools.partial(_dual_product, layer)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _dual_product(layer: Any, input: Tensor) -> Tensor:
    product = _product_of(layer)
    weight, dw = forward_ad.unpacked(layer.weight)
    bias, db = (None, None) if layer.bias is None else forward_ad.unpacked(layer.bias)
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
