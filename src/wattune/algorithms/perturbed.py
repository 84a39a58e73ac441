"""A module that learns from directional derivatives: one dual forward pass, and gradients without a backward pass.

Weights: all perturbed parameters move along one random direction u, and (grad L . u) u is an unbiased estimate of the
gradient. Activities: each example's layer outputs move along a direction of its own, and the estimate for the outputs,
(dL_n/dz . u_n) u_n, goes through the layer's own gradient to its parameters: unbiased as well, of a variance that
follows the number of units instead of that of weights.

Source: Baydin et al. 2022, arXiv 2202.08587 (weights); Ren et al. 2023, arXiv 2210.03310 (activities).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from wattune.algorithms import forward_ad
from wattune.algorithms.activities import Activities
from wattune.algorithms.alpha import Alpha
from wattune.algorithms.base import Trainable
from wattune.algorithms.directions import Direction, Moving
from wattune.algorithms.linear import LinearTangents
from wattune.algorithms.operations import device_of
from wattune.algorithms.randomness import Masks
from wattune.algorithms.tangents import Key
from wattune.errors import WorkloadError

Perturb = Literal["weights", "activities"]


class Perturbed:
    """A module (a whole model, or one part of a pipeline) whose parameters learn from directional derivatives.

    Perturbed are the parameters that require a gradient and whose scale ``alpha`` is not 0. The module's buffers are
    updated once for each batch, by ``dual`` with ``key.direction`` 0. Dropout draws from the key as well: the same
    masks for every direction of a step. ``part`` numbers the micro-batches of a batch: each has directions and masks
    of its own.

    ``keep``: so many directions of weights stay until the gradient is made of them, in their own memory, which saves
    drawing them again; one takes nothing more where ``add_gradient`` follows each ``dual``.

    Raises: WorkloadError for activities of a module that holds parameters both itself and in layers inside it.
    """

    def __init__(self, module: nn.Module, *, perturb: Perturb, alpha: Alpha, keep: int = 0):
        self.module, self.perturb, self.alpha = module, perturb, alpha
        self._linear = LinearTangents(module)
        self._activities = Activities(module, alpha) if perturb == "activities" else None
        self._draws: bool | None = None
        self._keep = keep
        self._kept: dict[tuple[Key, int], Direction | None] = {}
        self._named = list(module.named_parameters())
        self._overwrites = any(getattr(m, "inplace", False) for m in module.modules())

    def perturbs(self, step: int) -> bool:
        """Whether any parameter is perturbed in this step."""
        return any(self.alpha.scale(p, step) for p in self.module.parameters())

    def dual(self, x: Any, tangent: Tensor | None, key: Key, part: int = 0) -> tuple[Tensor, Tensor | None]:
        """The output and its tangent along ``tangent`` of the input and a fresh direction of ``key``.

        Inside ``forward_ad.level``; what comes back are plain tensors that outlive it. The tangent is None where there
        is nothing to carry one: then it is one plain forward pass, and a frozen beginning of the module is one as well.
        Raises: InputError for activities whose examples see each other; WorkloadError for an output that is no tensor,
        and for a random operation other than dropout.
        """
        overrides = self._buffers() if key.direction else {}
        given = self._own(x) if tangent is None else forward_ad.dual(self._own(x), tangent)
        tangents: dict[int, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(self._masks(key, x, part))
            if self._activities is not None:
                stack.enter_context(self._activities.perturbed(x, key, part))
            else:
                direction = self._direction(key, x, part)
                if self._keep:
                    self._kept[key, part] = direction
                    if len(self._kept) > self._keep:
                        del self._kept[next(iter(self._kept))]  # the oldest: nothing was learnt from that batch
                for name, p, u in direction or ():
                    if id(p) in self._linear.handed:
                        tangents[id(p)] = u
                    else:
                        overrides[name] = forward_ad.dual(p.detach(), u)
            stack.enter_context(self._linear.taken(tangents))
            output = functional_call(self.module, overrides, (given,)) if overrides else self.module(given)
        _check_tensor(output)
        return forward_ad.unpacked(output)

    def add_gradient(self, x: Any, derivative: Tensor, key: Key, share: float = 1.0, part: int = 0) -> None:
        """Add ``share`` times the estimated gradient to that of the perturbed parameters.

        Weights: ``derivative`` is the scalar derivative along ``key``'s direction, which is drawn again. Activities:
        it is (n,), that of each example's loss; a second plain forward pass from ``x`` (input and parameters must be
        those of ``dual``) finds the gradient of each layer alone.
        """
        if self._activities is None:
            if (direction := self._kept.pop((key, part), None) or self._direction(key, x, part)) is None:
                return
            direction.multiply(derivative * share)
            for _, parameter, gradient in direction:
                if (rate := self.alpha.rate(parameter, key.step)) != 1:
                    gradient = gradient.mul_(rate)
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            return
        with (
            torch.no_grad(),
            self._masks(key, x, part),
            self._activities.learning(x, derivative, key, share, part),
        ):
            functional_call(self.module, self._buffers(), (self._own(x),))

    def output_at(self, x: Any, key: Key, distance: float, part: int = 0) -> Tensor:
        """The output with the parameters at a distance along the direction of ``key``: a plain forward pass.

        It updates the buffers where ``key.direction`` is 0 and the distance above 0.
        """
        overrides = {} if key.direction == 0 and distance > 0 else self._buffers()
        if (direction := self._direction(key, x, part)) is not None:
            direction.multiply(distance)
            overrides.update((name, u.add_(p.detach())) for name, p, u in direction)
        with torch.no_grad(), self._masks(key, x, part):
            output = functional_call(self.module, overrides, (self._own(x),))
        return _check_tensor(output)

    def _direction(self, key: Key, x: Any, part: int) -> Direction | None:
        moving = [
            Moving(name, parameter, scale)
            for name, parameter in self._named
            if (scale := self.alpha.scale(parameter, key.step))
        ]
        return Direction(moving, key.on(device_of(x), 2 * part)) if moving else None

    def _own(self, x: Any) -> Any:
        # The batch, or what another module gave, must still be there for a second pass.
        return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x) if self._overwrites else x

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    @contextmanager
    def _masks(self, key: Key, x: Any, part: int) -> Iterator[None]:
        # Seeing every operation costs time: a module that drew nothing in its first training pass is not watched again.
        if self._draws is False:
            yield
            return
        with Masks(key._replace(direction=0).on(device_of(x), 2 * part + 1)) as masks:
            yield
        if self.module.training:
            self._draws = self._draws or masks.drawn


def loss_along(
    trainable: Trainable, output: Tensor, tangent: Tensor | None, target: Any, *, per_example: bool
) -> tuple[Tensor, Tensor]:
    """The mean loss and its derivative along ``tangent``: that of the mean, or (n,), n times each example's part.

    Inside ``forward_ad.level``. An example's part is the inner product of its tangent with the loss's gradient at its
    output: a gradient through the loss function alone.
    """
    if tangent is None:
        loss = trainable.loss(output, target).detach()
        return loss, loss.new_zeros(output.shape[:1] if per_example else ())
    if not per_example:
        primal, derivative = forward_ad.unpacked(trainable.loss(forward_ad.dual(output, tangent), target))
        return primal, torch.zeros_like(primal) if derivative is None else derivative
    with torch.enable_grad():
        alone = output.detach().requires_grad_()
        loss = trainable.loss(alone, target)
        (gradient,) = torch.autograd.grad(loss, alone)
    return loss.detach(), output.shape[0] * (gradient * tangent).flatten(1).sum(1)


def _check_tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise WorkloadError("the output of a module in training", value=type(output).__name__, allowed="one tensor")
    return output
