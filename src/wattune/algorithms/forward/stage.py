"""A module of a model in training, in a row of modules that each learn with a delay of their own.

Module k of K works on a batch with parameters that are K-1-k updates old, as in a pipeline in which its derivative
arrives that much later. In one thread the old parameters are stored instead, and a batch passes all modules at once,
with the results of the pipeline and without any batch in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.masks import MaskedPasses, RandomKey
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

    needs_input = False
    """True if ``add_gradient`` needs the input and the parameters of ``dual``."""

    def __init__(self, module: nn.Module, alpha: Alpha, index: int = 0, lag: int = 0):
        self.module, self.alpha, self.index, self.lag = module, alpha, index, lag
        self.passes = MaskedPasses(module)
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
