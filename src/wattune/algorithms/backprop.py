"""Backpropagation: forward, backward, optimizer, one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from wattune.algorithms import recomputation
from wattune.algorithms.algorithm import TrainingAlgorithm, cpu_copy, state_errors, warn_of_untrained
from wattune.algorithms.base import Batch, Step, Trainable, differentiable_loss
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.model_parts import freeze_all_but
from wattune.algorithms.placement import autocast, matrix_precision
from wattune.algorithms.random_state import own_random, random_state, set_random_state
from wattune.algorithms.spec import SpecOption, format_spec, whole
from wattune.errors import InputError


class Backprop(TrainingAlgorithm):
    """The plain training loop, on one torch device.

    A batch larger than ``micro_batch_size`` is processed in micro-batches whose gradients accumulate: the gradient is
    that of the mean loss over the whole batch. (Batch normalisation sees the micro-batches, as usual.) "fp16" and
    "bf16" use autocast, the former with a scaled loss. Random numbers (dropout) are the algorithm's own: code that runs
    between two steps does not affect them.

    ``checkpoint``: divide the model's parts into this many segments, store only the input of each but the last, and
    recompute the rest in the backward pass: the same gradients and running statistics for less memory and about a
    third more work. See ``recomputation``. "auto": the number that takes the least memory, foreseen.

    ``last``: train only the last parts of the model, this many that have trained parameters. The parts before them are
    frozen and run without storing activations; their dropout and running statistics stay those of training.

    A warning after the first backward pass names trainable parameters that have no gradient.

    Raises: InputError for invalid batch sizes, segments or last parts; WorkloadError if a model to cut has no parts, or
    at the first step if the loss has no gradient; OutOfDeviceMemory if model or step do not fit.
    """

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {"checkpoint": recomputation.SEGMENTS, "last": whole(1)}

    def __init__(
        self,
        trainable: Trainable,
        batch_size: int,
        *,
        micro_batch_size: int | None = None,
        seed: int = 0,
        on: torch.device | None = None,
        checkpoint: recomputation.Segments | None = None,
        last: int | None = None,
    ) -> None:
        options = {"checkpoint": checkpoint, "last": last}
        self.name = format_spec("backprop", {k: v for k, v in options.items() if v is not None})
        if checkpoint is not None and last is not None:
            raise InputError(
                "options of the algorithm backprop",
                value=self.name,
                allowed="checkpoint or last",
                hint="the frozen parts store no activations",
            )
        self._last = last
        super().__init__(trainable, batch_size, micro_batch_size, seed, on)
        if checkpoint == "auto":
            checkpoint = recomputation.least_memory(trainable, self.module, self._optimizer, self.micro_batch_size)
        self._checkpoint = checkpoint
        self._forward: Callable[[Any], Any] = self.module
        if checkpoint is not None:
            self._forward = partial(recomputation.forward, recomputation.cut(self.module, checkpoint))
        self._is_checked = False
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=trainable.data_type == "fp16")
        with own_random(self._device, seed):
            self._random = random_state(self._device)

    def state_dict(self) -> dict[str, Any]:
        """Copy of the model with its buffers, the optimizer, the loss scale and the random state, on the CPU."""
        return {
            **super().state_dict(),
            "scaler": self._scaler.state_dict(),
            "random": cpu_copy(self._random),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``, without changing it. Raises: InputError if it belongs to another model."""
        super().load_state_dict(state)
        with state_errors():
            self._scaler.load_state_dict(state["scaler"])
            if len(state["random"]) != len(self._random):
                raise ValueError("it comes from another processor, with another random number generator")
            self._random = cpu_copy(state["random"])

    def _freeze(self) -> None:
        if self._last is not None:
            freeze_all_but(self.module, self._last)

    def _pass(self) -> step_counting.TrainingPass:
        if self._checkpoint is None:
            return step_counting.backward_pass
        return recomputation.CheckpointedPass(self._checkpoint)

    def _train(self, batch: Batch) -> Step:
        mean_loss = torch.zeros((), device=self._device)
        self._optimizer.zero_grad(set_to_none=True)
        with own_random(self._device), matrix_precision(self._device.type, self._trainable.data_type):
            set_random_state(self._random, self._device)
            for (x, y), share in self._parts(batch):
                with autocast(self._device.type, self._trainable.data_type):
                    loss = differentiable_loss(self._trainable, self._forward(x), y) * share
                self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                mean_loss += loss.detach()
            if not self._is_checked:
                warn_of_untrained(self.module, self.module.parameters())
                self._is_checked = True
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._random = random_state(self._device)
        return Step(samples=samples_of(batch), loss=float(mean_loss))
