"""One tick of a pipeline: its work and memory, counted as one pass, and the backends that run its modules."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Batch, Trainable
from wattune.algorithms.counting import aten
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha, Schedule
from wattune.algorithms.forward.blocks import ExactEnd, PerturbedBlocks
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Perturb, Perturbed, loss_along
from wattune.algorithms.forward.stage import PerturbedModule
from wattune.algorithms.model_parts import parts


@dataclass(frozen=True)
class Tick:
    """One tick of a full pipeline as a pass to be counted: the last module first, so that at most one pair waits in
    each gap between modules. ``shapes``: shapes of the parts' outputs for one sample."""

    ends: tuple[int, ...]
    perturb: Perturb
    directions: int
    schedule: Schedule
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Run the tick on a copy of the model."""
        modules = modules_of(module, self.ends)
        samples, gaps = aten.samples_of(batch), len(self.ends) - 1
        alpha = Alpha(module, samples, self.schedule, exact_parameters(modules, self.perturb))
        perturbed = perturbed_of(modules, self.perturb, alpha, self.directions)
        step = math.ceil(self.schedule.ramp_samples / samples)
        x, target = batch

        def pair(gap: int) -> list[Tensor]:
            shape = samples, *self.shapes[self.ends[gap] - 1]
            values = torch.empty(shape, device=aten.device_of(batch))
            return [values, *(torch.empty_like(values) for _ in range(self.directions))]

        with forward_ad.level():
            # Memory of the batches in flight: their targets, the pairs in the gaps, the inputs and parameters for
            # second forward passes, and the tensors that a batch changes before its Step is yielded.
            targets = [_like(target) for _ in range(gaps)]
            waiting = [pair(gap) for gap in range(gaps)]
            buffers = self._stored(perturbed, x, pair) if self.perturb == "activities" else []
            extra = self._changed(perturbed)
            output: tuple[Any, Tensor | None] = (x, None)
            inputs = []
            for k, stage in enumerate(perturbed):
                if k < gaps:
                    waiting[k] = []  # the next module has taken it
                inputs.append(output[0] if self.perturb == "activities" else None)
                if k < gaps:
                    output = stage.dual(*output, RandomKey(0, step, k))
                    waiting[k] = [t for t in output if t is not None]
                    continue
                if isinstance(stage, ExactEnd):
                    loss_of = partial(_loss, trainable, target)
                    _, derivative = stage.loss_along(*output, loss_of, RandomKey(0, step, k))
                else:
                    output = stage.dual(*output, RandomKey(0, step, k))
                    _, derivative = loss_along(trainable, *output, target, per_example=False)
                for j in range(gaps + 1):
                    source = derivative if inputs[j] is None else inputs[j]
                    perturbed[j].add_gradient(source, derivative, RandomKey(0, step, j))
            del targets, waiting, buffers, extra

    def _changed(self, perturbed: Sequence[PerturbedModule]) -> list[Tensor]:
        result: list[Tensor] = []
        for k, stage in enumerate(perturbed):
            result += [torch.empty_like(t) for _ in range(len(perturbed) - 1 - k) for t in stage.module.buffers()]
        return result

    def _stored(
        self, perturbed: Sequence[PerturbedModule], x: Any, pair: Callable[[int], list[Tensor]]
    ) -> list[list[Any]]:
        buffers = []
        for k, stage in enumerate(perturbed):
            for _ in range(len(perturbed) - 1 - k):
                inputs = _like(x) if k == 0 else pair(k - 1)[0]
                buffers.append([inputs, *(torch.empty_like(p) for p in stage.module.parameters() if p.requires_grad)])
        return buffers


def _loss(trainable: Trainable, target: Any, output: Tensor) -> Tensor:
    return trainable.loss(output, target)


def _like(values: Any) -> Any:
    return tree_map(lambda v: torch.empty_like(v) if isinstance(v, Tensor) else v, values)


def modules_of(model: nn.Module, ends: Sequence[int]) -> list[nn.Module]:
    """Cut the model at these ends into modules that share its layers. Raises: WorkloadError."""
    if len(ends) == 1:
        return [model]
    layers = parts(model)
    return [nn.Sequential(*layers[a:b]) for a, b in pairwise([0, *ends])]


def exact_parameters(modules: Sequence[nn.Module], perturb: Perturb) -> list[nn.Parameter] | None:
    """The parameters that learn from their exact gradient, which are the head of alpha's schedule; None without any."""
    return list(modules[-1].parameters()) if perturb == "activities" else None


def perturbed_of(
    modules: Sequence[nn.Module], perturb: Perturb, alpha: Alpha, directions: int, *, side_by_side: bool = False
) -> list[PerturbedModule]:
    """Make the perturbed modules; with perturbed activities the last one has its exact gradient.

    With perturbed weights the last module learns in the tick of its forward pass, and stores its direction. The others
    draw it again to save memory, unless they run in threads, for speed.
    """
    last = len(modules) - 1
    if perturb == "activities":
        return [
            *(PerturbedBlocks(module, alpha, directions) for module in modules[:last]),
            ExactEnd(modules[last], alpha, directions),
        ]
    keeps = [1 if k == last else (last - k + 1) * side_by_side for k in range(len(modules))]
    return [Perturbed(m, perturb=perturb, alpha=alpha, keep=keep) for m, keep in zip(modules, keeps, strict=True)]


Result = TypeVar("Result")
Call = Callable[[], Result]


class Backend(ABC):
    """Runner of one call for each module, inside the caller's ``forward_ad.level``."""

    @abstractmethod
    def run(self, calls: Sequence[Call[Result]], last_failed: Callable[[], None]) -> list[Result]:
        """Run all calls, and return their results in order. Calls may wait for the result of the last one;
        ``last_failed`` is called if there will be none.

        All calls have ended when it returns or raises; it raises the error of the first call that failed.
        """

    def close(self) -> None:
        """Release its resources."""
        return


class Sequential(Backend):
    """Run the last module first: each takes its input before the module in front of it produces the next one, so that
    at most one pair of activations and tangent waits between two modules."""

    def run(self, calls: Sequence[Call[Result]], last_failed: Callable[[], None]) -> list[Result]:
        """Run one after another in the caller's thread."""
        return [call() for call in reversed(calls)][::-1]


class Threads(Backend):
    """A thread for each module but the last, which runs in the caller's thread.

    PyTorch's operations release Python's global lock, so modules overlap to the extent that their time is in
    operations. Each gets its share of the threads that one operation may use. Between two calls of ``run`` the threads
    wait; ``close`` ends them.
    """

    def __init__(self, modules: int):
        self._share = max(1, torch.get_num_threads() // modules)
        self._results: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._calls: list[SimpleQueue[Call[Any] | None]] = [SimpleQueue() for _ in range(modules - 1)]
        self._threads = [
            threading.Thread(target=self._work, args=(place,), name=f"module {place + 1}", daemon=True)
            for place in range(modules - 1)
        ]
        threads = torch.get_num_threads()
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._results.get()
        torch.set_num_threads(threads)  # a thread that sets its number also changes that of future threads

    def run(self, calls: Sequence[Call[Result]], last_failed: Callable[[], None]) -> list[Result]:
        """Run all concurrently."""
        *others, last = calls
        results: list[Any] = [None] * len(calls)
        failures: dict[int, BaseException] = {}
        waiting = 0
        try:
            for place, call in enumerate(others):
                self._calls[place].put(call)
                waiting += 1
            results[-1] = self._with_share(last)
        except BaseException:
            last_failed()
            raise
        finally:
            for _ in range(waiting):
                place, results[place], failure = self._results.get()
                if failure is not None:
                    failures[place] = failure
        if failures:
            raise failures[min(failures)]
        return results

    def close(self) -> None:
        """End the threads."""
        for calls in self._calls:
            calls.put(None)
        for thread in self._threads:
            thread.join()

    def _with_share(self, call: Call[Any]) -> Any:
        threads = torch.get_num_threads()
        if threads == self._share:
            return call()
        torch.set_num_threads(self._share)
        try:
            return call()
        finally:
            torch.set_num_threads(threads)

    def _work(self, place: int) -> None:
        torch.set_num_threads(self._share)
        self._results.put((place, None, None))
        with torch.no_grad():  # per thread: the caller's does not apply here
            while (call := self._calls[place].get()) is not None:
                try:
                    self._results.put((place, call(), None))
                except BaseException as failure:  # noqa: BLE001 - raised again in the caller's thread
                    self._results.put((place, None, failure))
                del call


BACKENDS = ("sequential", "threads")


def backend(name: str, modules: int) -> Backend:
    """Open the backend of this name."""
    return Threads(modules) if name == "threads" and modules > 1 else Sequential()
