"""AsyncFGD: forward gradients in a pipeline of modules that learn with a delay, and can run in parallel.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023. No code was published; the schedule is a reconstruction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from wattune.algorithms.base import Batch, Step, Trainable, TrainingAlgorithm
from wattune.algorithms.counting import step_counting
from wattune.algorithms.forward import forward_ad, partition
from wattune.algorithms.forward.alpha import Alpha, Schedule
from wattune.algorithms.forward.blocks import PerturbedBlocks, blocks_of
from wattune.algorithms.forward.forward_ad import check_forward_data_type, check_supported
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Perturb
from wattune.algorithms.forward.pipeline import Pipeline
from wattune.algorithms.forward.stage import DualValue, ModuleUpdates, PerturbedModule, Stage
from wattune.algorithms.forward.tick import BACKENDS, Tick, backend, exact_parameters, modules_of, perturbed_of
from wattune.algorithms.model_parts import parts
from wattune.algorithms.placement import matrix_precision, memory_errors
from wattune.algorithms.spec import SpecOption, format_spec, one_of, whole
from wattune.algorithms.stepwise import build_model, check_sizes, cpu_copy, preserved, state_errors
from wattune.errors import InputError
from wattune.records import StepWork

COUNTED_SAMPLES = 32
"""Samples of the batch for counting the costs of parts: enough to compare them, and fast."""


def _cuts(text: str) -> str:
    if text not in ("counted", "measured"):
        ends = [int(end) for end in text.split("-")]
        if ends[0] < 1 or any(a >= b for a, b in pairwise(ends)):
            raise ValueError(text)
    return text


class AsyncForwardGradient(TrainingAlgorithm):
    """Forward gradients with the model cut into ``modules``, each learning with its own delay.

    Module k of K works on a batch with parameters that are K-1-k updates old, since its derivative comes from the end
    of the pipeline. K = 1 is the plain forward gradient. ``run`` takes K-1 batches more than it has yielded Steps, and
    yields the rest at the end of its batches.
    Stopped early, it keeps the batches in flight, and the next ``run`` expects the batches from the first one without a
    Step on; it skips those that are already in the pipeline.

    With perturbed activities the last module learns from its exact gradient, and the blocks below it from
    ``directions`` random directions, see ``blocks``; K = 1 is then backpropagation.

    ``backend`` "threads" runs each module in a thread; its results equal those of "sequential" bit by bit if operations
    use the same number of threads (they get a K-th of PyTorch's, so ``torch.set_num_threads(1)`` for both).
    ``devices``: device of each module; None: ``on`` for all. ``cuts``: where to cut the model: by the costs of its
    parts, "counted" (the same in every process) or "measured" now, or at given ends, as in "2-5-7" for three modules.

    The work of a step is that of one tick of the full pipeline: K modules, which run one after another on a single
    accelerator (such as a simulated board), and the memory of everything that waits between them. For each of the K-1
    batches in flight this is one pair of activations and tangent; perturbed activities add the input of every module
    that the batch has passed and a copy of that module's parameters. (Threads have K working sets instead of one, and
    store each direction of weights until its derivative arrives, instead of drawing it again.)

    Raises: InputError for invalid batch size, micro-batches, data type or cuts; WorkloadError without trainable
    parameters, or if the model is not a sequence or does not run with tangents; OutOfDeviceMemory if it does not fit.
    """

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {
        "modules": whole(1, 64),
        "perturb": one_of("weights", "activities"),
        "directions": whole(1, 64),
        "backend": one_of(*BACKENDS),
        "cuts": SpecOption(_cuts, "counted, measured, or the ends of the modules in parts of the model, as in 2-5-7"),
        **Schedule.OPTIONS,
    }

    MICRO_BATCHES: ClassVar[bool] = False

    def __init__(
        self,
        trainable: Trainable,
        batch_size: int,
        *,
        micro_batch_size: int | None = None,
        seed: int = 0,
        on: torch.device | None = None,
        devices: Sequence[torch.device] | None = None,
        **options: Any,
    ) -> None:
        check_sizes(batch_size, micro_batch_size)
        if micro_batch_size not in (None, batch_size):
            raise InputError(
                "micro-batch size of async-fgd",
                value=micro_batch_size,
                allowed=f"the batch size {batch_size}",
                hint="in a pipeline each micro-batch would have another delay",
            )
        check_forward_data_type(trainable.data_type)
        if options.get("perturb") != "activities" and "directions" in options:
            raise InputError("directions of async-fgd", value=options["directions"], allowed="with perturb=activities")
        self.name = format_spec("async-fgd", options)
        self.batch_size = batch_size
        self._trainable, self._options, self._seed, self._devices = trainable, options, seed, devices
        self.module, self._device = build_model(trainable, seed, on)
        self._schedule = Schedule.of({k: v for k, v in options.items() if k in Schedule.OPTIONS})
        self._handles: list[RemovableHandle] = []
        self._build(self._measure())
        check_supported(trainable, self.module, self._optimizer, self._tick())

    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Train on each batch, see the class; after an error the instance cannot continue."""
        self.module.train()
        threads = backend(self._backend, len(self.cuts))
        try:
            steps = self._pipeline.run(batches, threads)
            while True:
                with (
                    memory_errors(f"a step with batches of {self.batch_size}"),
                    matrix_precision(self._device.type, self._trainable.data_type),
                ):
                    step = next(steps, None)
                if step is None:
                    return
                yield step
        finally:
            threads.close()

    def work(self) -> StepWork:
        """The work of one tick of the full pipeline, when every layer that ever learns is learning.

        Raises: WorkloadError if it cannot be run.
        """
        return step_counting.step_work(
            self._trainable, self.module, self._optimizer, self.batch_size, self.batch_size, self._tick()
        )

    def evaluation_work(self, samples: int) -> StepWork:
        """The work of a forward pass over ``samples`` samples. Raises: WorkloadError."""
        return step_counting.evaluation_work(self._trainable, self.module, self._optimizer, samples)

    @property
    def done(self) -> int:
        """Number of Steps since the start of the run."""
        return self._pipeline.done

    @property
    def pipeline(self) -> Pipeline:
        """The stages and the batches in flight."""
        return self._pipeline

    def state_dict(self) -> dict[str, Any]:
        """Copy on the CPU of the model after its last Step, the optimizer, and the batches in flight."""
        state: dict[str, Any] = {
            "module": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "seed": self._seed,
            "cuts": self.cuts,
            "directions": self._directions,
            "pipeline": self._pipeline.state_dict(),
        }
        copy: dict[str, Any] = cpu_copy(state)
        return copy

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``, with its cuts. Raises: InputError if it belongs to another model."""
        with state_errors():
            if state.get("heads"):
                raise ValueError("it is of a run with local losses, which are no longer supported")
            if self._perturb == "activities" and state.get("directions") != self._directions:
                raise ValueError("its batches in flight have other perturbed activities; train from the beginning")
            self._seed = int(state["seed"])
            self._build([int(end) for end in state["cuts"]])
            self.module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(cpu_copy(state["optimizer"]))
            self._pipeline.load_state_dict(state["pipeline"])

    # ---------------------------------------------------------------------------------------------------------- pieces

    @property
    def _perturb(self) -> Perturb:
        perturb: Perturb = self._options.get("perturb", "weights")
        return perturb

    @property
    def _directions(self) -> int:
        return int(self._options.get("directions", 1))

    @property
    def _backend(self) -> str:
        return str(self._options.get("backend", "sequential"))

    def _tick(self) -> Tick:
        return Tick(tuple(self.cuts), self._perturb, self._directions, self._schedule, self._shapes)

    def _measure(self) -> list[int]:
        """Run every part with tangents and return the ends of the modules."""
        how, modules = self._options.get("cuts", "counted"), self._options.get("modules")
        ends = None if how in ("counted", "measured") else [int(end) for end in how.split("-")]
        if modules is None:
            modules = 2 if ends is None else len(ends)
        layers = parts(self.module) if modules > 1 else [self.module]
        if ends is not None and (len(ends) != modules or ends[-1] != len(layers)):
            raise InputError("cuts of async-fgd", value=how, allowed=f"{modules} ends, the last {len(layers)}")
        cost: partition.Cost = partition.measured if how == "measured" else partition.counted
        samples = self.batch_size if how == "measured" else min(self.batch_size, COUNTED_SAMPLES)
        alpha = Alpha(self.module, self.batch_size, self._schedule)
        groups = [[layer] for layer in layers]
        if self._perturb == "activities":  # and no perturbation between a layer and its activation
            groups = blocks_of(layers)
            units: Sequence[PerturbedModule] = [
                PerturbedBlocks(nn.Sequential(*group), alpha, self._directions) for group in groups
            ]
        else:
            units = perturbed_of(layers, self._perturb, alpha, 1)
        final_step = math.ceil(self._schedule.ramp_samples / self.batch_size)
        costs = partition.costs(self._trainable, units, samples, cost, step=final_step)
        self._shapes = tuple(c.shape for c, group in zip(costs, groups, strict=True) for _ in group)
        if ends is not None:
            return ends
        sizes = [0, *accumulate(len(group) for group in groups)]
        return [sizes[end] for end in partition.cut([c.seconds for c in costs], modules)]

    def _build(self, ends: list[int]) -> None:
        self.cuts = ends
        devices = list(self._devices or [self._device] * len(ends))
        if len(devices) != len(ends):
            raise InputError("devices of async-fgd", value=len(devices), allowed=f"{len(ends)}, one for each module")
        modules = modules_of(self.module, ends)
        for module, device in zip(modules, devices, strict=True):
            module.to(device)
        if len(set(devices)) > 1:
            self._follow(modules)
        self._optimizer = self._trainable.optimizer(self.module, self.batch_size)
        alpha = Alpha(self.module, self.batch_size, self._schedule, exact_parameters(modules, self._perturb))
        perturbed = perturbed_of(
            modules, self._perturb, alpha, self._directions, side_by_side=self._backend == "threads"
        )
        stages = [
            Stage(k, p, len(ends) - 1 - k, device=device)
            for k, (p, device) in enumerate(zip(perturbed, devices, strict=True))
        ]
        self._rehearse(stages)
        updates = ModuleUpdates(self._optimizer, [list(stage.module.parameters()) for stage in stages], alpha)
        self._pipeline = Pipeline(stages, self._trainable, self._seed, updates)

    def _follow(self, modules: Sequence[nn.Module]) -> None:
        """Let the whole model be evaluated across devices: move each module's input to its device."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for module in modules:
            if (here := next((p.device for p in module.parameters()), None)) is not None:
                first = next(iter(module.children()))
                self._handles.append(first.register_forward_pre_hook(partial(_to, here)))

    def _rehearse(self, stages: Sequence[Stage]) -> None:
        """Run a forward pass without learning, so that one-time detection in the modules precedes the first batch, in a
        resumed run as in a new one."""
        dual_input: DualValue = self._trainable.example(min(2, self.batch_size))[0], None
        modules = [stage.module for stage in stages]
        with preserved(modules), forward_ad.level(), memory_errors("a forward pass with tangents"):
            for stage in stages:
                dual_input = stage.perturbed.dual(*stage.here(dual_input), RandomKey(self._seed, 0, stage.index))


def _to(device: torch.device, _: nn.Module, inputs: Any) -> Any:
    return tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, inputs)
