"""Training algorithms: how a model learns from batches, the work of a step, and checkpoints."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from wattune.algorithms.algorithm import TrainingAlgorithm as TrainingAlgorithm
from wattune.algorithms.base import Batch as Batch
from wattune.algorithms.base import EvaluationPoint as EvaluationPoint
from wattune.algorithms.base import LossTally as LossTally
from wattune.algorithms.base import Run as Run
from wattune.algorithms.base import Step as Step
from wattune.algorithms.base import Trainable as Trainable
from wattune.algorithms.base import learn as learn
from wattune.algorithms.checkpoint import Plain as Plain
from wattune.algorithms.checkpoint import check_state as check_state
from wattune.algorithms.checkpoint import load_checkpoint as load_checkpoint
from wattune.algorithms.checkpoint import save_checkpoint as save_checkpoint
from wattune.algorithms.checkpoint import state_bytes as state_bytes
from wattune.algorithms.checkpoint import tensor_file as tensor_file
from wattune.algorithms.placement import memory_errors as memory_errors
from wattune.algorithms.placement import place as place
from wattune.algorithms.placement import release as release
from wattune.algorithms.spec import format_spec, parse_options
from wattune.errors import UnknownName
from wattune.extras import check_torch
from wattune.revision import REVISIONS, check_revision, name_of

check_torch()  # all that trains imports this package

ALGORITHMS: dict[str, str] = {
    "async-fgd": "wattune.algorithms.forward.async_fgd:AsyncForwardGradient",
    "backprop": "wattune.algorithms.backprop:Backprop",
    "forward-gradient": "wattune.algorithms.forward.forward_gradient:ForwardGradient",
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
    """Start training ``trainable`` from its initial weights.

    ``spec``: a name, optionally with options, as in "async-fgd:modules=4". ``micro_batch_size``: samples of one forward
    pass; None: the whole batch. ``on``: the processor, see ``place``.
    Raises: UnknownName; InputError, WorkloadError and OutOfDeviceMemory as the algorithm does.
    """
    algorithm = _class(spec)
    instance: TrainingAlgorithm = algorithm(
        trainable,
        batch_size,
        micro_batch_size=micro_batch_size,
        seed=seed,
        on=place(on),
        **parse_options(spec, algorithm.OPTIONS),
    )
    return instance


def canonical(spec: str) -> str:
    """The spec in canonical form, as in records: with its revision, options sorted.

    Raises: UnknownName; InputError, also for another revision than today's.
    """
    if "@" in spec:
        check_revision(spec)
    options, name = parse_options(spec, _class(spec).OPTIONS), name_of(spec)
    revision = REVISIONS[name]
    return format_spec(name if revision == "1" else f"{name}@{revision}", options)


def takes_micro_batches(spec: str) -> bool:
    """Return whether the algorithm can process a batch in micro-batches. Raises: UnknownName."""
    return bool(_class(spec).MICRO_BATCHES)


def _class(spec: str) -> type[Any]:
    if name_of(spec) not in ALGORITHMS:
        raise UnknownName("algorithm", name_of(spec), ALGORITHMS)
    module, _, attribute = ALGORITHMS[name_of(spec)].partition(":")
    algorithm: type[TrainingAlgorithm] = getattr(importlib.import_module(module), attribute)
    return algorithm
