"""A pipeline's modules with perturbed activities: blocks below, and the exact gradient of the last module.

In the first pass the output z (n, ...) of each block gets m tangents u_j + dz_j, j = 1..m, with u_j (n, ...) a random
direction of each example and dz_j the tangents that arrive from the blocks before it. The last module holds the loss,
so it has its exact gradient: it runs backpropagation of its own, which also gives dL/dx at its input x, and with it

    s_ij = n dL/dx_i . dx_ij

for each example i. In the second pass u_j is drawn again from the same seed, and a block's own gradient takes the
cotangent

    v_i = sum_j s_ij u_ij / (n m),    dL/dW = sum_i (dz_i/dW)^T v_i

to its parameters. Directions of different blocks are independent, so E[v_i] = dL/dz_i and the estimate is unbiased; its
variance grows with the number of perturbed units and falls with m. Units that a rectifier has closed have no gradient,
and are not perturbed.

Source: Ren et al. 2023, arXiv 2210.03310 (perturbed activities); Zhao et al., AsyncFGD, NeurIPS 2023 (pipeline).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils._pytree import tree_map

from wattune.algorithms.counting.aten import device_of, samples_of
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.gradients import add_gradients
from wattune.algorithms.forward.linear_tangents import LinearTangents
from wattune.algorithms.forward.masks import Masks, RandomKey
from wattune.errors import InputError, WorkloadError

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers that belong to the block before them."""

PASSING = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
"""Layers whose output is 0 without a gradient if their input is: a closed rectifier's."""


def blocks_of(layers: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """Group a model's parts: each with trained or frozen parameters, and the normalisation and the parts without
    parameters that follow it. Those before the first such part belong to it."""
    groups: list[list[nn.Module]] = []
    for layer in layers:
        begins = _has_parameters(layer) and not isinstance(layer, NORMS)
        if not groups or (begins and any(_has_parameters(own) for own in groups[-1])):
            groups.append([])
        groups[-1].append(layer)
    return groups


def _has_parameters(layer: nn.Module) -> bool:
    return any(True for _ in layer.parameters())


class _Block(nn.Sequential):
    """Layers that run between two perturbations."""

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__(*layers)
        self.draws: bool | None = None
        self.linear = LinearTangents(self)
        last = next((layer for layer in reversed(layers) if not isinstance(layer, PASSING)), None)
        self.is_rectified = isinstance(last, nn.ReLU)
        self._overwrites = any(getattr(m, "inplace", False) for m in self.modules())

    def own(self, x: Any) -> Any:
        """The input, or a copy if the block works in place."""
        return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x) if self._overwrites else x

    @contextmanager
    def masks(self, key: RandomKey, index: int, x: Any) -> Iterator[None]:
        """Context of a pass in which dropout draws the same numbers each time."""
        if self.draws is False:
            yield
            return
        with Masks(key._replace(direction=index).on(device_of(x), 1)) as masks:
            yield
        if self[0].training:
            self.draws = self.draws or masks.are_drawn

    def buffer_copies(self) -> dict[str, Tensor]:
        """Buffers for a pass that must not change those of the block."""
        return {name: buffer.clone() for name, buffer in self.named_buffers()}

    def noise(self, output: Tensor, generator: torch.Generator | None) -> Tensor:
        """A direction of the output (n, ...)."""
        u = torch.empty_like(output).normal_(generator=generator)
        return u.mul_(output != 0) if self.is_rectified else u


class PerturbedBlocks:
    """A module below the last: a sequence of parts whose blocks learn from ``directions`` derivatives per example.

    The buffers are updated once per batch, by ``dual``. Raises: InputError if examples interact (batch normalisation)
    behind a perturbed block.
    """

    perturb = "activities"
    keeps_input = True

    def __init__(self, module: nn.Module, alpha: Alpha, directions: int = 1):
        self.module, self.alpha, self.directions = module, alpha, directions
        layers = list(module) if isinstance(module, nn.Sequential) else [module]
        self._blocks = [_Block(group) for group in blocks_of(layers)]

    def dual(self, x: Any, tangents: Tensor | None, key: RandomKey) -> tuple[Tensor, Tensor | None]:
        """The output (n, ...) and its tangents (m, n, ...), if any; call it inside ``forward_ad.level``."""
        generators = self._generators(key, x)
        for index, block in enumerate(self._blocks):
            x, tangents = self._through(block, x, tangents, key, index)
            if self.alpha.learns(block.parameters(), key.step):
                u = torch.stack([block.noise(x, generator) for generator in generators])
                tangents = u if tangents is None else u.add_(tangents)
        return x, tangents

    def add_gradient(self, x: Any, derivatives: Tensor, key: RandomKey) -> None:
        """Add the estimate from the derivatives (m, n), by a second pass from the input and parameters of ``dual``."""
        generators, share = self._generators(key, x), 1 / (samples_of(x) * self.directions)
        for index, block in enumerate(self._blocks):
            parameters = [p for p in block.parameters() if self.alpha.rate(p, key.step)]
            with block.masks(key, index, x), torch.set_grad_enabled(bool(parameters)):
                output = functional_call(block, block.buffer_copies(), (block.own(x),))
            x = output.detach()
            if not parameters:
                continue
            v = torch.zeros_like(x)
            for s, generator in zip(derivatives * share, generators, strict=True):
                v += block.noise(x, generator).mul_(s.view(-1, *[1] * (x.dim() - 1)))  # s (n,)
            if output.requires_grad:
                add_gradients(parameters, torch.autograd.grad(output, parameters, v, allow_unused=True))

    def _through(
        self, block: _Block, x: Any, tangents: Tensor | None, key: RandomKey, index: int
    ) -> tuple[Tensor, Tensor | None]:
        def run(dual_x: Any) -> Tensor:
            with block.linear.active({}):
                output = block(dual_x)
            if not isinstance(output, Tensor):
                raise WorkloadError(
                    "the output of a module in training", value=type(output).__name__, allowed="one tensor"
                )
            return output

        if tangents is None:
            with block.masks(key, index, x):
                return run(block.own(x)), None
        if any(isinstance(m, _BatchNorm) and (m.training or m.running_mean is None) for m in block.modules()):
            raise InputError(
                "perturbed activities before a layer in which examples interact",
                value="batch normalisation",
                allowed="layers that treat each example independently",
                hint="use perturb=weights, or freeze every layer before it",
            )
        with block.masks(key, index, x):
            if self.directions > 1:
                return forward_ad.along(run, block.own(x), tangents)
            output, tangent = forward_ad.unpacked(run(forward_ad.dual(block.own(x), tangents[0])))
        return output, None if tangent is None else tangent[None]

    def _generators(self, key: RandomKey, x: Any) -> list[torch.Generator | None]:
        return [key._replace(direction=j).on(device_of(x)) for j in range(self.directions)]


class ExactEnd:
    """The last module, with its exact gradient, and the derivatives of the loss along the tangents at its input."""

    perturb = "activities"
    keeps_input = False

    def __init__(self, module: nn.Module, alpha: Alpha, directions: int = 1):
        self.module, self.alpha, self.directions = module, alpha, directions
        self._block = _Block(list(module) if isinstance(module, nn.Sequential) else [module])
        self._gradients: Sequence[Tensor | None] = ()

    def dual(self, x: Any, tangents: Tensor | None, key: RandomKey) -> tuple[Tensor, None]:
        """The output of a plain forward pass."""
        with self._block.masks(key, 0, x):
            return self._block(self._block.own(x)), None

    def loss_along(
        self, x: Any, tangents: Tensor | None, loss_of: Callable[[Tensor], Tensor], key: RandomKey
    ) -> tuple[Tensor, Tensor]:
        """The mean loss, and the derivatives (m, n) along the tangents (m, n, ...) of the input (n, ...)."""
        parameters = self._learning(key)
        leaf = x.detach().requires_grad_() if tangents is not None else x
        with self._block.masks(key, 0, x), torch.enable_grad():
            loss = loss_of(self._block(self._block.own(leaf)))
        inputs = parameters if tangents is None else [*parameters, leaf]
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True) if loss.requires_grad else ()
        self._gradients = gradients[: len(parameters)]
        derivatives = loss.new_zeros((self.directions, samples_of(x)))
        if tangents is not None and gradients and gradients[-1] is not None:
            derivatives = samples_of(x) * (gradients[-1] * tangents).flatten(2).sum(2)
        return loss.detach(), derivatives

    def add_gradient(self, x: Any, derivatives: Tensor, key: RandomKey) -> None:
        """Add the gradient of the last pass."""
        add_gradients(self._learning(key), self._gradients)
        self._gradients = ()

    def _learning(self, key: RandomKey) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if self.alpha.rate(p, key.step)]
