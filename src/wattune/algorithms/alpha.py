"""How strongly each layer is perturbed, and how that grows in the course of a training.

AsyncFGD starts with a scale of 1 at the classifier and 0 everywhere else for 10 epochs, and "subsequently, alpha is
gradually increased to 0.15 for specific layers". What exactly alpha multiplies, and how it is raised, the paper leaves
open; both readings that fit are here, and a straight line over a stated number of epochs. It is a reconstruction.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023 (experimental settings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from wattune.algorithms.spec import Option, number, one_of, whole
from wattune.errors import InputError

Mode = Literal["tangent", "learning-rate"]
"""What alpha multiplies. "tangent": the direction, u = alpha eps, so that the expected gradient is alpha^2 times the
true one and the layer's share in the noise of all others shrinks with it. "learning-rate": the estimate alone, whose
expectation is then alpha times the true gradient. In both a layer with alpha 0 is not perturbed and stays as it is.
"""


def _names(text: str) -> str:
    names = [name.strip() for name in text.split("+")]
    if not all(names):
        raise ValueError(text)
    return "+".join(names)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class Schedule:
    """The scale of the head is 1, that of ``layers`` at the end ``alpha``, that of everything else 0.

    ``head`` and ``layers`` are names of modules or parameters, joined by "+"; where there are none, the head is the
    last layer with trained parameters, and ``layers`` is every other one. With ``epoch_samples`` (the training samples
    of one epoch) alpha is 0 for ``frozen_epochs`` and then rises in a straight line over ``rise_epochs``; without, it
    is there from the first step.
    """

    alpha: float = 1.0
    alpha_mode: Mode = "tangent"
    head: str = ""
    layers: str = ""
    epoch_samples: int | None = None
    frozen_epochs: float = 10.0
    rise_epochs: float = 10.0

    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "alpha": Option(_share, "0 to 1"),
        "alpha_mode": one_of("tangent", "learning-rate"),
        "head": Option(_names, "names of modules, joined by +"),
        "layers": Option(_names, "names of modules, joined by +"),
        "epoch_samples": whole(1),
        "frozen_epochs": number(-1e-9, "0 and up"),
        "rise_epochs": number(-1e-9, "0 and up"),
    }
    """The options of an algorithm that has this schedule."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Schedule:
        """The schedule from those options of an algorithm that are given."""
        return cls(**{name: value for name, value in options.items() if value is not None})

    @property
    def risen_samples(self) -> float:
        """How many samples of the training it takes until alpha is all there."""
        return 0 if self.epoch_samples is None else self.epoch_samples * (self.frozen_epochs + self.rise_epochs)

    def at(self, samples: float) -> float:
        """Alpha of the layers below the head after so many samples of the training."""
        if self.epoch_samples is None:
            return self.alpha
        risen = samples / self.epoch_samples - self.frozen_epochs
        if risen < 0:
            return 0.0
        return self.alpha * (min(1.0, risen / self.rise_epochs) if self.rise_epochs else 1.0)


class Alpha:
    """A schedule on the parameters of one model, in steps of ``batch_size`` samples; ``step`` counts from 0.

    Raises: InputError for a name that no trained parameter has.
    """

    def __init__(self, model: nn.Module, batch_size: int, schedule: Schedule | None = None):
        self.schedule = schedule or Schedule()
        self.batch_size = batch_size
        trained = {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        self._head = _chosen(trained, self.schedule.head or _last_layer(trained), "head")
        layers = _chosen(trained, self.schedule.layers, "layers")
        self._below = (layers or {id(p) for p in trained.values()}) - self._head

    def scale(self, parameter: nn.Parameter, step: int) -> float:
        """What the random direction of a parameter is multiplied with; 0 where it is not perturbed."""
        alpha = self._alpha(parameter, step)
        return float(alpha > 0) if self.schedule.alpha_mode == "learning-rate" else alpha

    def rate(self, parameter: nn.Parameter, step: int) -> float:
        """What the estimated gradient of a parameter is multiplied with besides."""
        return self._alpha(parameter, step) if self.schedule.alpha_mode == "learning-rate" else 1.0

    def _alpha(self, parameter: nn.Parameter, step: int) -> float:
        if not parameter.requires_grad:
            return 0.0
        if id(parameter) in self._head:
            return 1.0
        return self.schedule.at(step * self.batch_size) if id(parameter) in self._below else 0.0


def _last_layer(trained: Mapping[str, nn.Parameter]) -> str:
    last = list(trained)[-1] if trained else ""
    return last.rpartition(".")[0] or last


def _chosen(trained: Mapping[str, nn.Parameter], names: str, option: str) -> set[int]:
    chosen: set[int] = set()
    for wanted in names.split("+") if names else ():
        found = {id(p) for name, p in trained.items() if name == wanted or name.startswith(wanted + ".")}
        if not found:
            known = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in trained))
            raise InputError(f"{option} of the algorithm", value=wanted, allowed=f"trained layers: {known}")
        chosen |= found
    return chosen
