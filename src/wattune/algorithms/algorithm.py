"""Training algorithms on one device: their interface and frame, and what they are built of."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Batch, Step, Trainable
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.placement import memory_errors
from wattune.algorithms.spec import SpecOption
from wattune.errors import InputError
from wattune.records import StepWork

NAMED = 4
"""Parameters that a warning names."""


def part(batch: Batch, start: int, end: int, device: torch.device) -> Batch:
    """Move the samples from ``start`` to ``end`` of a batch to the device."""
    x, y = tree_map(lambda v: v[start:end].to(device) if isinstance(v, Tensor) else v, batch)
    return x, y


def cpu_copy(values: Any) -> Any:
    """Copy nested tensors to the CPU: a small GPU may not hold a second copy of everything."""
    return tree_map(lambda v: v.detach().to("cpu", copy=True) if isinstance(v, Tensor) else v, values)


@contextmanager
def state_errors() -> Iterator[None]:
    """Map errors of loading a state. Raises: InputError if the state belongs to another model."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        raise InputError(
            "the training state does not fit the model", value=str(error), hint="use a state of the same workload"
        ) from error


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Put the model in training mode, and restore buffers, modes and the random state afterwards."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=None if on_cuda else []):
        model.train()
        try:
            yield
        finally:
            for buffer, value in buffers:
                buffer.copy_(value)
            for module, training in modes:
                module.training = training


def warn_of_untrained(model: nn.Module, learning: Iterable[nn.Parameter]) -> None:
    """Name the parameters to train that a step gave no gradient, as below a layer that is not differentiable."""
    untrained = {id(p) for p in learning if p.requires_grad and p.grad is None}
    names = [name for name, p in model.named_parameters() if id(p) in untrained]
    if names:
        named = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        warnings.warn(
            f"no gradient for {len(names)} of the model's trainable parameters, which stay as they are: {named}; "
            f"make the layers above them differentiable, or train with async-fgd:perturb=differences",
            stacklevel=2,
        )


class TrainingAlgorithm(ABC):
    """A training loop over an iterator of batches.

    Contract, checked by ``tests/algorithms/contract.py``: ``run`` yields one Step per batch, in order, but may take
    several batches before the first Step; stopping the iteration leaves the parameters at the last Step; after
    ``load_state_dict(state_dict())`` a new instance continues exactly as the old one would have.

    A subclass implements training on a batch (``_train``) and the pass to count (``_pass``), and may freeze parameters
    before the optimizer is made (``_freeze``).

    Raises: InputError for invalid batch sizes, OutOfDeviceMemory if the model does not fit.
    """

    name: str
    """The spec in canonical form, as in records: name and options."""

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {}
    """Options of the spec, passed as keyword arguments of the same names."""

    MICRO_BATCHES: ClassVar[bool] = True
    """True if a batch can be processed in micro-batches."""

    module: nn.Module
    """The model in training; it can be evaluated between two Steps."""

    def __init__(
        self, trainable: Trainable, batch_size: int, micro_batch_size: int | None, seed: int, on: torch.device | None
    ) -> None:
        if batch_size < 1:
            raise InputError("batch size", value=batch_size, allowed="1 or more")
        if micro_batch_size is not None and not 1 <= micro_batch_size <= batch_size:
            raise InputError("micro-batch size", value=micro_batch_size, allowed=f"1 to the batch size {batch_size}")
        self.batch_size, self.micro_batch_size = batch_size, micro_batch_size or batch_size
        self._trainable = trainable
        with memory_errors("the model"):
            module = trainable.model(seed)
            self.module = module if on is None else module.to(on)
        self._device = next(self.module.parameters()).device
        self._freeze()
        self._optimizer = trainable.optimizer(self.module, batch_size)

    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Train on each batch; yield its Step before taking the next batch.

        Raises: OutOfDeviceMemory; for forward gradients, InputError if another thread of the process trains with them.
        """
        self.module.train()
        for batch in batches:
            with memory_errors(f"a step with micro-batches of {self.micro_batch_size}"):
                step = self._train(batch)
            yield step

    def state_dict(self) -> dict[str, Any]:
        """Copy of the model with its buffers, and of the optimizer, on the CPU; a subclass adds its own."""
        return {"module": cpu_copy(self.module.state_dict()), "optimizer": cpu_copy(self._optimizer.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``, without changing it. Raises: InputError if it belongs to another model."""
        with state_errors():
            self.module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(cpu_copy(state["optimizer"]))

    def work(self) -> StepWork:
        """The work of one step, once all layers that ever learn are learning.

        Raises: WorkloadError if the step cannot be run.
        """
        return step_counting.step_work(
            self._trainable, self.module, self._optimizer, self.batch_size, self.micro_batch_size, self._pass()
        )

    def evaluation_work(self, samples: int) -> StepWork:
        """The work of a forward pass over ``samples`` samples. Raises: WorkloadError."""
        return step_counting.evaluation_work(self._trainable, self.module, self._optimizer, samples, self._pass())

    def _freeze(self) -> None:
        """Freeze parameters of the model that this algorithm does not train."""
        return

    @abstractmethod
    def _train(self, batch: Batch) -> Step:
        """Take one optimizer step."""

    @abstractmethod
    def _pass(self) -> step_counting.TrainingPass:
        """The pass of a micro-batch, for counting."""

    def _parts(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield the micro-batches of a batch on the device, each with its share of the samples."""
        samples, start = samples_of(batch), 0
        for size in step_counting.split(samples, self.micro_batch_size):
            yield part(batch, start, start + size, self._device), size / samples
            start += size
