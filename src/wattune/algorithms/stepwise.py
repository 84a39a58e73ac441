"""The frame of algorithms that train on one device, one batch after the other, each in micro-batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator

import torch

from wattune.algorithms import step_setup
from wattune.algorithms.base import Batch, Step, Trainable, TrainingAlgorithm
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.placement import memory_errors
from wattune.records import StepWork


class Stepwise(TrainingAlgorithm):
    """An algorithm that yields a Step before it takes the next batch.

    A subclass implements training on a batch (``_train``) and the pass to count (``_pass``).

    Raises: InputError for invalid batch sizes, WorkloadError without trainable parameters, OutOfDeviceMemory if the
    model does not fit.
    """

    def __init__(
        self, trainable: Trainable, batch_size: int, micro_batch_size: int | None, seed: int, on: torch.device | None
    ) -> None:
        step_setup.check_sizes(batch_size, micro_batch_size)
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size or batch_size
        self._trainable = trainable
        self.module, self._device = step_setup.build_model(trainable, seed, on)
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

    def work(self) -> StepWork:
        """The work of one step, once all layers that ever learn are learning.

        Raises: WorkloadError if the step cannot be run.
        """
        return step_counting.step_work(
            self._trainable, self.module, self._optimizer, self.batch_size, self.micro_batch_size, self._pass()
        )

    def evaluation_work(self, samples: int) -> StepWork:
        """The work of a forward pass over ``samples`` samples. Raises: WorkloadError."""
        return step_counting.evaluation_work(self._trainable, self.module, self._optimizer, samples)

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
            yield step_setup.part(batch, start, start + size, self._device), size / samples
            start += size
