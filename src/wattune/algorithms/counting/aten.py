"""The cost of one ATen operation: its kind, floating-point operations and bytes.

Figures are those of eager execution: each operation reads its inputs from memory and writes its outputs to it.
A multiply-add is two floating-point operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

Arguments = tuple[Any, ...]

# Operations that only allocate or describe a tensor, or return a value to Python: nothing runs on the device.
_NOT_LAUNCHED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
_NOT_LAUNCHED |= {"_local_scalar_dense", "lift_fresh", "set_", "resize_", "is_same_size"}
_NOT_LAUNCHED |= {"unsafe_split", "unsafe_split_with_sizes"}  # views, though they are not tagged as such
_NOT_LAUNCHED_NAMESPACES = {"profiler", "prim"}
_COPIES = {"copy_", "_to_copy", "clone", "cat", "stack", "repeat", "constant_pad_nd", "roll", "flip"}
_COPIES |= {"select_backward", "slice_backward", "fill", "fill_", "zero_", "zeros", "zeros_like", "new_zeros", "ones"}
_COPIES |= {"ones_like", "new_ones", "full", "full_like", "new_full", "arange", "scalar_tensor"}
# Operations that write their first argument without reading it.
_OVERWRITES = {"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_"}
# Operations that read only as much of their first tensor as they write.
_LOOKUPS = {"embedding", "gather", "index", "index_select", "_unsafe_index", "take"}
_REDUCTIONS = {"sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "var"}
_REDUCTIONS |= {"var_mean", "std", "std_mean", "norm", "linalg_vector_norm", "logsumexp", "cumsum", "topk", "sort"}
# Per element of the input: softmax takes a maximum, a difference, an exponential, a sum and a division; its
# backward pass a product, a sum, a difference and a product.
_SOFTMAX_FLOPS = {False: 5, True: 4}
# Per element of the input. Forward: mean 1, variance 3, (x - mean) / std 2, times weight plus bias 2. Backward:
# normalised input 2, gradients of weight and bias 3, (dy - mean(dy) - x mean(dy x)) / std 5.
_NORMALISATION_FLOPS = {False: 8, True: 10}


def launches(operation: OpOverload) -> bool:
    """Return whether the operation launches a kernel: views and empty tensors do not."""
    return _traits(operation)[0]


def kind(operation: OpOverload, arguments: Arguments) -> str:
    """The kind of the operation, a value of ``Operation.kind``."""
    name = _traits(operation)[1]
    if name == "convolution":
        return "depthwise" if _is_depthwise(operation, arguments) else "convolution"
    return name


def flops(operation: OpOverload, arguments: Arguments, outputs: Any) -> float:
    """Floating-point operations of one call."""
    return _traits(operation)[2](arguments, outputs)


def moved_bytes(operation: OpOverload, arguments: Arguments, outputs: Any) -> float:
    """Bytes that one call reads and writes: its inputs and outputs, each once."""
    name = operation.overloadpacket.__name__
    inputs = arguments[1:] if name in _OVERWRITES else arguments
    written_bytes = sum(_bytes(t) for t in tensors(outputs))
    if name in _LOOKUPS:
        return written_bytes + written_bytes + sum(_bytes(t) for t in tensors(inputs[1:]))
    return written_bytes + sum(_bytes(t) for t in tensors(inputs))


def tensors(values: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested lists, tuples and dictionaries; of a sparse one, those that it is stored as."""
    if isinstance(values, Tensor):
        if values.layout == torch.sparse_coo:
            yield from (values._indices(), values._values())
        else:
            yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors(value)


def samples_of(values: Any) -> int:
    """Number of samples of inputs or a batch: the first dimension of the first tensor."""
    return next(tensors(values)).shape[0]


def device_of(values: Any) -> torch.device:
    """Device of the first tensor."""
    return next(tensors(values)).device


def _bytes(tensor: Tensor) -> int:
    # An expanded tensor takes the memory of its storage, not of its shape.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


# ------------------------------------------------------------------------------------------ kinds and their formulas

Formula = Callable[[Arguments, Any], float]


@functools.cache
def _traits(operation: OpOverload) -> tuple[bool, str, Formula]:
    """Return whether the operation launches a kernel, its kind ("convolution" if depthwise too) and its FLOPs."""
    name = operation.overloadpacket.__name__
    backward = "backward" in name
    outputs_alone = operation.is_view or torch.Tag.inplace_view in operation.tags
    launched = not outputs_alone and name not in _NOT_LAUNCHED and operation.namespace not in _NOT_LAUNCHED_NAMESPACES
    if name in _MATRIX_PRODUCTS:
        return launched, "matmul", _MATRIX_PRODUCTS[name]
    if "scaled_dot_product" in name or name in ("_flash_attention_forward", "_efficient_attention_forward"):
        return launched, "matmul", _attention_backward if backward else _attention
    if "_rnn" in name:
        return launched, "matmul", _recurrent if not backward else lambda *call: 2 * _recurrent(*call)
    if "convolution" in name:
        return launched, "convolution", _convolution_backward if backward else _convolution
    if any(norm in name for norm in ("batch_norm", "layer_norm", "group_norm", "rms_norm")):
        return launched, "normalisation", _per_input(_NORMALISATION_FLOPS[backward])
    if "softmax" in name:
        return launched, "reduction", _per_input(_SOFTMAX_FLOPS[backward])
    if name in _REDUCTIONS or any(part in name for part in ("_loss", "cross_entropy", "_pool")):
        return launched, "reduction", _per_output(1) if backward else _per_input(1)
    if name in _COPIES:
        return launched, "copy", _per_output(0)
    if name in _LOOKUPS:
        return launched, "other", _per_output(0)
    if name == "embedding_dense_backward":
        return launched, "other", _per_input(1)  # each row of the gradient is added to one of the table
    if torch.Tag.pointwise in operation.tags or (name.endswith(("_", "_backward")) and "embedding" not in name):
        return launched, "elementwise", _per_output(1)
    return launched, "other", _per_output(1)


def _per_output(count: int) -> Formula:
    return lambda _, outputs: count * sum(t.numel() for t in tensors(outputs))


def _per_input(count: int) -> Formula:
    return lambda arguments, _: count * next((t.numel() for t in tensors(arguments)), 0)


def _product(first: int) -> Formula:
    """Make the formula of a matrix product of the arguments ``first`` and the next: (.., M, K) x (.., K, N)."""

    def formula(arguments: Arguments, _: Any) -> float:
        a, b = arguments[first], arguments[first + 1]
        columns = b.shape[-1] if b.dim() > 1 else 1
        return float(2 * a.numel() * columns)

    return formula


def _linear(arguments: Arguments, _: Any) -> float:
    x, weight = arguments[:2]  # (.., K), (N, K)
    return float(2 * x.numel() * weight.shape[0])


_MATRIX_PRODUCTS: dict[str, Formula] = {
    "mm": _product(0),
    "bmm": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "addmm": _product(1),
    "addmm_": _product(1),
    "baddbmm": _product(1),
    "baddbmm_": _product(1),
    "addbmm": _product(1),
    "addmv": _product(1),
    "linear": _linear,
    "mkldnn_linear": _linear,
}


def _convolved(x: Tensor, weight: Tensor, y: Tensor, transposed: bool) -> float:
    # weight is (C_out, C_in / groups, ...), or (C_in, C_out / groups, ...) if transposed. Each element of y (of x if
    # transposed) meets every weight of one filter: the shape of the weight already accounts for the groups.
    return 2 * (x if transposed else y).numel() * weight.numel() / weight.shape[0]


def _convolution(arguments: Arguments, outputs: Any) -> float:
    x, weight = arguments[:2]
    transposed = bool(arguments[6]) if len(arguments) > 6 else False
    return _convolved(x, weight, next(tensors(outputs)), transposed)


def _convolution_backward(arguments: Arguments, _: Any) -> float:
    """Count the gradients of input and of weights, each with as many multiply-adds as the forward pass.

    PyTorch's own FlopCounterMode ignores the groups in the gradient of the weights: it counts a convolution of every
    input channel with every output channel, ``groups`` times too many (512 times in a depthwise convolution of 512
    channels).
    """
    dy, x, weight = arguments[:3]
    transposed, mask = bool(arguments[7]), arguments[10]
    bias = dy.numel() if mask[2] else 0
    return (int(mask[0]) + int(mask[1])) * _convolved(x, weight, dy, transposed) + float(bias)


def _is_depthwise(operation: OpOverload, arguments: Arguments) -> bool:
    backward = "backward" in operation.overloadpacket.__name__
    x, weight = arguments[1:3] if backward else arguments[:2]
    groups = arguments[9 if backward else 8] if len(arguments) > 8 else 1
    return bool(groups > 1 and groups == x.shape[1] and weight.shape[0] % groups == 0)


def _attention_matrix(query: Tensor, key: Tensor) -> float:
    return 2 * math.prod(query.shape[:-1]) * key.shape[-2]  # to be multiplied by the width of the other factor


def _attention(arguments: Arguments, _: Any) -> float:
    query, key, value = arguments[:3]  # (.., L, E), (.., S, E), (.., S, V)
    return _attention_matrix(query, key) * float(query.shape[-1] + value.shape[-1])


def _attention_backward(arguments: Arguments, _: Any) -> float:
    # The scores are recomputed; gradients of query and key have width E, those of value and of the weights width V.
    _, query, key, value = arguments[:4]
    return _attention_matrix(query, key) * float(3 * query.shape[-1] + 2 * value.shape[-1])


def _recurrent(arguments: Arguments, _: Any) -> float:
    # A fused GRU, LSTM or RNN multiplies every weight matrix with every step of every sequence once.
    x = arguments[0]  # (T, B, I) or (B, T, I)
    weights = sum(t.numel() for t in tensors(arguments[1:5]) if t.dim() == 2)
    return float(2 * x.shape[0] * x.shape[1] * weights)
