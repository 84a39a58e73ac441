"""Perturbed activities: blocks that learn from random directions, and the exact gradient of the last module.

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

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from wattune.algorithms.base import no_gradient
from wattune.algorithms.counting.aten import device_of, samples_of
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.masks import RandomKey, copied_buffers, own
from wattune.algorithms.forward.perturbed import LossOf, Stage, add_gradients, one_tensor
from wattune.algorithms.random_state import random_state, set_random_state
from wattune.errors import InputError

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers that belong to the block before them."""

LINEAR = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d
"""Layers that are linear but for their bias."""

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


def along(layer: nn.Module, x: Any, tangents: list[Tensor], *, draws: bool = False) -> Any:
    """The layer's output; ``tangents`` of the input, each of its shape, are replaced by those of the output.

    A linear layer takes one product for each, where PyTorch's forward mode takes three.
    """
    if type(layer) in LINEAR:
        without_bias = {name: torch.zeros_like(p) for name, p in layer.named_parameters() if name == "bias"}
        for j, tangent in enumerate(tangents):
            tangents[j] = functional_call(layer, without_bias, (tangent,))
        return layer(x)
    masks_from = random_state(device_of(x)) if draws else None
    for j, tangent in enumerate(tangents):
        if j and masks_from is not None:
            set_random_state(masks_from, device_of(x))  # the same masks for each direction
        dual_x = forward_ad.dual(own(layer, x), tangent)
        output = functional_call(layer, copied_buffers(layer), (dual_x,)) if j else layer(dual_x)
        output, moved = forward_ad.unpacked(one_tensor(output))
        if moved is None:  # as of an engine outside PyTorch: the blocks below it would learn from noise alone
            raise forward_ad.no_derivative(type(layer).__name__)
        tangents[j] = moved
    return output


class PerturbedBlock(Stage):
    """Layers below the last module, the outputs of which are perturbed along ``directions`` directions per example.

    Raises: InputError if examples interact (batch normalisation) behind a perturbed block.
    """

    def __init__(self, layers: Sequence[nn.Module], alpha: Alpha, directions: int = 1, index: int = 0, lag: int = 0):
        super().__init__(nn.Sequential(*layers), alpha, index, lag)
        self._layers, self.directions = layers, directions
        last = next((layer for layer in reversed(layers) if not isinstance(layer, PASSING)), None)
        self._is_rectified = isinstance(last, nn.ReLU)

    def dual(self, x: Any, tangents: list[Tensor] | None, key: RandomKey) -> tuple[Tensor, list[Tensor] | None]:
        """The output (n, ...) and its tangents, m of the same shape, if any.

        Layer by layer, and one direction after the other: two tangents more than their number are alive at most. The
        list of tangents at the input is taken over, so that each is freed as soon as it is not needed.
        """
        arrived = tangents or []
        if arrived:
            self._check_examples_are_separate()
            with self.masks(x, key) as draws:
                for layer in self._layers:
                    x = along(layer, x, arrived, draws=draws)
        else:
            x = self.output(x, key)
        if not self.alpha.learning(self.trained, key.step):
            return one_tensor(x), tangents
        drawn = self._directions(one_tensor(x), key)
        if not arrived:
            return x, list(drawn)
        for j, u in enumerate(drawn):
            arrived[j] = u.add_(arrived[j])
        return x, arrived

    def add_gradient(self, x: Any, derivatives: Tensor, key: RandomKey, share: float = 1.0) -> Any:
        """Add ``share`` times the estimate from the derivatives (m, n), by a second pass from the input and parameters
        of ``dual``. Returns: the output."""
        parameters = self.alpha.learning(self.trained, key.step)
        with torch.set_grad_enabled(bool(parameters)):
            output = self.output(x, key, copied_buffers(self.module))
        if output.requires_grad:
            shares = derivatives * (share / (samples_of(x) * self.directions))
            drawn = zip(shares, self._directions(output.detach(), key), strict=True)
            v = reduce(Tensor.add_, (u.mul_(s.view(-1, *[1] * (u.dim() - 1))) for s, u in drawn))  # s (n,)
            add_gradients(parameters, torch.autograd.grad(output, parameters, v, allow_unused=True))
        return output.detach()

    def _directions(self, output: Tensor, key: RandomKey) -> Iterator[Tensor]:
        """Draw the directions of the output, each (n, ...)."""
        is_open = (output != 0).to(output.dtype) if self._is_rectified else None
        for j in range(self.directions):
            u = torch.empty_like(output).normal_(generator=key._replace(direction=j).generator(output.device))
            yield u if is_open is None else u.mul_(is_open)

    def _check_examples_are_separate(self) -> None:
        if any(isinstance(m, _BatchNorm) and (m.training or m.running_mean is None) for m in self.module.modules()):
            raise InputError(
                "perturbed activities before a layer in which examples interact",
                value="batch normalisation",
                allowed="layers that treat each example independently",
                hint="use perturb=weights, or freeze every layer before it",
            )


class ExactEnd(Stage):
    """The last module, with its exact gradient, and the derivatives of the loss along the tangents at its input.

    With a ``distance`` it gets the values of both sides of a central difference, and learns half-way between them.
    """

    def __init__(self, module: nn.Module, alpha: Alpha, index: int, distance: float | None = None):
        super().__init__(module, alpha, index)
        self.distance = distance
        self._gradients: Sequence[Tensor | None] = ()

    def loss_along(self, x: Any, tangents: Any, loss_of: LossOf, key: RandomKey) -> tuple[Tensor, Tensor]:
        """The mean loss, and the derivatives (m, n) along the m tangents of the input, all (n, ...); a scalar between
        two sides."""
        if self.distance is not None and tangents is not None:
            x, tangents = (x + tangents) / 2, [(x - tangents) / (2 * self.distance)]
        parameters = self.alpha.learning(self.trained, key.step)
        leaf = x if tangents is None else x.detach().requires_grad_()
        with self.masks(x, key), torch.enable_grad():
            loss = loss_of(one_tensor(self.module(own(self.module, leaf))))
        inputs = parameters if tangents is None else [*parameters, leaf]
        if not isinstance(loss, Tensor) or (inputs and not loss.requires_grad):
            raise no_gradient(loss)
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True) if inputs else ()
        self._gradients = gradients[: len(parameters)]
        derivatives = loss.new_zeros((0, samples_of(x)))
        if tangents is not None:
            if (slope := gradients[-1]) is None:
                raise forward_ad.no_derivative("the last module")
            derivatives = torch.stack([(slope * tangent).flatten(1).sum(1) for tangent in tangents])
        return loss.detach(), samples_of(x) * derivatives if self.distance is None else derivatives.sum()

    def add_gradient(self, x: Any, derivatives: Tensor, key: RandomKey, share: float = 1.0) -> Any:
        """Add ``share`` times the gradient of the last pass."""
        own = [g if g is None or share == 1 else g * share for g in self._gradients]
        add_gradients(self.alpha.learning(self.trained, key.step), own)
        self._gradients = ()
        return x
