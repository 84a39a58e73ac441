"""AsyncFGD: forward gradients in a pipeline of modules that learn with a delay, and run side by side.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023. No code of it exists; the schedule is a reconstruction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from wattune.algorithms import counting, cutting, forward_ad
from wattune.algorithms.alpha import Alpha, Schedule
from wattune.algorithms.backends import BACKENDS, backend
from wattune.algorithms.base import Batch, Step, Trainable, TrainingAlgorithm
from wattune.algorithms.local_heads import local_heads
from wattune.algorithms.parts import parts
from wattune.algorithms.perturbed import Perturb, Perturbed
from wattune.algorithms.pipeline import Pipeline
from wattune.algorithms.placement import shortage_said
from wattune.algorithms.precision import matrix_precision
from wattune.algorithms.spec import Option, one_of, whole, written
from wattune.algorithms.stage import Passed, Stage
from wattune.algorithms.stepping import check_sizes, copied, misfit_said, opened, untouched
from wattune.algorithms.supported import check_forward_data_type, check_supported
from wattune.algorithms.tangents import Key
from wattune.algorithms.tick import Headed, Tick, modules_of, perturbed_of
from wattune.algorithms.updates import Updates
from wattune.errors import InputError
from wattune.records import StepWork

COUNTED_SAMPLES = 32
"""Samples of the batch that parts are compared with where their costs are counted: enough, and never long."""


def _cuts(text: str) -> str:
    if text not in ("counted", "measured"):
        ends = [int(end) for end in text.split("-")]
        if ends[0] < 1 or any(a >= b for a, b in pairwise(ends)):
            raise ValueError(text)
    return text


class AsyncForwardGradient(TrainingAlgorithm):
    """Forward gradients with the model cut into ``modules``, each learning with a delay of its own.

    Module k of K works on a batch with parameters that are K-1-k updates old, since the derivative by which it learns
    comes from the end of the pipeline; with ``loss`` "local" each module learns at once from a head of its own. K = 1
    is the plain forward gradient. ``run`` takes K-1 batches more in than Steps have come out, and gives the rest at the
    end of its batches. Stopped early it keeps what is under way, and the next ``run`` wants the batches from the first
    one on that has not come out as a Step; those that are in the pipeline it does not take in again.

    ``backend`` "threads" runs the modules side by side, a thread each; bit by bit it does what "sequential" does where
    operations use the same number of threads (they get a K-th of PyTorch's, so ``torch.set_num_threads(1)`` for both).
    ``devices`` places each module; None is ``on`` for all. ``cuts`` is where the model is cut: at the costs of its
    parts, "counted" (the same in every process) or "measured" now, or at given ends, as in "2-5" for three modules.

    A step asks of a device what one tick asks once the pipeline is full: K modules, which run one after another on a
    single accelerator (a simulated board is one), and the memory of all that waits between them. For each of the K-1
    batches under way that is one pair of activations and tangent; perturbed activities add the input of every module
    that the batch has passed and a copy of that module's parameters, and local losses a copy of the parameters that the
    module had before. (Threads hold K working sets instead of one, and each direction of weights until its derivative
    is there, where it is drawn again otherwise.)

    Raises: InputError for a batch size, micro-batches, a data type or cuts that cannot be; WorkloadError where nothing
    trains, the model is no sequence or does not run with tangents; OutOfDeviceMemory where it does not fit.
    """

    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "modules": whole(1, 64),
        "perturb": one_of("weights", "activities"),
        "loss": one_of("global", "local"),
        "backend": one_of(*BACKENDS),
        "cuts": Option(_cuts, "counted, measured, or the ends of the modules in parts of the model, as in 2-5-7"),
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
                hint="a pipeline of micro-batches would learn from each with another delay",
            )
        check_forward_data_type(trainable.data_type)
        self.name = written("async-fgd", options)
        self.batch_size = batch_size
        self._trainable, self._options, self._seed, self._devices = trainable, options, seed, devices
        self.module, self._device = opened(trainable, seed, on)
        self._schedule = Schedule.of({k: v for k, v in options.items() if k in Schedule.OPTIONS})
        self._handles: list[RemovableHandle] = []
        self._build(self._measure())
        check_supported(trainable, self._headed, self._optimizer, self._tick())

    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Train on each batch, see the class; what an error leaves behind is no training to go on with."""
        self.module.train()
        self._heads.train()
        threads = backend(self._backend, len(self.cuts))
        try:
            steps = self._pipeline.run(batches, threads)
            while True:
                with (
                    shortage_said(f"a step with batches of {self.batch_size}"),
                    matrix_precision(self._device.type, self._trainable.data_type),
                ):
                    step = next(steps, None)
                if step is None:
                    return
                yield step
        finally:
            threads.close()

    def work(self) -> StepWork:
        """What one tick of the full pipeline asks of a device, once every layer is perturbed that ever is.

        Raises: WorkloadError where it cannot be run.
        """
        return counting.step_work(
            self._trainable, self._headed, self._optimizer, self.batch_size, self.batch_size, self._tick()
        )

    def evaluation_work(self, samples: int) -> StepWork:
        """What a forward pass over so many samples asks of a device. Raises: WorkloadError."""
        return counting.evaluation_work(self._trainable, self._headed, self._optimizer, samples)

    @property
    def done(self) -> int:
        """Steps since the training began."""
        return self._pipeline.done

    @property
    def pipeline(self) -> Pipeline:
        """The stages and what is under way in them."""
        return self._pipeline

    def state_dict(self) -> dict[str, Any]:
        """A copy on the CPU of the model as its last Step left it, the optimizer, and all that is under way."""
        state: dict[str, Any] = {
            "module": self.module.state_dict(),
            "heads": self._heads.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "seed": self._seed,
            "cuts": self.cuts,
            "pipeline": self._pipeline.state_dict(),
        }
        copy: dict[str, Any] = copied(state)
        return copy

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``, cut as that training was. Raises: InputError where it is of another model."""
        with misfit_said():
            self._seed = int(state["seed"])
            self._build([int(end) for end in state["cuts"]])
            self.module.load_state_dict(state["module"])
            self._heads.load_state_dict(state["heads"])
            self._optimizer.load_state_dict(copied(state["optimizer"]))
            self._pipeline.load_state_dict(state["pipeline"])

    # ---------------------------------------------------------------------------------------------------------- pieces

    @property
    def _perturb(self) -> Perturb:
        perturb: Perturb = self._options.get("perturb", "weights")
        return perturb

    @property
    def _backend(self) -> str:
        return str(self._options.get("backend", "sequential"))

    @property
    def _local(self) -> bool:
        return bool(self._options.get("loss", "global") == "local")

    @property
    def _headed(self) -> Headed:
        return Headed(self.module, self._heads)

    def _tick(self) -> Tick:
        return Tick(tuple(self.cuts), self._perturb, self._local, self._schedule, self._shapes)

    def _measure(self) -> list[int]:
        """Where to cut, having run every part with tangents."""
        how, modules = self._options.get("cuts", "counted"), self._options.get("modules")
        given = None if how in ("counted", "measured") else [int(end) for end in how.split("-")]
        if modules is None:
            modules = 2 if given is None else len(given)
        found = parts(self.module) if modules > 1 else [self.module]
        if given is not None and (len(given) != modules or given[-1] != len(found)):
            raise InputError("cuts of async-fgd", value=how, allowed=f"{modules} ends, the last {len(found)}")
        cost: cutting.Cost = cutting.measured if how == "measured" else cutting.counted
        samples = self.batch_size if how == "measured" else min(self.batch_size, COUNTED_SAMPLES)
        alpha = Alpha(self.module, self.batch_size, self._schedule)
        single, _ = perturbed_of(found, nn.ModuleList(), self._perturb, alpha, local=self._local)
        risen = math.ceil(self._schedule.risen_samples / self.batch_size)
        costs = cutting.costs(self._trainable, single, samples, cost, step=risen)
        self._shapes = tuple(c.shape for c in costs)
        return given or cutting.cut([c.seconds for c in costs], modules)

    def _build(self, ends: list[int]) -> None:
        self.cuts = ends
        devices = list(self._devices or [self._device] * len(ends))
        if len(devices) != len(ends):
            raise InputError("devices of async-fgd", value=len(devices), allowed=f"{len(ends)}, one for each module")
        self._heads = nn.ModuleList()
        if self._local and len(ends) > 1:
            shapes = [self._shapes[end - 1] for end in ends[:-1]]
            self._heads = local_heads(shapes, self._shapes[-1], self._seed)
            for head, device in zip(self._heads, devices, strict=False):
                head.to(device)
        modules = modules_of(self.module, ends)
        for module, device in zip(modules, devices, strict=True):
            module.to(device)
        if len(set(devices)) > 1:
            self._follow(modules)
        self._optimizer = self._trainable.optimizer(self.module, self.batch_size)
        if self._local and len(ends) > 1:
            self._optimizer.add_param_group({"params": list(self._heads.parameters())})
        perturbed, heads = perturbed_of(
            modules,
            self._heads,
            self._perturb,
            Alpha(self.module, self.batch_size, self._schedule),
            local=self._local,
            side_by_side=self._backend == "threads",
        )
        stages = [
            Stage(k, p, len(ends) - 1 - k, changing=self._changing(p.module), device=device)
            for k, (p, device) in enumerate(zip(perturbed, devices, strict=True))
        ]
        self._rehearse(stages, heads)
        trained = [list(stage.module.parameters()) for stage in stages]
        for own, head_of_own in zip(trained, heads, strict=False):
            own += head_of_own.module.parameters()
        updates = Updates(self._optimizer, trained)
        self._pipeline = Pipeline(stages, self._trainable, self._seed, updates, heads if self._local else None)

    def _follow(self, modules: Sequence[nn.Module]) -> None:
        """The whole model can be evaluated: what a module gives goes to where the next one is."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for module in modules:
            if (here := next((p.device for p in module.parameters()), None)) is not None:
                first = next(iter(module.children()))
                self._handles.append(first.register_forward_pre_hook(partial(_to, here)))

    def _rehearse(self, stages: Sequence[Stage], heads: Sequence[Perturbed]) -> None:
        """One forward pass that nothing is learnt from. What a module finds out about itself in its first pass it then
        knows before the first batch, in a training that goes on as in one that begins."""
        passed: Passed = self._trainable.example(min(2, self.batch_size))[0], None
        modules = [*(stage.module for stage in stages), *(head.module for head in heads)]
        with untouched(modules), forward_ad.level(), shortage_said("a forward pass with tangents"):
            for stage in stages:
                passed = stage.perturbed.dual(*stage.here(passed), Key(self._seed, 0, stage.index))
                if stage.index < len(heads):
                    heads[stage.index].dual(*passed, Key(self._seed, 0, stage.index))

    def _changing(self, module: nn.Module) -> list[Tensor]:
        trained = [p for p in module.parameters() if p.requires_grad] if self._local else []
        return [*module.buffers(), *trained]


def _to(device: torch.device, _: nn.Module, given: Any) -> Any:
    return tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, given)
