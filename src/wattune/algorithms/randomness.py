"""Random numbers that a model draws in its forward pass (dropout), from a generator of ours.

PyTorch's own are one sequence for a whole process: two threads that drop out take each other's numbers, and the second
of two passes over one batch gets other masks than the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wattune.errors import WorkloadError


class Masks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every dropout that runs inside, in this thread, draws from ``generator``; None on the meta device.

    ``drawn`` says whether anything was. Raises: WorkloadError for a random operation that takes no generator.
    """

    def __init__(self, generator: torch.Generator | None):
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator
        self.drawn = False

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, with our generator where it is random and was not given one."""
        options = options or {}
        if torch.Tag.nondeterministic_seeded not in operation.tags or options.get("generator") is not None:
            return operation(*arguments, **options)
        name = operation.overloadpacket.__name__
        if name == "native_dropout":
            x, p, train = arguments
            if train is False or p == 0:
                return operation(*arguments, **options)
            self.drawn = True
            kept = torch.empty_like(x).bernoulli_(1 - p, generator=self.generator)
            return x * kept * (1 / (1 - p) if p < 1 else 0.0), kept.bool()
        if any(argument.name == "generator" for argument in operation._schema.arguments):
            self.drawn = True
            return operation(*arguments, **{**options, "generator": self.generator})
        if not _is_random(operation, arguments):
            return operation(*arguments, **options)
        raise WorkloadError(
            "a random operation in the model that takes no random numbers of its own",
            value=name,
            allowed="dropout",
            hint="write it with a dropout layer, or train by backpropagation",
        )


def _is_random(operation: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether it draws with these arguments: attention does with a probability of dropout alone."""
    places = {argument.name: place for place, argument in enumerate(operation._schema.arguments)}
    for name in ("dropout_p", "dropout"):
        if name in places:
            place = places[name]
            return bool(place < len(arguments) and arguments[place])
    return True
