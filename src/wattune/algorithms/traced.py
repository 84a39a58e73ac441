"""A function of tensors as a flat sequence of PyTorch operations, for steps that are too short for PyTorch's overhead.

Tracing takes the Python of the model, of vmap and of autograd out of a step; what is left are the kernels. The trace
holds for tensors of the same shapes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

_ATEN = torch.ops.aten

_RESHAPES = (_ATEN.alias.default, _ATEN.expand.default, _ATEN.view.default, _ATEN._unsafe_view.default)


class Untraceable(Exception):  # control flow, not an error
    """The function cannot be traced; the text says why."""


def traced(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
    """Trace ``function(*inputs)``, which returns a list of tensors.

    Raises: Untraceable if it changes one of its inputs, draws random numbers, or depends on values in its control flow.
    """
    try:
        module = make_fx(functionalize(function))(*inputs)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if "random" in text:
            raise Untraceable("the model draws random numbers, as dropout does") from error
        raise Untraceable(f"its step cannot be traced: {text}") from error
    # Changes of other tensors, as by an in-place activation, are gone from the functional form.
    if any(_changes_inputs(node) for node in module.graph.nodes):
        raise Untraceable("the model has operations that change buffers, as in batch normalisation")
    _tidy(module.graph)
    module.graph.set_codegen(fx.graph.CodeGen())  # without flattening the arguments, which are flat
    module.recompile()
    forward: Callable[..., list[Tensor]] = module.forward
    return forward


def _changes_inputs(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def _tidy(graph: fx.Graph) -> None:
    """Remove operations without effect, and those whose result is there already; no operation has side effects."""
    known: dict[tuple[Any, str, str], fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        same = _operand_if_equal(node)
        if same is None:
            same = known.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _operand_if_equal(node: fx.Node) -> fx.Node | None:
    """The tensor that an operation, for example an expansion to the same shape, returns unchanged; else None."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node):
        return None
    if node.target in _RESHAPES and node.meta["val"].shape == first.meta["val"].shape:
        return first
    if node.target is _ATEN.mul.Scalar and node.args[1] == 1:
        return first
    if node.target is _ATEN.transpose.int and first.target is node.target and set(first.args[1:]) == set(node.args[1:]):
        inner = first.args[0]
        return inner if isinstance(inner, fx.Node) else None
    return None
