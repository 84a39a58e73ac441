"""Modules of a model in training, in a row: each learns with a delay of its own, without a backward pass.

Module k of K works on a batch with parameters that are K-1-k updates old, as in a pipeline in which its derivative
arrives that much later. In one thread the old parameters are stored instead, and a batch passes all modules at once,
with the results of the pipeline and without any batch in flight.

With perturbed weights all P parameters move along one direction u (P,) ~ N(0, I). The dual pass gives the loss L and
the scalar s = g . u with the gradient g = dL/dw, and s u estimates it without bias:

    E[s u] = E[u u^T] g = g,    E|s u|^2 = (P + 2) |g|^2

Central differences need no derivative at all: s is about (L(w + h u) - L(w - h u)) / (2 h), with a bias of order h^2.

Source: Baydin et al. 2022, arXiv 2202.08587; Malladi et al. 2023, arXiv 2305.17333, and Spall 1992 (differences).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from wattune.algorithms.base import no_gradient
from wattune.algorithms.counting.aten import device_of
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.masks import RandomKey, copied_buffers, own
from wattune.algorithms.random_state import own_random, random_state
from wattune.errors import WorkloadError

LossOf = Callable[[Tensor], Any]
"""Function from a model's output to the mean loss over the batch: a tensor, or a number for central differences."""

DualValue = tuple[Any, Any]
"""The value passed from module to module: activations (a batch's inputs before the first), and their tangent: None
without one, a list with one for each direction if activities are perturbed, the other side's activations in a central
difference."""


class Stage:
    """Module ``index`` of a row, which works with parameters that are ``lag`` updates old.

    A subclass says how it learns, with ``dual`` (``loss_along`` for the last module), which passes a value on, and
    ``add_gradient``, which gets the loss's derivatives along the directions of the random ``key``. Parameters that
    require a gradient and whose ``alpha`` is not 0 learn. The module's buffers are updated once per batch; dropout
    draws from the key too: the same masks for every direction of a step.
    """

    def __init__(self, module: nn.Module, alpha: Alpha, index: int = 0, lag: int = 0):
        self.module, self.alpha, self.index, self.lag = module, alpha, index, lag
        self._draws: bool | None = None
        self.trained = [p for p in module.parameters() if p.requires_grad]
        self._past: deque[list[Tensor]] = deque(maxlen=lag)

    def dual(self, x: Any, tangent: Any, key: RandomKey) -> DualValue:
        """Run the module; inside ``forward_ad.level``."""
        raise NotImplementedError

    def loss_along(self, x: Any, tangent: Any, loss_of: LossOf, key: RandomKey) -> tuple[Tensor, Tensor]:
        """Run the last module: the mean loss and its derivatives. Raises: WorkloadError if the loss has no gradient."""
        raise NotImplementedError

    def add_gradient(self, x: Any, derivative: Tensor, key: RandomKey, share: float = 1.0) -> Any:
        """Add ``share`` times the gradient to the parameters' own. Returns: the output, or ``x`` unless needed."""
        raise NotImplementedError

    def output(self, x: Any, key: RandomKey, values: dict[str, Tensor] | None = None) -> Tensor:
        """Run the module with the key's random numbers, and ``values`` in place of parameters and buffers."""
        with self.masks(x, key):
            return one_tensor(functional_call(self.module, values or {}, (own(self.module, x),)))

    @contextmanager
    def masks(self, x: Any, key: RandomKey) -> Iterator[bool]:
        """Context of a pass over ``x``: its random numbers follow from ``key``, for each direction the same, and leave
        PyTorch's own, of which a process has one sequence, as it is. False if the pass draws none."""
        device = device_of(x)
        # Seeding takes time: skip it once a pass in training mode has drawn nothing.
        if self._draws is False or device.type == "meta":
            yield False
            return
        with _DRAWING, own_random(device, key._replace(direction=0).number(purpose=1)):
            before = _as_bytes(device) if self._draws is None else None
            yield True
            if before is not None and self.module.training:
                self._draws = before != _as_bytes(device)

    def remember(self) -> None:
        """Store the parameters before an update."""
        if self.lag:
            self._past.append([p.detach().clone() for p in self.trained])

    def forget(self) -> None:
        """Drop the old parameters: the next batches work with younger ones."""
        self._past.clear()

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Give the parameters their values of ``lag`` updates ago, or the first since ``forget``, by reference."""
        present = [p.data for p in self.trained]
        try:
            for parameter, old in zip(self.trained, self._past[0] if self._past else present, strict=True):
                parameter.data = old
            yield
        finally:
            for parameter, value in zip(self.trained, present, strict=True):
                parameter.data = value


_DRAWING = threading.Lock()
"""Held by the pass that draws: threads take turns in modules with dropout."""


def _as_bytes(device: torch.device) -> list[bytes]:
    # An operation on tensors would be counted with those of the pass.
    return [state.numpy().tobytes() for state in random_state(device)]


def one_tensor(output: Any) -> Tensor:
    """Check a module's output. Raises: WorkloadError if it is not a tensor."""
    if not isinstance(output, Tensor):
        raise WorkloadError("the output of a module in training", value=type(output).__name__, allowed="one tensor")
    return output


def add_gradients(parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]) -> None:
    """Add gradients to the parameters' own; None leaves a parameter's gradient as it is."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            # Not in place: two parameters that are added to each other share the tensor of their gradient.
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


class Perturbed(Stage):
    """A module whose weights are perturbed. A direction waits for its gradient, which saves drawing it again."""

    def __init__(self, module: nn.Module, alpha: Alpha, index: int = 0, lag: int = 0):
        super().__init__(module, alpha, index, lag)
        self._drawn: dict[RandomKey, dict[str, Tensor]] = {}

    def dual(self, x: Any, tangent: Tensor | None, key: RandomKey) -> tuple[Tensor, Tensor | None]:
        """Compute the output (n, ...) and its tangent, of the same shape, along the input's tangent and ``key``.

        The results are plain tensors that outlive the level. Without an input tangent and perturbed parameters this is
        a plain forward pass with the tangent None, and so is a frozen beginning of the module. Raises: WorkloadError if
        the output is not a tensor.
        """
        direction = self._direction(key)
        self._drawn = {key: direction}
        overrides = copied_buffers(self.module) if key.direction else {}
        for name, u in direction.items():
            overrides[name] = forward_ad.dual(self.module.get_parameter(name).detach(), u)
        return forward_ad.unpacked(self.output(forward_ad.dual(x, tangent), key, overrides))

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
            add_gradients(map(self.module.get_parameter, direction), direction.values())
        return x

    def _direction(self, key: RandomKey) -> dict[str, Tensor]:
        """Draw the direction of the parameters that learn, on one device: normal numbers, by name."""
        learning = {id(p) for p in self.alpha.learning(self.trained, key.step)}
        draws = key.generator(self.trained[0].device) if learning else None
        return {
            name: torch.empty_like(p).normal_(generator=draws)
            for name, p in self.module.named_parameters()
            if id(p) in learning
        }


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
            overrides |= {name: u.add_(self.module.get_parameter(name).detach()) for name, u in direction.items()}
        return self.output(x, key, overrides)
