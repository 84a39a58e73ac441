"""AsyncFGD: forward gradients in a pipeline of modules that learn with a delay, and can run in parallel.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023. No code was published; the schedule is a reconstruction.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import nn

from wattune.algorithms.algorithm import part
from wattune.algorithms.base import Batch, Step, Trainable, differentiable_loss
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.forward.blocks import blocks_of
from wattune.algorithms.forward.forward_gradient import Estimate, ForwardGradient, Perturbation
from wattune.algorithms.forward.masks import RandomKey, own
from wattune.algorithms.forward.pipeline import Pipeline, threads
from wattune.algorithms.model_parts import even_ends, parts
from wattune.algorithms.placement import matrix_precision, memory_errors
from wattune.algorithms.spec import SpecOption, one_of, part_numbers, whole
from wattune.errors import InputError, WorkloadError
from wattune.records import StepWork


class AsyncForwardGradient(ForwardGradient):
    """Forward gradients with the model cut into ``modules``, each learning with its own delay, see ``perturbed``.

    K = 1 is the plain forward gradient. The modules have equal numbers of parts, or of blocks with perturbed
    activities, or end with the parts that ``cuts`` names. In one thread a cut changes no time. Each ``run`` begins
    with an empty pipeline, and so does the batch after a call of ``state_dict``: the first K-1 batches from there on
    work with younger parameters.

    With perturbed activities, the default, the last module learns from its exact gradient, and the blocks below it from
    ``directions`` random directions, see ``blocks``; K = 1 is then backpropagation. With central differences
    (``perturb`` "differences", ``distance``) each module gets what the module before makes of both sides. The last
    module learns from its exact gradient too if the loss has one: it begins behind all that cannot be differentiated.

    ``backend`` "sequential" stores the old parameters instead of batches in flight. "threads", with differences alone,
    runs each module in a thread, with the results of "sequential" bit by bit if operations use the same number of
    threads (they get a K-th of PyTorch's, so ``torch.set_num_threads(1)`` for both). With threads, ``run`` takes K-1
    batches more than it has yielded Steps, and yields the rest at the end of its batches.

    The work of a step has up to K-1 copies of a module's trained parameters. That of threads has the same operations,
    and the memory of K working sets in place of one.

    Raises: as ``ForwardGradient``; InputError also for micro-batches and an invalid number of modules, WorkloadError if
    the model is not a sequence.
    """

    NAME: ClassVar[str] = "async-fgd"
    PERTURB: ClassVar[Perturbation] = "activities"

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {
        **ForwardGradient.OPTIONS,
        "modules": whole(1, 64),
        "cuts": part_numbers("modules end with"),
        "backend": one_of("sequential", "threads"),
    }

    MICRO_BATCHES: ClassVar[bool] = False

    def __init__(
        self, trainable: Trainable, batch_size: int, *, micro_batch_size: int | None = None, **options: Any
    ) -> None:
        if micro_batch_size not in (None, batch_size):
            raise InputError(
                "micro-batch size of async-fgd",
                value=micro_batch_size,
                allowed=f"the batch size {batch_size}",
                hint="in a pipeline each micro-batch would have another delay",
            )
        perturb = options.get("perturb", self.PERTURB)
        for name, needed in (("directions", "activities"), ("distance", "differences"), ("backend", "differences")):
            if name in options and perturb != needed:
                raise InputError(f"{name} of async-fgd", value=options[name], allowed=f"with perturb={needed}")
        if "modules" in options and "cuts" in options:
            raise InputError(
                "cuts of async-fgd", value=options["cuts"], allowed="without modules, which follow from them"
            )
        self._cuts = [int(end) for end in options["cuts"].split("/")] if "cuts" in options else []
        self._in_threads = options.get("backend") == "threads"
        self._modules = options.get("modules", 2)
        self._pipeline: Pipeline | None = None
        super().__init__(trainable, batch_size, **options)

    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Train on each batch, see the class; after an error the instance cannot continue."""
        try:
            yield from self._run_threads(batches) if self._in_threads else super().run(batches)
        finally:
            self._restart()
            self._pipeline = None

    @property
    def cuts(self) -> list[int]:
        """Ends of the modules, in parts of the model."""
        return list(self._estimate.ends)

    def state_dict(self) -> dict[str, Any]:
        """Copy on the CPU of the model after its last Step, and of the optimizer.

        No batch is in flight in it: a run under way begins again with those that are, as a resumed one does.
        """
        self._restart()
        return super().state_dict()

    def work(self) -> StepWork:
        """The work of one step. In threads each module has a working set, K-1 of them that of a forward gradient."""
        work, size, ends = super().work(), self.batch_size, self._estimate.ends
        if not self._in_threads:
            return work
        plain = replace(self._estimate, has_exact_end=False)
        alone = step_counting.step_work(self._trainable, self.module, self._optimizer, size, size, plain)
        old = [p for stage in self.stages for p in stage.trained * (len(ends) - 1 - stage.index)]
        old_bytes = sum(p.numel() * p.element_size() for p in old)
        # A small evaluation takes what is there always: parameters, gradients, the optimizer's state.
        set_bytes = max(0.0, alone.peak_memory_bytes - self.evaluation_work(1).peak_memory_bytes - old_bytes)
        peak_bytes = work.peak_memory_bytes + (len(ends) - 1) * set_bytes
        return work.model_copy(update={"peak_memory_bytes": peak_bytes})

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _cut(self, estimate: Estimate) -> Estimate:
        if self._modules == 1:
            return replace(estimate, ends=(1,))
        layers, exact = parts(self.module), False
        if self._cuts and self._cuts[-1] >= len(layers):
            allowed = f"1 to {len(layers) - 1}, for the model has {len(layers)} parts"
            raise InputError("cuts of async-fgd", value=self._cuts[-1], allowed=allowed)
        ends = [*self._cuts, len(layers)] if self._cuts else self._even_ends(layers, estimate.perturb)
        if estimate.perturb == "differences":
            first = self._differentiable_from(layers)
            begin = ends[-2] if self._cuts else max(ends[-2], first)
            exact = begin >= first and any(p.requires_grad for layer in layers[begin:] for p in layer.parameters())
            ends[-2] = begin if exact else ends[-2]
        return replace(estimate, ends=tuple(ends), has_exact_end=exact)

    def _even_ends(self, layers: Sequence[nn.Module], perturb: Perturbation) -> list[int]:
        """Ends of modules with equal numbers of parts, the last ones with one more, for the end may be exact.

        With activities of blocks: no perturbation comes between a layer and its activation.
        """
        unit, groups = ("blocks", blocks_of(layers)) if perturb == "activities" else ("parts", [[x] for x in layers])
        if self._modules > len(groups):
            allowed = f"1 to {len(groups)}, the number of the model's {unit}"
            raise InputError("number of modules", value=self._modules, allowed=allowed)
        starts = list(accumulate(map(len, reversed(groups))))
        behind = [starts[count - 1] for count in even_ends(len(groups), self._modules)]
        return [len(layers) - count for count in (*behind[-2::-1], 0)]

    def _differentiable_from(self, layers: Sequence[nn.Module]) -> int:
        """The first part whose input the loss has a gradient for, by trying: the number of parts if there is none."""
        inputs, first = [], len(layers)
        with self._trial() as (x, y), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loss that makes a number of its output has no gradient
            with torch.no_grad():
                for layer in layers:
                    inputs.append(x)
                    x = layer(own(layer, x))
            try:
                leaf = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(differentiable_loss(self._trainable, leaf, y), leaf)
                for place in range(len(layers) - 1, 0, -1):
                    leaf = inputs[place].detach().requires_grad_()
                    (slope,) = torch.autograd.grad(layers[place](own(layers[place], leaf)), leaf, slope)
                    first = place
            except (RuntimeError, WorkloadError):  # whatever a layer says that is not differentiable
                pass
        return first

    def _run_threads(self, batches: Iterable[Batch]) -> Iterator[Step]:
        self.module.train()
        source = iter(batches)
        with threads(len(self.stages)) as pool:
            self._pipeline = pipeline = Pipeline(self.stages, self._trainable, pool)
            while True:
                batch = pipeline.again.popleft() if pipeline.again else next(source, None)
                if batch is None and not pipeline.in_flight:
                    return
                with memory_errors(f"a step with batches of {self.batch_size}"):
                    step = self._tick(pipeline, batch)
                if step is not None:
                    yield step

    def _tick(self, pipeline: Pipeline, batch: Batch | None) -> Step | None:
        """Advance all batches by one module, and learn from the one that comes to the end."""
        if batch is not None:
            batch = part(batch, 0, samples_of(batch), self._device)
        self._optimizer.zero_grad(set_to_none=True)
        with matrix_precision(self._device.type, self._trainable.data_type):
            ended = pipeline.advance(batch, RandomKey(self._seed, self._step + len(pipeline.in_flight)))
        return None if ended is None else self._update(samples_of(ended.batch), *ended.value)

    def _restart(self) -> None:
        """Begin the delays with the next batch."""
        for stage in self.stages:
            stage.forget()
        if self._pipeline is not None:
            self._pipeline.restart()
