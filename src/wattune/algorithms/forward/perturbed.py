"""A module that learns from directional derivatives: one dual forward pass, and gradients without a backward pass.

**Weights.** All P perturbed parameters move along one direction u (P,) ~ N(0, I). The dual pass gives the loss L and
the scalar s = g . u with the gradient g = dL/dw, and s u estimates it without bias:

    E[s u] = E[u u^T] g = g,    E|s u|^2 = (P + 2) |g|^2

**Activities.** The outputs z_l (n, ...) of each layer l move along u_l (n, ...), one direction per example n. The loss
is a mean over n examples, L = sum_i L_i / n, and the dual pass gives for each example s_i = sum_l dL_i/dz_li . u_li.
Directions of different layers are independent, so the other terms of the sum vanish in the mean:

    E[s_i u_li] = dL_i/dz_li,    dL/dW_l = sum_i (dz_li/dW_l)^T dL_i/dz_li / n

A layer's own gradient (dz/dW, without any other layer's) takes s_i u_li / n to its parameters. This is unbiased too,
and its variance grows with the number of units instead of that of weights.

Source: Baydin et al. 2022, arXiv 2202.08587 (weights); Ren et al. 2023, arXiv 2210.03310 (activities).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Trainable
from wattune.algorithms.counting.aten import device_of
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.activities import Activities
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.gradients import add_gradients
from wattune.algorithms.forward.linear_tangents import LinearTangents
from wattune.algorithms.forward.masks import Masks, RandomKey
from wattune.errors import WorkloadError

Perturb = Literal["weights", "activities"]


class Direction:
    """A random direction of these named parameters (on one device): normal numbers.

    They are one vector (P,), drawn and multiplied at once: a small operation for each parameter would take longer to
    launch than to run, and concurrent threads would wait for each other at each of them.
    """

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], generator: torch.Generator | None):
        self._parameters = parameters
        values = [p.detach() for _, p in parameters]
        first = values[0]
        count = sum(p.numel() for p in values)
        self._flat = torch.empty(count, dtype=first.dtype, device=first.device).normal_(generator=generator)
        self._tangents: Sequence[Tensor] = torch._utils._unflatten_dense_tensors(self._flat, values)  # type: ignore[no-untyped-call]

    def multiply(self, factor: Tensor | float) -> None:
        """Multiply the whole direction in place."""
        self._flat.mul_(factor)

    def __iter__(self) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
        """Yield each parameter's name, the parameter, and its tangent of the same shape."""
        for (name, parameter), tangent in zip(self._parameters, self._tangents, strict=True):
            yield name, parameter, tangent if tangent.dtype == parameter.dtype else tangent.to(parameter.dtype)


class Perturbed:
    """A module (a whole model, or one part of a pipeline) whose parameters learn from directional derivatives.

    Parameters that require a gradient and whose ``alpha`` is not 0 are perturbed. The module's buffers are
    updated once per batch, by ``dual`` with ``key.direction`` 0. Dropout draws from the key too: the same masks for
    every direction of a step. ``part`` numbers the micro-batches of a batch: each has its own directions and masks.

    ``keep``: number of directions of weights to store until their gradient is made, which saves drawing them again; one
    takes no additional memory if ``add_gradient`` follows each ``dual``.

    Raises: WorkloadError for activities of a module with parameters both of its own and in layers inside it.
    """

    def __init__(self, module: nn.Module, *, perturb: Perturb, alpha: Alpha, keep: int = 0):
        self.module, self.perturb, self.alpha = module, perturb, alpha
        self.keeps_input = perturb == "activities"
        self._linear = LinearTangents(module)
        self._activities = Activities(module, alpha) if perturb == "activities" else None
        self._draws: bool | None = None
        self._keep = keep
        self._directions: dict[tuple[RandomKey, int], Direction | None] = {}
        self._named_parameters = list(module.named_parameters())
        self._overwrites = any(getattr(m, "inplace", False) for m in module.modules())

    def perturbs(self, step: int) -> bool:
        """Return whether any parameter is perturbed in this step."""
        return self.alpha.learns(self.module.parameters(), step)

    def dual(self, x: Any, tangent: Tensor | None, key: RandomKey, part: int = 0) -> tuple[Tensor, Tensor | None]:
        """Compute the output (n, ...) and its tangent, of the same shape, along the input's tangent and ``key``.

        Call it inside ``forward_ad.level``; the results are plain tensors that outlive it. Without an input tangent and
        perturbed parameters this is a plain forward pass with the tangent None, and so is a frozen beginning of the
        module. Raises: InputError for activities if examples interact; WorkloadError if the output is not a tensor,
        or for a random operation other than dropout.
        """
        overrides = self._buffers() if key.direction else {}
        dual_x = self._own(x) if tangent is None else forward_ad.dual(self._own(x), tangent)
        tangents: dict[int, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(self._masks(key, x, part))
            if self._activities is not None:
                stack.enter_context(self._activities.perturbed(x, key, part))
            else:
                direction = self._direction(key, x, part)
                if self._keep:
                    self._directions[key, part] = direction
                    if len(self._directions) > self._keep:
                        del self._directions[next(iter(self._directions))]  # the oldest: its batch was skipped
                for name, p, u in direction or ():
                    if id(p) in self._linear.exclusive:
                        tangents[id(p)] = u
                    else:
                        overrides[name] = forward_ad.dual(p.detach(), u)
            stack.enter_context(self._linear.active(tangents))
            output = functional_call(self.module, overrides, (dual_x,)) if overrides else self.module(dual_x)
        _check_tensor(output)
        return forward_ad.unpacked(output)

    def add_gradient(self, x: Any, derivative: Tensor, key: RandomKey, share: float = 1.0, part: int = 0) -> None:
        """Add ``share`` times the estimated gradient to that of the perturbed parameters.

        Weights: ``derivative`` is the scalar s along ``key``'s direction, which is drawn again. Activities: it is (n,),
        s_i of each example; a second plain forward pass from ``x`` (with the input and parameters of ``dual``) computes
        each layer's own gradient.
        """
        if self._activities is None:
            if (direction := self._directions.pop((key, part), None) or self._direction(key, x, part)) is None:
                return
            direction.multiply(derivative * share)  # u becomes s u
            for _, parameter, gradient in direction:
                add_gradients([parameter], [gradient])
            return
        with (
            torch.no_grad(),
            self._masks(key, x, part),
            self._activities.learning(x, derivative, key, share, part),
        ):
            functional_call(self.module, self._buffers(), (self._own(x),))

    def output_at(self, x: Any, key: RandomKey, distance: float, part: int = 0) -> Tensor:
        """Compute the output with the parameters at w + ``distance`` u, u of ``key``: a plain forward pass.

        It updates the buffers if ``key.direction`` is 0 and the distance is positive.
        """
        overrides = {} if key.direction == 0 and distance > 0 else self._buffers()
        if (direction := self._direction(key, x, part)) is not None:
            direction.multiply(distance)
            overrides.update((name, u.add_(p.detach())) for name, p, u in direction)
        with torch.no_grad(), self._masks(key, x, part):
            output = functional_call(self.module, overrides, (self._own(x),))
        return _check_tensor(output)

    def _direction(self, key: RandomKey, x: Any, part: int) -> Direction | None:
        parameters = [(name, p) for name, p in self._named_parameters if self.alpha.rate(p, key.step)]
        return Direction(parameters, key.on(device_of(x), 2 * part)) if parameters else None

    def _own(self, x: Any) -> Any:
        # A copy if the module works in place: a second pass needs the same input.
        return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x) if self._overwrites else x

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    @contextmanager
    def _masks(self, key: RandomKey, x: Any, part: int) -> Iterator[None]:
        # Intercepting every operation takes time: skip it once a pass in training mode has drawn nothing.
        if self._draws is False:
            yield
            return
        with Masks(key._replace(direction=0).on(device_of(x), 2 * part + 1)) as masks:
            yield
        if self.module.training:
            self._draws = self._draws or masks.are_drawn


def loss_along(
    trainable: Trainable, output: Tensor, tangent: Tensor | None, target: Any, *, per_example: bool
) -> tuple[Tensor, Tensor]:
    """The mean loss L and its derivative along ``tangent``: the scalar s, or s_i of each example (n,).

    Call it inside ``forward_ad.level``. ``output`` and ``tangent`` are (n, ...). For s_i the gradient of L at the
    output, through the loss function alone, is multiplied with the example's tangent: dL/dy_i = (dL_i/dy_i) / n, so
    s_i = n dL/dy_i . dy_i.
    """
    if tangent is None:
        loss = trainable.loss(output, target).detach()
        return loss, loss.new_zeros(output.shape[:1] if per_example else ())
    if not per_example:
        primal, derivative = forward_ad.unpacked(trainable.loss(forward_ad.dual(output, tangent), target))
        return primal, torch.zeros_like(primal) if derivative is None else derivative
    with torch.enable_grad():
        leaf = output.detach().requires_grad_()
        loss = trainable.loss(leaf, target)
        (gradient,) = torch.autograd.grad(loss, leaf)  # dL/dy (n, ...)
    return loss.detach(), output.shape[0] * (gradient * tangent).flatten(1).sum(1)  # (n,)


def _check_tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise WorkloadError("the output of a module in training", value=type(output).__name__, allowed="one tensor")
    return output
