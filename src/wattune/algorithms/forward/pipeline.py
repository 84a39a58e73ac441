"""A pipeline of modules through which batches advance, tick by tick.

In tick t module k (of K, counted from 0) works on batch t-k: each batch advances by one module per tick. The last
module gets the loss of batch t-K+1 and its derivative along all of the batch's directions, a scalar (weights) or one
per example (activities), by which every module then updates its present parameters. So module k works on batch b with
the parameters after ``max(0, b - (K-1-k))`` updates.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023; Huo et al., Decoupled Parallel Backprop, ICML 2018 (delays).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Batch, Step, Trainable
from wattune.algorithms.counting import aten
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.blocks import ExactEnd
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import loss_along
from wattune.algorithms.forward.stage import DualValue, ModuleUpdates, Stage
from wattune.algorithms.forward.tick import Backend


class ModuleResult(NamedTuple):
    """Result of a module for a batch in one tick: the output for the next module, or the last one's loss and
    derivative."""

    output: DualValue | None
    loss: Tensor | None = None
    derivative: Tensor | None = None


class SharedDerivative:
    """The derivative of a tick, from the last module to the others, which may wait for it in their threads."""

    def __init__(self) -> None:
        self.derivative: Tensor | None = None
        self._ready = threading.Event()

    def publish(self, result: ModuleResult | None) -> None:
        """Publish the derivative: None if no batch has reached the end, or if it is not finite."""
        if result is not None and result.loss is not None and result.derivative is not None:
            self.derivative = result.derivative if _finite(result.loss, result.derivative) else None
        self._ready.set()

    def cancel(self) -> None:
        """Release the waiting modules without a derivative: the last module has failed."""
        self._ready.set()

    def wait(self) -> Tensor | None:
        """Wait for the derivative."""
        self._ready.wait()
        return self.derivative


class Pipeline:
    """Stages with the batches in flight.

    ``updates`` changes the parameters by their gradients. ``on_forward`` is called with module and batch at each
    forward pass.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        trainable: Trainable,
        seed: int,
        updates: ModuleUpdates,
    ):
        self.stages, self.seed = list(stages), seed
        self.on_forward: Callable[[int, int], None] = lambda module, batch: None
        self._trainable, self._updates = trainable, updates
        self._tick = 0
        self._fed_batches = 0
        self._targets: dict[int, Any] = {}
        self._samples: dict[int, int] = {}

    @property
    def done(self) -> int:
        """Number of batches whose Steps have been yielded."""
        return max(0, self._tick - len(self.stages) + 1)

    def run(self, batches: Iterable[Batch], backend: Backend) -> Iterator[Step]:
        """Yield one Step for each batch.

        The first of ``batches`` is the one after the last Step, even if it is already in the pipeline: such batches are
        skipped. At the end of ``batches`` the pipeline is drained; the forward passes that modules would have run
        meanwhile are caught up when more batches arrive, with the parameters of their time.
        """
        end = self.done
        for stage in self.stages:
            stage.proceed()
        for batch in batches:
            end += 1
            if end <= self._fed_batches:
                continue
            self._feed(batch)
            if self._fed_batches > self._tick:
                yield from self._advance(backend)
            else:
                self._catch_up(self._fed_batches - 1)
        while self.done < end:
            yield from self._advance(backend)

    def state_dict(self) -> dict[str, Any]:
        """State of the batches in flight; the tensors are the pipeline's own."""
        return {
            "tick": self._tick,
            "fed": self._fed_batches,
            "targets": {batch: _listed(target) for batch, target in self._targets.items()},
            "samples": dict(self._samples),
            "stages": [stage.state_dict() for stage in self.stages],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from copies. Raises: KeyError, ValueError, RuntimeError if the state is of another pipeline."""
        self._tick, self._fed_batches = int(state["tick"]), int(state["fed"])
        self._targets = {
            b: tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, _unlisted(target))
            for b, target in state["targets"].items()
        }
        self._samples = dict(state["samples"])
        for stage, own in zip(self.stages, state["stages"], strict=True):
            stage.load_state_dict(own)

    # ----------------------------------------------------------------------------------------------------------- ticks

    def _feed(self, batch: Batch) -> None:
        x, target = batch
        self._targets[self._fed_batches], self._samples[self._fed_batches] = target, aten.samples_of(x)
        self.stages[0].receive(self._fed_batches, (x, None))
        self._fed_batches += 1

    def _advance(self, backend: Backend) -> Iterator[Step]:
        with forward_ad.level():
            step = self._run_tick(backend)
        if step is not None:
            for stage in self.stages:
                stage.show(self.done - 1)
            yield step
            for stage in self.stages:
                stage.proceed()

    def _run_tick(self, backend: Backend) -> Step | None:
        turns = [self._tick - k for k in range(len(self.stages))]  # the batch of each module; below 0, none yet
        shared = SharedDerivative()
        calls = [
            partial(self._turn, stage, batch, turns[-1], shared)
            for stage, batch in zip(self.stages, turns, strict=True)
        ]
        results = backend.run(calls, shared.cancel)
        if shared.derivative is not None:
            self._updates.finish(turns[-1])
        for stage, batch, result in zip(self.stages, turns, results, strict=True):
            if result is not None:
                self._pass_on(stage, batch, result)
        self._tick += 1
        if (out := results[-1]) is None:
            return None
        del self._targets[turns[-1]]
        return Step(samples=self._samples.pop(turns[-1]), loss=_loss_of(out))

    def _turn(self, stage: Stage, batch: int, out: int, shared: SharedDerivative) -> ModuleResult | None:
        """Run one module in one tick: the forward pass of ``batch``, then learning from ``out``, the last module's."""
        result = None
        if batch >= self._fed_batches:
            stage.miss(batch)
        elif batch >= 0:
            result = self._work(stage, batch)
        if stage is self.stages[-1]:
            shared.publish(result)
        if (derivative := shared.wait()) is not None:
            stage.learn(derivative, self._key(stage, out))
            self._updates.part(stage.index, out)
        stage.forget(out)
        return result

    def _work(self, stage: Stage, batch: int) -> ModuleResult:
        self.on_forward(stage.index, batch)
        key = self._key(stage, batch)
        if stage is not self.stages[-1]:
            return ModuleResult(stage.forward(key))
        target = tree_map(lambda v: v.to(stage.device) if isinstance(v, Tensor) else v, self._targets[batch])
        if isinstance(stage.perturbed, ExactEnd):
            return ModuleResult(None, *stage.loss_along(key, lambda output: self._trainable.loss(output, target)))
        output = stage.forward(key)
        return ModuleResult(None, *loss_along(self._trainable, *output, target, per_example=False))

    def _pass_on(self, stage: Stage, batch: int, result: ModuleResult) -> None:
        stage.keep(batch)
        if result.output is not None:
            self.stages[stage.index + 1].receive(batch, result.output)

    def _catch_up(self, batch: int) -> None:
        """Run the modules whose turn for this batch came while it was missing, one after the other."""
        with forward_ad.level():
            for stage in self.stages[: self._tick - batch]:
                self.on_forward(stage.index, batch)
                self._pass_on(stage, batch, ModuleResult(stage.forward_late(self._key(stage, batch))))

    def _key(self, stage: Stage, batch: int) -> RandomKey:
        return RandomKey(self.seed, batch, stage.index)


def _loss_of(result: ModuleResult) -> float:
    """The loss; NaN if the derivative is not finite, since such a batch changed nothing."""
    assert result.loss is not None
    assert result.derivative is not None
    loss = float(result.loss)
    return loss if _finite(result.loss, result.derivative) or not math.isfinite(loss) else math.nan


def _finite(loss: Tensor, derivative: Tensor) -> bool:
    return bool(torch.isfinite(loss)) and bool(torch.isfinite(derivative).all())


def _listed(target: Any) -> Any:
    # Checkpoints have lists and dictionaries only; a tuple of targets would come back as a list.
    if isinstance(target, tuple):
        return {"tuple": [_listed(value) for value in target]}
    if isinstance(target, list):
        return [_listed(value) for value in target]
    return target


def _unlisted(target: Any) -> Any:
    if isinstance(target, dict) and target.keys() == {"tuple"}:
        return tuple(_unlisted(value) for value in target["tuple"])
    if isinstance(target, list):
        return [_unlisted(value) for value in target]
    return target
