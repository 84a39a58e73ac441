"""Scalars instead of arrays: clients train by forward gradients, and the server rebuilds their weights from seeds.

A step moves all P weights along directions u (P,) ~ N(0, I), which follow from a seed, by the derivatives
s = grad L . u along them. So the s of a round, one number for each direction of each step, say all that a client has
learned: the server draws the same directions and takes the same optimizer steps, from the arrays that it sent.

Source: Baydin et al. 2022, arXiv 2202.08587 (forward gradients); Qin et al. 2024, arXiv 2312.06353 (seeds and scalars
on the wire, with central differences and a fixed set of seeds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from torch import Tensor, nn

from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Perturbed
from wattune.errors import InputError
from wattune.integrations.flower_client import LOCAL_STEPS

SCALARS = "wattune-scalars"
"""Record of a reply, in place of its arrays; also its entry with the derivatives: float32, little-endian, the
directions of a step side by side."""

SEED = "wattune-seed"
"""Entry of the configuration and of ``SCALARS``: the seed of a client's directions in a round."""


def seed_of(server_round: int, node: int) -> int:
    """The seed of a client in a round."""
    (seed,) = np.random.SeedSequence([server_round, node]).generate_state(1, np.uint64)
    return int(seed) >> 1  # Flower's integers have a sign


class LocalTraining(NamedTuple):
    """A client's part of a round.

    ``record``: to reply with as ``wattune-scalars``, in place of the arrays; ``model``: the trained one; ``loss``: the
    mean of the steps, NaN without one.
    """

    record: ConfigRecord
    model: nn.Module
    loss: float


@dataclass(frozen=True)
class ScalarTraining:
    """Local training of which a client sends scalars only. Clients and ``FleetStrategy(scalars=...)`` have equal ones.

    ``network``: builds the model, whose parameters come from the server. ``optimizer``: makes the optimizer of a
    model's parameters; each round begins with a new one, so that the server can take the same steps: any of torch's
    that need nothing but gradients. ``loss``: the mean loss (a scalar) of an output and its targets. ``directions``: of
    a step; the variance of its gradient falls with their number.
    """

    network: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[Tensor, Any], Tensor]
    directions: int = 1

    def __post_init__(self) -> None:
        """Check the number of directions. Raises: InputError."""
        if self.directions < 1:
            raise InputError("directions", value=self.directions, allowed="1 or more")

    def train(self, message: Message, batches: Iterable[tuple[Any, Any]]) -> LocalTraining:
        """Take the local steps that a strategy's message asks for, each with the inputs and targets of a batch.

        Raises: InputError for a message without a seed, or a model that the server could not rebuild; WorkloadError for
        a loss without a gradient, or a random operation other than dropout.
        """
        config: Any = next(iter(message.content.config_records.values()), {})
        if SEED not in config:
            raise InputError("the message has no seed", hint="give FleetStrategy its scalars=")
        replica = _Replica(self, next(iter(message.content.array_records.values())))
        buffers = {name: buffer.clone() for name, buffer in replica.model.named_buffers()}
        losses, derivatives = [], []
        for step, (x, y) in enumerate(islice(batches, config[LOCAL_STEPS])):
            key = RandomKey(config[SEED], step)
            loss, own = replica(x, y, key)
            replica.update(key, own)
            losses.append(float(loss))
            derivatives.append(own)
        for name, buffer in replica.model.named_buffers():
            if not buffer.equal(buffers[name]):
                raise InputError(
                    "a buffer of the model that changes in training, of which scalars say nothing",
                    value=name,
                    allowed="buffers that stay as they are",
                    hint="use group normalization instead of batch normalization",
                )
        if derivatives and not any(bool(torch.isfinite(own).all()) for own in derivatives):
            raise InputError("no step of the round has finite derivatives", hint="lower the learning rate")
        numbers = torch.stack(derivatives).numpy().astype("<f4") if derivatives else np.zeros(0, "<f4")
        record = ConfigRecord({SEED: config[SEED], SCALARS: numbers.tobytes()})
        return LocalTraining(record, replica.model, fmean(losses) if losses else math.nan)

    def rebuilt(self, arrays: ArrayRecord, reply: Any, seed: int, steps: int) -> ArrayRecord:
        """The arrays of the client that replied this ``SCALARS`` record, which was asked for ``steps`` from ``arrays``.

        Raises: InputError for scalars of another seed (a late reply, of another round), or more or other ones than
        those of the steps.
        """
        if reply.get(SEED) != seed:
            raise InputError("scalars of another round or client", value=reply.get(SEED), allowed=f"the seed {seed}")
        own, step_bytes = reply.get(SCALARS), 4 * self.directions
        if not isinstance(own, bytes) or len(own) % step_bytes or len(own) > steps * step_bytes:
            value = f"{len(own)} bytes" if isinstance(own, bytes) else type(own).__name__
            raise InputError("scalars", value=value, allowed=f"{step_bytes} bytes for each of up to {steps} steps")
        replica = _Replica(self, arrays)
        numbers = np.frombuffer(own, "<f4").astype(np.float32).reshape(-1, self.directions)
        for step, derivatives in enumerate(torch.from_numpy(numbers)):
            replica.update(RandomKey(seed, step), derivatives)
        return ArrayRecord(replica.model.state_dict())


class _Replica(nn.Module):
    """A copy of the global model, which learns from its own derivatives or from those of a client.

    Its forward pass is all passes of a step: a simulated board counts them from the call of the first module on.
    """

    def __init__(self, training: ScalarTraining, arrays: ArrayRecord):
        super().__init__()
        self.model = training.network()
        if others := {p.device.type for p in self.model.parameters()} - {"cpu"}:
            raise InputError(
                "device of a model that is trained by scalars",
                value=", ".join(sorted(others)),
                allowed="cpu: other devices draw other numbers from the same seed",
            )
        self.model.load_state_dict(arrays.to_torch_state_dict())
        self.train()
        self._training = training
        self._perturbed = Perturbed(self.model, Alpha(self.model, batch_size=1))
        self._optimizer = training.optimizer(self.model)

    def forward(self, x: Any, y: Any, key: RandomKey) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch, and its derivatives (directions,) as float32."""
        with forward_ad.level():
            passes = [
                self._perturbed.loss_along(x, None, lambda output: self._training.loss(output, y), at)
                for at in self._keys(key)
            ]
        return passes[0][0], torch.stack([s.float() for _, s in passes])

    def update(self, key: RandomKey, derivatives: Tensor) -> None:
        """Take the step of these derivatives (directions,); none if one of them is not finite."""
        if not bool(torch.isfinite(derivatives).all()):
            return
        self._optimizer.zero_grad(set_to_none=True)
        for at, s in zip(self._keys(key), derivatives, strict=True):
            self._perturbed.add_gradient(None, s, at, 1 / self._training.directions)
        self._optimizer.step()

    def _keys(self, key: RandomKey) -> list[RandomKey]:
        return [key._replace(direction=direction) for direction in range(self._training.directions)]
