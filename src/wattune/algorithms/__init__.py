"""Training algorithms: how a model learns from batches, what a step of it asks of a device, and how it is kept."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from wattune.algorithms.base import Batch, Step, Trainable, TrainingAlgorithm
from wattune.algorithms.checkpoint import load_checkpoint, save_checkpoint, state_bytes
from wattune.algorithms.learning import Progressed, learn
from wattune.algorithms.placement import place, release, shortage_said
from wattune.algorithms.spec import name_of, options_of, written
from wattune.errors import UnknownName

__all__ = [
    "ALGORITHMS",
    "Batch",
    "Progressed",
    "Step",
    "Trainable",
    "TrainingAlgorithm",
    "canonical",
    "learn",
    "load_checkpoint",
    "open_algorithm",
    "place",
    "release",
    "save_checkpoint",
    "shortage_said",
    "state_bytes",
    "takes_micro_batches",
]

ALGORITHMS: dict[str, str] = {
    "async-fgd": "wattune.algorithms.async_fgd:AsyncForwardGradient",
    "backprop": "wattune.algorithms.backprop:Backprop",
    "forward-gradient": "wattune.algorithms.forward_gradient:ForwardGradient",
}
"""Name -> "module:class"."""


def open_algorithm(
    spec: str,
    trainable: Trainable,
    batch_size: int,
    *,
    micro_batch_size: int | None = None,
    seed: int = 0,
    on: Literal["cpu", "gpu"] = "cpu",
) -> TrainingAlgorithm:
    """A new training of ``trainable`` from its initial weights.

    ``spec``: a name and perhaps options, as in "async-fgd:modules=4". ``micro_batch_size`` is how many samples one
    forward pass takes, the whole batch where it is None; ``on`` the processor, see ``place``.
    Raises: UnknownName; InputError, WorkloadError and OutOfDeviceMemory as the algorithm does.
    """
    algorithm = _class(spec)
    opened: TrainingAlgorithm = algorithm(
        trainable,
        batch_size,
        micro_batch_size=micro_batch_size,
        seed=seed,
        on=place(on),
        **options_of(spec, algorithm.OPTIONS),
    )
    return opened


def canonical(spec: str) -> str:
    """The spec as records say it: options sorted. Raises: UnknownName, InputError."""
    return written(name_of(spec), options_of(spec, _class(spec).OPTIONS))


def takes_micro_batches(spec: str) -> bool:
    """Whether a batch may go through the model in parts with this algorithm. Raises: UnknownName."""
    return bool(_class(spec).MICRO_BATCHES)


def _class(spec: str) -> type[Any]:
    if name_of(spec) not in ALGORITHMS:
        raise UnknownName("algorithm", name_of(spec), ALGORITHMS)
    module, _, attribute = ALGORITHMS[name_of(spec)].partition(":")
    found: type[TrainingAlgorithm] = getattr(importlib.import_module(module), attribute)
    return found
