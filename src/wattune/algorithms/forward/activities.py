"""Layers with perturbed outputs: one pass with a direction per example, and one for the layers' own gradients.

In the first pass a layer's output z (n, ...) gets the tangent u + dz, with u (n, ...) its own random direction, and
dz the tangent that arrives from the layers before it. The loss at the end gives s (n,), one derivative per example.
In the second pass u is drawn again from the same generator, and the layer's own gradient takes the cotangent

    v_i = (share / n) s_i u_i,    dL/dW = sum_i (dz_i/dW)^T v_i

to its parameters; see ``perturbed`` for why its expectation is the gradient. An output without a dimension of examples
(shared by all of them) has one direction u and v = share mean(s) u, since dL = mean(s) along it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from wattune.algorithms.counting.aten import device_of, samples_of, tensors
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.gradients import add_gradients
from wattune.algorithms.forward.linear_tangents import after, before
from wattune.algorithms.forward.masks import Masks, RandomKey
from wattune.errors import InputError, WorkloadError


class Activities:
    """The layers of a module: the outermost modules inside it that have trained parameters of their own.

    Each call of a layer has its own direction, drawn in the order of the calls. An output whose first dimension is not
    the examples (the embedding of positions) has one direction for all of them.
    """

    def __init__(self, module: nn.Module, alpha: Alpha):
        self.module, self.alpha = module, alpha
        self.layers = list(_layers("", module))
        if len(self.layers) == 1 and self.layers[0][1] is module and _inner(module):
            raise WorkloadError(
                "perturbed activities of a module with parameters of its own besides those of its layers",
                value=next(name for name, p in module.named_parameters(recurse=False) if p.requires_grad),
                hint="move the parameter into a layer, or use perturb=weights",
            )
        self._separate: list[bool] | None = None

    @contextmanager
    def perturbed(self, x: Any, key: RandomKey, part: int) -> Iterator[None]:
        """Add a tangent along ``key``'s direction to every layer's output, for the duration of the context."""
        generator = key.on(device_of(x), 2 * part)
        self._per_example(x)

        def move(layer: nn.Module, _: Any, output: Any) -> Any:
            learns = self.alpha.learns(layer.parameters(), key.step)

            def perturb(value: Any) -> Any:
                if not isinstance(value, Tensor) or not value.is_floating_point() or not learns:
                    return value
                primal, tangent = forward_ad.unpacked(value)  # z and dz, both (n, ...)
                u = _noise(primal, generator)
                return forward_ad.dual(primal, u if tangent is None else u.add_(tangent))

            return tree_map(perturb, output)

        with ExitStack() as stack:
            for _, layer in self.layers:
                stack.enter_context(after(layer, move))
            for name, norm in self.module.named_modules():
                if isinstance(norm, _BatchNorm) and (norm.training or norm.running_mean is None):
                    stack.enter_context(before(norm, functools.partial(_refuse, name)))
            yield

    @contextmanager
    def learning(self, x: Any, derivative: Tensor, key: RandomKey, share: float, part: int) -> Iterator[None]:
        """Add each layer's own gradient during a plain forward pass under ``no_grad``; ``derivative`` is s (n,)."""
        generator = key.on(device_of(x), 2 * part)
        n, per_example = samples_of(x), iter(self._per_example(x))

        def begin(layer: nn.Module, _: Any) -> None:
            torch.set_grad_enabled(self.alpha.learns(layer.parameters(), key.step))

        def end(layer: nn.Module, _: Any, output: Any) -> Any:
            torch.set_grad_enabled(False)
            learns = self.alpha.learns(layer.parameters(), key.step)
            values, cotangents = [], []
            for value in tensors(output):
                if not value.is_floating_point():
                    continue
                has_examples = next(per_example)
                if not learns:
                    continue
                u = _noise(value.detach(), generator)
                if has_examples:  # u (n, ...) times s (n,) -> (n, 1...)
                    u.mul_((derivative * (share / n)).view(-1, *[1] * (u.dim() - 1)))
                else:  # one u for all examples
                    u.mul_(derivative.mean() * share)
                if value.requires_grad:
                    values.append(value)
                    cotangents.append(u)
            if values:
                self._add(layer, key.step, values, cotangents)
            return tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, output)

        with ExitStack() as stack:
            for _, layer in self.layers:
                stack.enter_context(before(layer, begin))
                stack.enter_context(after(layer, end))
            yield

    def _add(self, layer: nn.Module, step: int, values: list[Tensor], cotangents: list[Tensor]) -> None:
        parameters = [p for p in layer.parameters() if self.alpha.rate(p, step)]
        add_gradients(parameters, torch.autograd.grad(values, parameters, cotangents, allow_unused=True))

    def _per_example(self, x: Any) -> list[bool]:
        """True for each output whose first dimension is the examples: it grows with their number."""
        if self._separate is None:
            sizes: list[list[int]] = [[], []]
            for few, lengths in zip((2, 3), sizes, strict=True):
                with ExitStack() as stack:
                    for _, layer in self.layers:
                        stack.enter_context(after(layer, functools.partial(_append_lengths, lengths)))
                    stack.enter_context(_disable_current_modes())  # not part of a step, so not counted
                    stack.enter_context(Masks(RandomKey(0, few).on(device_of(x))))
                    stack.enter_context(torch.no_grad())
                    buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
                    functional_call(self.module, buffers, (_repeated(x, few),))
            self._separate = [a == 2 and b == 3 for a, b in zip(*sizes, strict=True)]
        return self._separate


def _repeated(x: Any, count: int) -> Any:
    # The first sample, ``count`` times.
    return tree_map(lambda v: v[:1].expand(count, *v.shape[1:]).clone() if isinstance(v, Tensor) else v, x)


def _append_lengths(lengths: list[int], _: nn.Module, __: Any, output: Any) -> None:
    lengths += [t.shape[0] if t.dim() else 0 for t in tensors(output) if t.is_floating_point()]


def _layers(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if any(p.requires_grad for p in module.parameters(recurse=False)):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _layers(f"{name}.{child_name}" if name else child_name, child)


def _inner(module: nn.Module) -> bool:
    return any(p.requires_grad for child in module.children() for p in child.parameters())


def _noise(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.empty_like(like).normal_(generator=generator)


def _refuse(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
    if any(forward_ad.unpacked(value)[1] is not None for value in tensors(inputs)):
        raise InputError(
            "perturbed activities before a layer in which examples interact",
            value=f"{name} (batch normalisation)",
            allowed="layers that treat each example independently",
            hint="use perturb=weights, or freeze every layer before it",
        )
