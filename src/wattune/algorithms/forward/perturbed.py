"""A module with perturbed weights: one dual forward pass, and a gradient without a backward pass.

All P perturbed parameters move along one direction u (P,) ~ N(0, I). The dual pass gives the loss L and the scalar
s = g . u with the gradient g = dL/dw, and s u estimates it without bias:

    E[s u] = E[u u^T] g = g,    E|s u|^2 = (P + 2) |g|^2

Central differences need no derivative at all: s is about (L(w + h u) - L(w - h u)) / (2 h), with a bias of order h^2.

Source: Baydin et al. 2022, arXiv 2202.08587; Malladi et al. 2023, arXiv 2305.17333, and Spall 1992 (differences).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from wattune.algorithms.base import no_gradient
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.masks import RandomKey, copied_buffers, own
from wattune.algorithms.forward.stage import LossOf, Stage, add_gradients, one_tensor


class Perturbed(Stage):
    """A module whose weights are perturbed. A direction waits for its gradient, which saves drawing it again."""

    def __init__(self, module: nn.Module, alpha: Alpha, index: int = 0, lag: int = 0):
        super().__init__(module, alpha, index, lag)
        self._parameters = dict(module.named_parameters())
        self._drawn: dict[RandomKey, dict[str, Tensor]] = {}

    def dual(self, x: Any, tangent: Tensor | None, key: RandomKey) -> tuple[Tensor, Tensor | None]:
        """Compute the output (n, ...) and its tangent, of the same shape, along the input's tangent and ``key``.

        The results are plain tensors that outlive the level. Without an input tangent and perturbed parameters this is
        a plain forward pass with the tangent None, and so is a frozen beginning of the module. Raises: WorkloadError if
        the output is not a tensor, or for a random operation other than dropout.
        """
        direction = self._direction(key)
        self._drawn = {key: direction}
        overrides = copied_buffers(self.module) if key.direction else {}
        overrides.update((name, forward_ad.dual(self._parameters[name].detach(), u)) for name, u in direction.items())
        with self.passes.masks(x, key._replace(direction=0)):
            dual_x = forward_ad.dual(own(self.module, x), tangent)
            return forward_ad.unpacked(one_tensor(functional_call(self.module, overrides, (dual_x,))))

    def loss_along(self, x: Any, tangent: Tensor | None, loss_of: LossOf, key: RandomKey) -> tuple[Tensor, Tensor]:
        """Run the last module: the mean loss L, and the scalar s, its derivative along all tangents.

        Raises: WorkloadError if the loss has no gradient.
        """
        output, along = self.dual(x, tangent, key)
        loss = loss_of(forward_ad.dual(output, along))
        loss, derivative = forward_ad.unpacked(loss) if isinstance(loss, Tensor) else (loss, None)
        if not isinstance(loss, Tensor) or (derivative is None and along is not None):
            raise no_gradient(loss)
        return loss, torch.zeros_like(loss) if derivative is None else derivative

    def add_gradient(self, x: Any, derivative: Tensor, key: RandomKey, share: float = 1.0) -> Any:
        """Add ``share`` times the estimated gradient s u to the gradient of the perturbed parameters."""
        if direction := self._drawn.pop(key, None) or self._direction(key):
            torch._foreach_mul_([*direction.values()], derivative * share)  # u becomes s u
            add_gradients([self._parameters[name] for name in direction], direction.values())
        return x

    def _direction(self, key: RandomKey) -> dict[str, Tensor]:
        """Draw the direction of the parameters that learn, on one device: normal numbers, by name.

        They are drawn as one vector (P,) and later multiplied at once: small operations would take longer to launch
        than to run, and concurrent threads would wait for each other. Each parameter's part is a copy: forward mode
        would copy a view.
        """
        learning = {id(p) for p in self.alpha.learning(self.trained, key.step)}
        parameters = {name: p for name, p in self._parameters.items() if id(p) in learning}
        if not parameters:
            return {}
        first, *_ = values = list(parameters.values())
        sizes = [p.numel() for p in values]
        flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        parts = torch.split(flat.normal_(generator=key.generator(first.device)), sizes)
        tangents = [part.view_as(p).to(p.dtype, copy=True) for p, part in zip(values, parts, strict=True)]
        return dict(zip(parameters, tangents, strict=True))


class Differences(Perturbed):
    """A module with the weights at w + h u and at w - h u, h = ``distance``: two plain passes instead of a dual one.

    In place of a value and its tangent it takes and gives the values of both sides. The second is None as long as
    nothing differs: a frozen beginning runs once.
    """

    def __init__(self, module: nn.Module, alpha: Alpha, distance: float, index: int = 0, lag: int = 0):
        super().__init__(module, alpha, index, lag)
        self.distance = distance

    def dual(self, x: Any, behind: Any, key: RandomKey) -> tuple[Tensor, Tensor | None]:
        """Compute the outputs (n, ...) of both sides from the inputs of both; the first pass updates the buffers."""
        differs = behind is not None or bool(self.alpha.learning(self.trained, key.step))
        ahead = self._output(x, key, self.distance)
        return ahead, self._output(x if behind is None else behind, key, -self.distance) if differs else None

    def loss_along(self, x: Any, behind: Any, loss_of: LossOf, key: RandomKey) -> tuple[Tensor, Tensor]:
        """Run the last module: the mean loss of both sides, and the scalar s. The loss may be a number."""
        ahead, other = self.dual(x, behind, key)
        above, below = loss_of(ahead), loss_of(ahead if other is None else other)
        # Numbers become tensors only now: their difference needs all digits.
        mean, derivative = (above + below) / 2, (above - below) / (2 * self.distance)
        return torch.as_tensor(mean, device=ahead.device), torch.as_tensor(derivative, device=ahead.device)

    def _output(self, x: Any, key: RandomKey, distance: float) -> Tensor:
        overrides = {} if key.direction == 0 and distance > 0 else copied_buffers(self.module)
        if direction := self._direction(key):  # drawn again for each side: one is alive at a time
            torch._foreach_mul_([*direction.values()], distance)
            overrides.update((name, u.add_(self._parameters[name].detach())) for name, u in direction.items())
        with self.passes.masks(x, key._replace(direction=0)):
            return one_tensor(functional_call(self.module, overrides, (own(self.module, x),)))
