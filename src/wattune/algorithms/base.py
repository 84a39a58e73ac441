"""The interface of a training algorithm, and the part of a workload that it needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from wattune.algorithms.spec import SpecOption
from wattune.records import StepWork

Batch = tuple[Any, Any]
"""Inputs and targets of one optimizer step; the first dimension counts samples."""


class Trainable(Protocol):
    """The part of a workload that an algorithm needs (``wattune.workloads.Workload`` implements it)."""

    @property
    def data_type(self) -> str:
        """Data type that a step computes in."""

    @property
    def host_s_per_sample(self) -> float:
        """CPU seconds to load one sample."""

    def model(self, seed: int) -> nn.Module:
        """The model with its initial weights; ``seed`` determines the reinitialised layers. Frozen parameters do not
        require gradients."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss over the batch, a scalar."""

    def optimizer(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """Make an optimizer of the trained parameters with the learning rate of this batch size."""

    def example(self, batch_size: int) -> Batch:
        """Make a random batch on the CPU with the shapes and types of the data, for counting and profiling."""


@dataclass(frozen=True)
class Step:
    """A completed optimizer step: its number of samples and their mean loss."""

    samples: int
    loss: float


class TrainingAlgorithm(ABC):
    """A training loop over an iterator of batches.

    Contract, checked by ``tests/algorithms/contract.py``: ``run`` yields one Step per batch, in order, but may take
    several batches before the first Step; stopping the iteration leaves the parameters at the last Step; after
    ``load_state_dict(state_dict())`` a new instance continues exactly as the old one would have.
    """

    name: str
    """The spec in canonical form, as in records: name and options."""

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {}
    """Options of the spec, passed as keyword arguments of the same names."""

    MICRO_BATCHES: ClassVar[bool] = True
    """True if a batch can be processed in micro-batches."""

    module: nn.Module
    """The model in training; it can be evaluated between two Steps."""

    @abstractmethod
    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Train on each batch."""

    @abstractmethod
    def work(self) -> StepWork:
        """The work of one step."""

    @abstractmethod
    def evaluation_work(self, samples: int) -> StepWork:
        """The work of a forward pass over ``samples`` samples without gradients."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state to resume from: nested dicts and lists of tensors and JSON values."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
