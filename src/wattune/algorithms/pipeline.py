"""Batches on their way through the modules of a pipeline, tick by tick.

In tick t module k (of K, counted from 0) works on batch t-k: each batch moves on by one module a tick. The last module
has the loss of batch t-K+1 and its derivative along all directions that the batch met, one scalar (weights) or one for
each example (activities), by which every module then updates the parameters it has. So module k works on batch b with
the parameters after ``max(0, b - (K-1-k))`` updates. With losses of their own modules update at once.

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

from wattune.algorithms import forward_ad, operations
from wattune.algorithms.backends import Backend
from wattune.algorithms.base import Batch, Step, Trainable
from wattune.algorithms.perturbed import Perturbed, loss_along
from wattune.algorithms.stage import Passed, Stage
from wattune.algorithms.tangents import Key
from wattune.algorithms.updates import Updates


class Done(NamedTuple):
    """What a module made of a batch in one tick: what it passes on, and the loss and derivative where it has any."""

    passed: Passed
    loss: Tensor | None = None
    derivative: Tensor | None = None


class Found:
    """What the last module has found in a tick, for which the others wait where they run beside it."""

    def __init__(self) -> None:
        self.derivative: Tensor | None = None
        self._told = threading.Event()

    def tell(self, result: Done | None) -> None:
        """The derivative by which all learn: none where no batch has come out, or where it is not a finite number."""
        if result is not None and result.loss is not None and result.derivative is not None:
            self.derivative = result.derivative if _finite(result.loss, result.derivative) else None
        self._told.set()

    def give_up(self) -> None:
        """There will be none: the last module has failed."""
        self._told.set()

    def wait(self) -> Tensor | None:
        """The derivative, once it is there."""
        self._told.wait()
        return self.derivative


class Pipeline:
    """Stages with the batches under way in them.

    ``heads`` gives every module but the last a loss of its own; None is the one loss at the end. ``updates`` changes
    the parameters by their gradients. ``on_forward`` is told of each forward pass: module and batch.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        trainable: Trainable,
        seed: int,
        updates: Updates,
        heads: Sequence[Perturbed] | None = None,
    ):
        self.stages, self.heads, self.seed = list(stages), heads, seed
        self.on_forward: Callable[[int, int], None] = lambda module, batch: None
        self._trainable, self._updates = trainable, updates
        self._per_example = stages[0].perturbed.perturb == "activities"
        self._tick = 0
        self._fed = 0
        self._targets: dict[int, Any] = {}
        self._samples: dict[int, int] = {}

    @property
    def done(self) -> int:
        """Batches whose Steps have come out."""
        return max(0, self._tick - len(self.stages) + 1)

    def run(self, batches: Iterable[Batch], backend: Backend) -> Iterator[Step]:
        """One Step for each batch.

        The first of ``batches`` is the one after the last Step that came out, also where it is in the pipeline
        already: such batches are not taken in again. Whatever is in the pipeline has come out at the end of
        ``batches``; what the modules would have worked on meanwhile, had there been more, they catch up with when more
        come, at the parameters of that time.
        """
        end = self.done
        for stage in self.stages:
            stage.proceed()
        for batch in batches:
            end += 1
            if end <= self._fed:
                continue
            self._feed(batch)
            if self._fed > self._tick:
                yield from self._ticked(backend)
            else:
                self._catch_up(self._fed - 1)
        while self.done < end:
            yield from self._ticked(backend)

    def state_dict(self) -> dict[str, Any]:
        """What is under way; the tensors are the pipeline's own."""
        return {
            "tick": self._tick,
            "fed": self._fed,
            "targets": {batch: _listed(target) for batch, target in self._targets.items()},
            "samples": dict(self._samples),
            "stages": [stage.state_dict() for stage in self.stages],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from copies. Raises: KeyError, ValueError, RuntimeError where the state is of another pipeline."""
        self._tick, self._fed = int(state["tick"]), int(state["fed"])
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
        self._targets[self._fed], self._samples[self._fed] = target, operations.samples_of(x)
        self.stages[0].receive(self._fed, (x, None))
        self._fed += 1

    def _ticked(self, backend: Backend) -> Iterator[Step]:
        with forward_ad.level():
            step = self._ticks(backend)
        if step is not None:
            for stage in self.stages:
                stage.show(self.done - 1)
            yield step
            for stage in self.stages:
                stage.proceed()

    def _ticks(self, backend: Backend) -> Step | None:
        turns = [self._tick - k for k in range(len(self.stages))]  # the batch of each module; below 0, none yet
        found = Found()
        turn = self._turn if self.heads is None else self._turn_alone
        calls = [partial(turn, stage, batch, turns[-1], found) for stage, batch in zip(self.stages, turns, strict=True)]
        results = backend.run(calls, found.give_up)
        if self.heads is not None or found.derivative is not None:
            self._updates.rest()
        for stage, batch, result in zip(self.stages, turns, results, strict=True):
            if result is not None:
                self._passed_on(stage, batch, result)
        self._tick += 1
        if (out := results[-1]) is None:
            return None
        del self._targets[turns[-1]]
        return Step(samples=self._samples.pop(turns[-1]), loss=_loss_of(out))

    def _turn(self, stage: Stage, batch: int, out: int, found: Found) -> Done | None:
        """One module in one tick: its forward pass of ``batch``, and what it learns from ``out``, the batch that the
        last module has."""
        result = None
        if batch >= self._fed:
            stage.miss(batch)
        elif batch >= 0:
            result = self._work(stage, batch)
        if stage is self.stages[-1]:
            found.tell(result)
        if (derivative := found.wait()) is not None:
            stage.learn(derivative, self._key(stage, out))
            self._updates.part(stage.index)
        stage.forget(out)
        return result

    def _turn_alone(self, stage: Stage, batch: int, _: int, __: Found) -> Done | None:
        return self._work(stage, batch) if 0 <= batch < self._fed else None

    def _work(self, stage: Stage, batch: int) -> Done:
        self.on_forward(stage.index, batch)
        passed = stage.forward(self._key(stage, batch))
        if self.heads is not None:
            return self._learn_alone(stage, passed, batch)
        return Done(passed, *self._loss(passed, batch, stage)) if stage is self.stages[-1] else Done(passed)

    def _learn_alone(self, stage: Stage, passed: Passed, batch: int) -> Done:
        assert self.heads is not None
        key = self._key(stage, batch)
        if stage is self.stages[-1]:
            loss, derivative = self._loss(passed, batch, stage)
        else:
            head, own = self.heads[stage.index], key._replace(module=len(self.stages) + stage.index)
            loss, derivative = self._loss(head.dual(*passed, own), batch, stage)
            if _finite(loss, derivative):
                head.add_gradient(passed[0], derivative, own)
        if _finite(loss, derivative):
            stage.learn(derivative, key)
        stage.forget(batch)
        self._updates.part(stage.index)
        return Done((passed[0], None), loss, derivative)

    def _loss(self, passed: Passed, batch: int, stage: Stage) -> tuple[Tensor, Tensor]:
        target = tree_map(lambda v: v.to(stage.device) if isinstance(v, Tensor) else v, self._targets[batch])
        return loss_along(self._trainable, *passed, target, per_example=self._per_example)

    def _passed_on(self, stage: Stage, batch: int, result: Done) -> None:
        stage.keep(batch)
        if stage is not self.stages[-1]:
            self.stages[stage.index + 1].receive(batch, result.passed)

    def _catch_up(self, batch: int) -> None:
        """The modules whose turn for this batch has passed while it was not there, one after the other."""
        with forward_ad.level():
            for stage in self.stages[: self._tick - batch]:
                self.on_forward(stage.index, batch)
                if self.heads is None:
                    result = Done(stage.forward_late(self._key(stage, batch)))
                else:
                    result = self._work(stage, batch)
                    self._updates.rest()
                self._passed_on(stage, batch, result)

    def _key(self, stage: Stage, batch: int) -> Key:
        return Key(self.seed, batch, stage.index)


def _loss_of(result: Done) -> float:
    """Not a finite number where the derivative is none: such a batch has changed nothing."""
    assert result.loss is not None
    assert result.derivative is not None
    loss = float(result.loss)
    return loss if _finite(result.loss, result.derivative) or not math.isfinite(loss) else math.nan


def _finite(loss: Tensor, derivative: Tensor) -> bool:
    return bool(torch.isfinite(loss)) and bool(torch.isfinite(derivative).all())


def _listed(target: Any) -> Any:
    # Checkpoints know lists and dictionaries; a tuple of targets would come back as a list.
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
