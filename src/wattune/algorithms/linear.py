"""Linear layers and convolutions take their tangents by rules of their own: fewer products and less memory.

z = W x + b has the tangent W dx + dW x + db. Where only one of dx and dW is there, PyTorch's forward mode multiplies
the other as a tensor of zeros: three products or convolutions instead of two. And here the second product is added to
the first in place. A layer whose parameters nobody else uses is handed their tangents, without dual tensors between.

Source: pytorch aten/src/ATen/ZeroTensorFallback.cpp (zeros are made for every operation without a rule of its own).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms import forward_ad

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d


class LinearTangents:
    """The linear layers and convolutions of a module, listed once; others are as they are.

    ``handed`` are the ids of the parameters that no one but such a layer uses: it is the module itself, or one of a
    plain ``nn.Sequential``. (A model with a forward pass of its own may use a layer's weight beside the layer.)
    """

    def __init__(self, module: nn.Module):
        found = [m for m in module.modules() if type(m) in (nn.Linear, *_CONVOLUTIONS) and "forward" not in vars(m)]
        alone = {layer for layer in _in_sequence(module) if layer in found}
        others = {id(p) for m in module.modules() if m not in alone for p in m.parameters(recurse=False)}
        alone = {layer for layer in alone if not any(id(p) in others for p in layer.parameters())}
        self.handed = frozenset(id(p) for layer in alone for p in layer.parameters())
        self._layers = [(layer, layer in alone) for layer in found]

    @contextmanager
    def taken(self, tangents: Mapping[int, Tensor]) -> Iterator[None]:
        """Inside, these layers take their tangents by the rules of this module; ``tangents`` by id of ``handed``."""
        for layer, alone in self._layers:
            forward: Callable[[Tensor], Tensor]
            if alone:
                forward = functools.partial(_moved, layer, tangents.get(id(layer.weight)), tangents.get(id(layer.bias)))
            else:
                forward = functools.partial(_forward, layer)
            # Into its own dictionary: a module's __setattr__ looks for parameters and layers first, at every step.
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
    return _map(layer, input, weight, bias, dw, db)


def _moved(layer: Any, dw: Tensor | None, db: Tensor | None, input: Tensor) -> Tensor:
    return _map(layer, input, layer.weight, layer.bias, dw, db)


def _map(
    layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, dw: Tensor | None, db: Tensor | None
) -> Tensor:
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    product = layer._conv_forward if isinstance(layer, _CONVOLUTIONS) else F.linear
    x, dx = forward_ad.unpacked(input)
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
