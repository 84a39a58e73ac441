"""PowerTrain's recipe: networks that predict step time and power of every setting from fifty measured ones.

A network for each of both, of four linear layers with 256, 128, 64 and 1 outputs and ReLU between them, is trained on a
reference workload at all settings. Its last layer is then replaced, and all of it trained further on the settings of
the new workload that were measured. The pick is the fastest setting by the one network whose power is below the cap by
the other. Inputs and outputs are standardized; Adam, mean squared error.

Source: Prashanthi S. K. et al., PowerTrain, Future Generation Computer Systems 2024, arXiv 2407.13944. Numbers of steps
are ours: the paper's 100 epochs and 4,368 settings of the reference become ``PASSES`` over the fewer ones here.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import torch
from torch import nn

from wattune.point import Knobs

PASSES, BATCH, RATE = 100, 32, 1e-3
TRANSFER_STEPS = 300


class Predictor:
    """One quantity as a function of the setting, first of the reference workload: ``values`` at ``settings``."""

    def __init__(self, settings: Sequence[Knobs], values: Sequence[float], seed: int = 0):
        torch.manual_seed(seed)
        inputs, outputs = _inputs(settings), torch.tensor(values)
        self._mean, self._scale = inputs.mean(0), inputs.std(0)
        self._center, self._spread = outputs.mean(), outputs.std()
        sizes = (inputs.shape[1], 256, 128, 64)
        layers: list[nn.Module] = []
        for i, o in itertools.pairwise(sizes):
            layers += [nn.Linear(i, o), nn.ReLU()]
        self._network = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
        steps = PASSES * len(settings) // BATCH
        self._fit(inputs, (outputs - self._center) / self._spread, steps, BATCH)

    def transferred(self, settings: Sequence[Knobs], values: Sequence[float], seed: int) -> Predictor:
        """The same for a new workload, of which these values were measured."""
        torch.manual_seed(seed)
        other, outputs = copy.deepcopy(self), torch.tensor(values)
        other._center, other._spread = outputs.mean(), outputs.std()
        other._network[-1] = nn.Linear(64, 1)
        other._fit(_inputs(settings), (outputs - other._center) / other._spread, TRANSFER_STEPS, len(settings))
        return other

    def predict(self, settings: Sequence[Knobs]) -> list[float]:
        """The values at these settings."""
        with torch.no_grad():
            found = self._network((_inputs(settings) - self._mean) / self._scale).squeeze(1)
        return [float(value) for value in found * self._spread + self._center]

    def _fit(self, inputs: torch.Tensor, outputs: torch.Tensor, steps: int, batch: int) -> None:
        optimizer = torch.optim.Adam(self._network.parameters(), lr=RATE)
        inputs = (inputs - self._mean) / self._scale
        for _ in range(steps):
            rows = torch.randint(len(inputs), (batch,)) if batch < len(inputs) else slice(None)
            loss = nn.functional.mse_loss(self._network(inputs[rows]).squeeze(1), outputs[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _inputs(settings: Sequence[Knobs]) -> torch.Tensor:
    return torch.tensor([list(knobs.values()) for knobs in settings])
