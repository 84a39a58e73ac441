"""Passes over a batch that can be repeated: random numbers that are drawn again from a key, and no trace in the model.

PyTorch has one random sequence per process: two threads with dropout would disturb each other's numbers, and the second
of two passes over a batch would get other masks than the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from wattune.algorithms.counting.aten import device_of
from wattune.errors import WorkloadError


class Masks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode in which every dropout of this thread draws from ``generator``; None on the meta device.

    ``are_drawn``: True once anything was drawn. Raises: WorkloadError for a random operation that takes no generator.
    """

    def __init__(self, generator: torch.Generator | None):
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator
        self.are_drawn = False

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, with our generator if it is random and has none."""
        options = options or {}
        if torch.Tag.nondeterministic_seeded not in operation.tags or options.get("generator") is not None:
            return operation(*arguments, **options)
        name = operation.overloadpacket.__name__
        if name == "native_dropout":
            x, p, train = arguments
            if train is False or p == 0:
                return operation(*arguments, **options)
            self.are_drawn = True
            mask = torch.empty_like(x).bernoulli_(1 - p, generator=self.generator)
            return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask.bool()
        if any(argument.name == "generator" for argument in operation._schema.arguments):
            self.are_drawn = True
            return operation(*arguments, **{**options, "generator": self.generator})
        if not _is_random(operation, arguments):
            return operation(*arguments, **options)
        raise WorkloadError(
            "a random operation in the model that does not take a generator",
            value=name,
            allowed="dropout",
            hint="use a dropout layer, or train with backprop",
        )


def _is_random(operation: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether the operation is random with these arguments: attention is with a dropout probability only."""
    places = {argument.name: place for place, argument in enumerate(operation._schema.arguments)}
    for name in ("dropout_p", "dropout"):
        if name in places:
            place = places[name]
            return bool(place < len(arguments) and arguments[place])
    return True


class RandomKey(NamedTuple):
    """Key of a direction: the run's seed, the step (batch), the module, the direction in the step, the micro-batch."""

    seed: int
    step: int
    module: int = 0
    direction: int = 0
    part: int = 0

    def generator(self, device: torch.device, purpose: int = 0) -> torch.Generator | None:
        """Generator of this key on a device, None on the meta device, where nothing is drawn; ``purpose``: 0 for
        directions, 1 for dropout masks."""
        if device.type == "meta":
            return None
        numbers = self.seed, self.step, self.module, self.direction, 2 * self.part + purpose
        (state,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
        return torch.Generator(device).manual_seed(int(state) >> 1)


class MaskedPasses:
    """The passes of a module over a batch, with the same dropout masks in each of them."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._draws: bool | None = None

    @contextmanager
    def masks(self, x: Any, key: RandomKey) -> Iterator[torch.Generator | None]:
        """Context of a pass over ``x``, in which dropout draws from the generator of ``key``."""
        # Intercepting every operation takes time: skip it once a pass in training mode has drawn nothing.
        if self._draws is False:
            yield None
            return
        with Masks(key.generator(device_of(x), 1)) as masks:
            yield masks.generator
        if self._module.training:
            self._draws = self._draws or masks.are_drawn


def own(module: nn.Module, x: Any) -> Any:
    """The module's input, or a copy if the module works in place."""
    if not any(getattr(m, "inplace", False) for m in module.modules()):
        return x
    return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x)


def copied_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers, for a pass that must not change the module's."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}
