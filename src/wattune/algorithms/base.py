"""The one interface of a training algorithm, and what an algorithm needs of the thing it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from wattune.algorithms.spec import Option
from wattune.records import StepWork

Batch = tuple[Any, Any]
"""Inputs and targets of one optimizer step; the first dimension counts samples."""


class Trainable(Protocol):
    """What an algorithm needs to know of a workload (``wattune.workloads.Workload`` is one)."""

    @property
    def data_type(self) -> str:
        """What a step computes in."""

    @property
    def host_s_per_sample(self) -> float:
        """Seconds of the CPU to load one sample."""

    def model(self, seed: int) -> nn.Module:
        """The model with its initial weights; ``seed`` decides the layers that start anew. Frozen parameters do not
        require gradients."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss over the batch, a scalar."""

    def optimizer(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """An optimizer of the trained parameters with the learning rate of this batch size."""

    def example(self, batch_size: int) -> Batch:
        """A made-up batch on the CPU with the shapes and types of the data, for counting and profiling."""


@dataclass(frozen=True)
class Step:
    """One optimizer step that is done: how many samples it used and their mean loss."""

    samples: int
    loss: float


class TrainingAlgorithm(ABC):
    """Trains a model from an iterator of batches.

    Contract, held by ``tests/algorithms/contract.py``: ``run`` yields one Step per batch, in order, though it may
    take several batches in before the first Step comes out; stopping the iteration leaves the parameters at the last
    Step; ``load_state_dict(state_dict())`` on a new instance goes on exactly as the old one would have.
    """

    name: str
    """As records say it: the name, and the options where there are any."""

    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    """What may stand behind the name: keyword arguments of the same names."""

    MICRO_BATCHES: ClassVar[bool] = True
    """Whether a batch may go through the model in parts."""

    module: nn.Module
    """The model in training, in a state that can be evaluated between two Steps."""

    @abstractmethod
    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Train on each batch."""

    @abstractmethod
    def work(self) -> StepWork:
        """What one step asks of a device."""

    @abstractmethod
    def evaluation_work(self, samples: int) -> StepWork:
        """What a forward pass over so many samples, without gradients, asks of a device."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that a new instance needs to go on: nested dicts and lists of tensors and JSON values."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
