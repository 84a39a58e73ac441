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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from wattune.algorithms import stepwise
from wattune.algorithms.base import Batch, Step, Trainable
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha, Schedule
from wattune.algorithms.forward.forward_ad import check_forward_data_type, check_supported
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Perturb, Perturbed, loss_along
from wattune.algorithms.placement import matrix_precision, memory_errors
from wattune.algorithms.spec import SpecOption, format_spec, number, one_of, whole
from wattune.algorithms.stepwise import Stepwise

Perturbation = Literal["weights", "activities", "differences"]

DISTANCE = 1e-3
"""Distance of a central difference to either side. Source: Malladi et al. 2023, appendix (epsilon)."""


@dataclass(frozen=True)
class Estimate:
    """The estimator of a batch's gradient; also a pass to be counted, when every layer that ever learns is learning."""

    perturb: Perturbation = "weights"
    directions: int = 1
    distance: float = DISTANCE
    schedule: Schedule = field(default_factory=Schedule)

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Add the estimate of one batch to the gradients of a copy of the model."""
        samples = samples_of(batch)
        step = math.ceil(self.schedule.ramp_samples / samples)
        perturbed = self.of(module, Alpha(module, samples, self.schedule))
        with self.running():
            self.add(perturbed, trainable, batch, RandomKey(0, step))

    def of(self, module: nn.Module, alpha: Alpha) -> Perturbed:
        """Make the perturbed module."""
        perturb: Perturb = "activities" if self.perturb == "activities" else "weights"
        return Perturbed(module, perturb=perturb, alpha=alpha, keep=1)

    def running(self) -> AbstractContextManager[None]:
        """Context of a step. Raises: InputError if another thread uses forward mode."""
        return torch.no_grad() if self.perturb == "differences" else forward_ad.level()

    def add(
        self,
        perturbed: Perturbed,
        trainable: Trainable,
        batch: Batch,
        key: RandomKey,
        share: float = 1.0,
        part: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Add ``share`` times the estimate of a micro-batch to the gradients.

        Returns: its mean loss, and the sum of the absolute derivatives, which is finite if each of them is.
        """
        x, y = batch
        share, losses, sizes = share / self.directions, [], []
        for direction in range(self.directions):
            at = key._replace(direction=direction)
            if self.perturb == "differences":
                ahead, behind = (
                    trainable.loss(perturbed.output_at(x, at, distance, part), y)
                    for distance in (self.distance, -self.distance)
                )
                loss, derivative = (ahead + behind) / 2, (ahead - behind) / (2 * self.distance)
            else:
                output, tangent = perturbed.dual(x, None, at, part)
                loss, derivative = loss_along(trainable, output, tangent, y, per_example=self.perturb == "activities")
                del output, tangent
            perturbed.add_gradient(x, derivative, at, share, part)
            losses.append(loss)
            sizes.append(derivative.abs().sum())
        return torch.stack(losses).mean(), torch.stack(sizes).sum()


class ForwardGradient(Stepwise):
    """Forward gradients on one torch device, one batch after the other.

    ``perturb``: "weights": one direction for the whole batch; "activities": one per example, with less variance, for
    models in which examples do not interact (no batch normalisation after a perturbed layer), at the price of a second
    plain forward pass; "differences": central differences of the loss along a direction of the weights, at ``distance``
    to either side, which need no forward derivatives but have a bias and rounding errors. ``directions``: number of
    directions to average; the variance falls with it, and every direction takes its own passes.

    A batch larger than ``micro_batch_size`` is processed in micro-batches, each with its own directions: the variance
    of the mean is smaller than that of one direction for all. Directions and dropout masks depend on ``seed`` and the
    number of the step, and are drawn again when needed. A step whose loss or derivative is not finite changes no
    parameter, and its Step's loss is not finite.

    The other options are those of ``alpha.Schedule``.

    Raises: InputError for invalid sizes, layers or data type, or for activities of a model whose examples interact;
    WorkloadError without trainable parameters, or if an operation of the model has no forward derivative;
    OutOfDeviceMemory if model or step do not fit.
    """

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {
        "perturb": one_of("weights", "activities", "differences"),
        "directions": whole(1),
        "distance": number(0, "above 0"),
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
        perturb: Perturbation | None = None,
        directions: int | None = None,
        distance: float | None = None,
        **schedule: Any,
    ) -> None:
        check_forward_data_type(trainable.data_type)
        super().__init__(trainable, batch_size, micro_batch_size, seed, on)
        options = {"perturb": perturb, "directions": directions, "distance": distance, **schedule}
        self.name = format_spec("forward-gradient", {k: v for k, v in options.items() if v is not None})
        self._seed, self._step = seed, 0
        self._estimate = Estimate(perturb or "weights", directions or 1, distance or DISTANCE, Schedule.of(schedule))
        self._alpha = Alpha(self.module, batch_size, self._estimate.schedule)
        self._alpha.check(self._optimizer)
        self._perturbed = self._estimate.of(self.module, self._alpha)
        check_supported(trainable, self.module, self._optimizer, self._estimate)
        self._rehearse()

    def state_dict(self) -> dict[str, Any]:
        """Copy of the model with its buffers, the optimizer, and the key of the directions, on the CPU."""
        return {
            "module": stepwise.cpu_copy(self.module.state_dict()),
            "optimizer": stepwise.cpu_copy(self._optimizer.state_dict()),
            "seed": self._seed,
            "step": self._step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``, without changing it. Raises: InputError if it belongs to another model."""
        with stepwise.state_errors():
            self.module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(stepwise.cpu_copy(state["optimizer"]))
            self._seed, self._step = int(state["seed"]), int(state["step"])

    def _rehearse(self) -> None:
        """Run a forward pass without learning: the first pass detects whether the model draws random numbers, so it
        differs slightly from later ones."""
        few = stepwise.part(self._trainable.example(min(2, self.batch_size)), 0, 2, self._device)
        with (
            memory_errors("a forward pass"),
            stepwise.preserved([self.module]),
            self._estimate.running(),
        ):
            if self._estimate.perturb == "differences":
                self._perturbed.output_at(few[0], RandomKey(self._seed, 0), 0.0)
            else:
                self._perturbed.dual(few[0], None, RandomKey(self._seed, 0))

    def _pass(self) -> step_counting.TrainingPass:
        return self._estimate

    def _train(self, batch: Batch) -> Step:
        mean, sizes = torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        key = RandomKey(self._seed, self._step)
        self._optimizer.zero_grad(set_to_none=True)
        with matrix_precision(self._device.type, self._trainable.data_type), self._estimate.running():
            for place, (few, share) in enumerate(self._parts(batch)):
                loss, derivatives = self._estimate.add(self._perturbed, self._trainable, few, key, share, place)
                mean, sizes = mean + loss * share, sizes + derivatives
        mean_loss = float(mean)
        if not math.isfinite(float(sizes)):
            mean_loss = math.nan
        if math.isfinite(mean_loss):
            self._make_room()
            with self._alpha.applied(self._optimizer, self._step):
                self._optimizer.step()
        self._step += 1
        return Step(samples=samples_of(batch), loss=mean_loss)
