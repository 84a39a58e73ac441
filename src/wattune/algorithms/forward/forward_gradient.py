"""Forward gradients: training without a backward pass, from derivatives along random directions.

One dual forward pass gives the loss and its derivative s = grad L . u along a random direction u; s u is an unbiased
estimate of the gradient. No activations are stored, so the memory of a step does not grow with the model's depth. The
price is the estimate's variance, P + 1 times the squared gradient for P perturbed parameters: it takes many more
samples to target than backpropagation.

Source: Baydin et al. 2022, arXiv 2202.08587; Ren et al. 2023, arXiv 2210.03310 (activities); Malladi et al. 2023,
arXiv 2305.17333, and Spall 1992 (central differences).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from wattune.algorithms.algorithm import TrainingAlgorithm, part, preserved, state_errors, warn_of_untrained
from wattune.algorithms.base import Batch, Step, Trainable, evaluated_loss
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.counting.step_counting import model_errors
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import FINAL_STEP, Alpha, Schedule
from wattune.algorithms.forward.blocks import ExactEnd, PerturbedBlock, blocks_of
from wattune.algorithms.forward.forward_ad import derivative_errors
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Differences, DualValue, Perturbed, Stage
from wattune.algorithms.model_parts import parts
from wattune.algorithms.placement import matrix_precision, memory_errors
from wattune.algorithms.spec import SpecOption, format_spec, number, one_of, whole
from wattune.errors import InputError

Perturbation = Literal["weights", "activities", "differences"]

DISTANCE = 1e-3
"""Distance of a central difference to either side. Source: Malladi et al. 2023, appendix (epsilon)."""


@dataclass(frozen=True)
class Estimate:
    """The estimator of a gradient; also a pass to be counted, when every layer that ever learns is learning.

    ``ends``: ends of modules with delays, in parts of the model; without, there are no delays. ``has_exact_end``: the
    last of several modules with central differences has its exact gradient, as it has with perturbed activities.
    """

    perturb: Perturbation = "weights"
    directions: int = 1
    distance: float = DISTANCE
    schedule: Schedule = field(default_factory=Schedule)
    ends: tuple[int, ...] = ()
    has_exact_end: bool = False

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Add the estimate of one batch to the gradients of a copy of the model."""
        samples = samples_of(batch)
        stages = self.stages(module, samples)
        older = []
        for stage in stages:
            stage.remember()  # one copy in each step; the older ones are there already
            older += [torch.empty_like(p) for p in stage.trained for _ in range(stage.lag - 1)]
        with self.running():
            self.add(stages, trainable, batch, RandomKey(0, FINAL_STEP))

    def stages(self, model: nn.Module, batch_size: int) -> list[Stage]:
        """Perturb the modules of a model. A last one with its exact gradient is the head of the schedule.

        With perturbed activities a stage is a block, and without ``ends`` the last block has its exact gradient.

        Raises: WorkloadError if the model has to be cut and has no parts.
        """
        activities, groups = self.perturb == "activities", [[model]]
        if len(self.ends) > 1 or (activities and not self.ends):
            layers = parts(model)
            ends = self.ends or {len(layers) - len(blocks_of(layers)[-1]), len(layers)}
            groups = [layers[a:b] for a, b in pairwise(sorted({0, *ends}))]
        *below, last = [nn.Sequential(*group) for group in groups]
        exact = activities or self.has_exact_end
        alpha = Alpha(model, batch_size, self.schedule, last.parameters() if exact else None)
        stages: list[Stage] = []
        for lag, module in zip(range(len(below), -1, -1), [*below, last], strict=True):
            lag = lag if self.ends else 0
            if exact and module is last:
                stages.append(ExactEnd(module, alpha, len(stages), None if activities else self.distance))
            elif activities:
                for block in blocks_of([*module]):
                    stages.append(PerturbedBlock(block, alpha, self.directions, len(stages), lag))
            elif self.perturb == "differences":
                stages.append(Differences(module, alpha, self.distance, len(stages), lag))
            else:
                stages.append(Perturbed(module, alpha, len(stages), lag))
        return stages

    def running(self) -> AbstractContextManager[None]:
        """Context of a step. Raises: InputError if another thread uses forward mode."""
        return torch.no_grad() if self.perturb == "differences" else forward_ad.level()

    def add(
        self, stages: Sequence[Stage], trainable: Trainable, batch: Batch, key: RandomKey, share: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Add ``share`` times the estimate of a (micro-)batch to the gradients, within ``running``.

        Returns: its mean loss, and the sum of the absolute derivatives, which is finite if each of them is.
        """
        passes = 1 if self.perturb == "activities" else self.directions  # all directions of activities at once
        losses, sizes = [], []
        for direction in range(passes):
            (x, y), keys = batch, [key._replace(direction=direction, module=stage.index) for stage in stages]
            value: DualValue = x, None
            for stage, own in zip(stages[:-1], keys, strict=False):
                with stage.delayed():
                    value = stage.dual(*value, own)
            loss, derivative = stages[-1].loss_along(*value, partial(evaluated_loss, trainable, target=y), keys[-1])
            del value  # the tangents
            for stage, own in zip(stages, keys, strict=True):
                with stage.delayed():
                    x = stage.add_gradient(x, derivative, own, share / passes)
            losses.append(loss)
            sizes.append(derivative.abs().sum())
        return torch.stack(losses).mean(), torch.stack(sizes).sum()


class ForwardGradient(TrainingAlgorithm):
    """Forward gradients on one torch device, one batch after the other.

    ``perturb``: "weights": one direction for the whole batch; "activities": the last block has its exact gradient, and
    the outputs of the others one direction per example, with less variance, for sequential models in which examples do
    not interact (no batch normalisation after a perturbed block), see ``blocks``; "differences": central differences of
    the loss along a direction of the weights, at ``distance`` to either side, which need no forward derivatives but
    have a bias and rounding errors. ``directions``: number of directions to average; the variance falls with it.

    A batch larger than ``micro_batch_size`` is processed in micro-batches, each with its own directions: the variance
    of the mean is smaller than that of one direction for all. Directions and dropout masks depend on ``seed`` and the
    number of the step, and are drawn again when needed. A step whose loss or derivative is not finite changes no
    parameter, and its Step's loss is not finite.

    The other options are those of ``alpha.Schedule``.

    With activities, a warning names trainable parameters that have no gradient, below a layer without a derivative.

    Raises: InputError for invalid sizes, layers or data type, or for activities of a model whose examples interact;
    WorkloadError if an operation of the model has no forward derivative, or for activities of a model without parts;
    OutOfDeviceMemory if model or step do not fit.
    """

    NAME: ClassVar[str] = "forward-gradient"
    PERTURB: ClassVar[Perturbation] = "weights"
    """Default of the option ``perturb``."""

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {
        "perturb": one_of("weights", "activities", "differences"),
        "directions": whole(1),
        "distance": number(sys.float_info.min, "above 0"),
        **Schedule.OPTIONS,
    }

    def __init__(
        self,
        trainable: Trainable,
        batch_size: int,
        *,
        micro_batch_size: int | None = None,
        seed: int = 0,
        on: torch.device | None = None,
        **options: Any,
    ) -> None:
        if (name := trainable.data_type) not in ("fp32", "tf32"):
            hint = "backprop trains in fp16 and bf16"
            raise InputError("data type of forward gradients", value=name, allowed="fp32, tf32", hint=hint)
        self.name = format_spec(self.NAME, options)
        super().__init__(trainable, batch_size, micro_batch_size, seed, on)
        self._seed, self._step = seed, 0
        schedule = Schedule(**{name: value for name, value in options.items() if name in Schedule.OPTIONS})
        own = {name: options[name] for name in ("perturb", "directions", "distance") if name in options}
        self._estimate = self._cut(Estimate(**{"perturb": self.PERTURB, **own}, schedule=schedule))
        self.stages = self._estimate.stages(self.module, batch_size)
        self._alpha = self.stages[0].alpha
        self._alpha.check(self._optimizer)
        with self._trial() as few, self._estimate.running():
            self._estimate.add(self.stages, trainable, few, RandomKey(0, FINAL_STEP))
        if self._estimate.perturb == "weights":
            self._check_derivatives_arrive()
        warn_of_untrained(self.module, self._alpha.learning(self.module.parameters(), FINAL_STEP))
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Copy of the model with its buffers, the optimizer, and the key of the directions, on the CPU."""
        return {**super().state_dict(), "seed": self._seed, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``, without changing it. Raises: InputError if it belongs to another model."""
        super().load_state_dict(state)
        with state_errors():
            self._seed, self._step = int(state["seed"]), int(state["step"])

    def _cut(self, estimate: Estimate) -> Estimate:
        """Divide the model into modules with delays, if there are any."""
        return estimate

    @contextmanager
    def _trial(self) -> Iterator[Batch]:
        """Give two samples at most to a step that changes nothing but gradients."""
        samples = min(2, self.batch_size)
        with model_errors(), derivative_errors(), memory_errors("a forward pass"), preserved(self.module):
            yield part(self._trainable.example(samples), 0, samples, self._device)

    def _check_derivatives_arrive(self) -> None:
        """Raise WorkloadError if no derivative of the first parameter that learns reaches the loss.

        It, and others below the same engine outside PyTorch, would learn from noise alone.
        """
        learning = {id(p) for p in self._alpha.learning(self.module.parameters(), FINAL_STEP)}
        name, first = next(((n, p) for n, p in self.module.named_parameters() if id(p) in learning), ("", None))
        if first is None:
            return
        with self._trial() as (x, y), forward_ad.level():
            values = {name: forward_ad.dual(first.detach(), torch.ones_like(first))}
            loss = evaluated_loss(self._trainable, functional_call(self.module, values, (x,)), y)
            if not isinstance(loss, Tensor) or forward_ad.unpacked(loss)[1] is None:
                raise forward_ad.no_derivative(f"a layer above {name}")

    def _pass(self) -> step_counting.TrainingPass:
        return self._estimate

    def _train(self, batch: Batch) -> Step:
        mean, sizes = torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        key = RandomKey(self._seed, self._step)
        self._optimizer.zero_grad(set_to_none=True)
        with matrix_precision(self._device.type, self._trainable.data_type), self._estimate.running():
            for place, (few, share) in enumerate(self._parts(batch)):
                at = key._replace(part=place)
                loss, derivatives = self._estimate.add(self.stages, self._trainable, few, at, share)
                mean, sizes = mean + loss * share, sizes + derivatives
        return self._update(samples_of(batch), mean, sizes)

    def _update(self, samples: int, loss: Tensor, sizes: Tensor) -> Step:
        """Take the optimizer's step, if the loss and ``sizes``, the sum of the derivatives, are finite."""
        mean_loss = float(loss) if math.isfinite(float(sizes)) else math.nan
        for stage in self.stages:
            stage.remember()
        if math.isfinite(mean_loss):
            with self._alpha.applied(self._optimizer, self._step):
                self._optimizer.step()
        self._step += 1
        return Step(samples=samples, loss=mean_loss)
