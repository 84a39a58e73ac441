"""The frame of what trains on one device, one batch after the other, each in micro-batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator

import torch

from wattune.algorithms import counting, stepping
from wattune.algorithms.base import Batch, Step, Trainable, TrainingAlgorithm
from wattune.algorithms.operations import samples_of
from wattune.algorithms.placement import shortage_said
from wattune.records import StepWork


class Stepwise(TrainingAlgorithm):
    """A training whose Step comes out before the next batch goes in.

    A subclass says how it trains on a batch (``_train``) and what of that is counted (``_pass``).

    Raises: InputError for batch sizes that cannot be, WorkloadError where nothing trains, OutOfDeviceMemory where the
    model does not fit.
    """

    def __init__(
        self, trainable: Trainable, batch_size: int, micro_batch_size: int | None, seed: int, on: torch.device | None
    ) -> None:
        stepping.check_sizes(batch_size, micro_batch_size)
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size or batch_size
        self._trainable = trainable
        self.module, self._device = stepping.opened(trainable, seed, on)
        self._optimizer = trainable.optimizer(self.module, batch_size)

    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Train on each batch; one Step comes out before the next batch goes in.

        Raises: OutOfDeviceMemory; InputError where another thread of the process trains by forward gradients, and this
        does as well.
        """
        self.module.train()
        for batch in batches:
            with shortage_said(f"a step with micro-batches of {self.micro_batch_size}"):
                step = self._train(batch)
            yield step

    def work(self) -> StepWork:
        """What one step asks of a device, once every layer learns that ever does.

        Raises: WorkloadError where the step cannot be run.
        """
        return counting.step_work(
            self._trainable, self.module, self._optimizer, self.batch_size, self.micro_batch_size, self._pass()
        )

    def evaluation_work(self, samples: int) -> StepWork:
        """What a forward pass over so many samples asks of a device. Raises: WorkloadError."""
        return counting.evaluation_work(self._trainable, self.module, self._optimizer, samples)

    @abstractmethod
    def _train(self, batch: Batch) -> Step:
        """One optimizer step."""

    @abstractmethod
    def _pass(self) -> counting.TrainingPass:
        """What a micro-batch goes through."""

    def _parts(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """The micro-batches of a batch on the device, each with its share of the samples."""
        samples, start = samples_of(batch), 0
        for size in counting.split(samples, self.micro_batch_size):
            yield stepping.part(batch, start, start + size, self._device), size / samples
            start += size
