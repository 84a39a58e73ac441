"""Boards that share a cap, with exact figures: equal shares of the cap, and the best division of it.

Boards whose software waits actively draw as much while they wait as in computing ("spins"). A simulated board that
waits draws its power at rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattune.devices import Device
from wattune.devices.base import ExactStep
from wattune.devices.simulator.board_file import SimulatedBoard
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.loop.step_counter import StepWorkCounter
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import ProfileCell, StepWork

ALIKE = 1 + 1e-9


class Member(NamedTuple):
    """Exact figures of one board: its steps by setting, and its power at rest there."""

    steps: Mapping[Knobs, ExactStep]
    rest_w: Mapping[Knobs, float]

    def mean_w(self, knobs: Knobs, step_s: float, *, spins: bool) -> float:
        """Mean power in a step of the group that takes ``step_s``."""
        own = self.steps[knobs]
        waiting_w = own.power_mean_w if spins else self.rest_w[knobs]
        return (own.power_mean_w * own.step_s + waiting_w * (step_s - own.step_s)) / step_s


def thirstier(board: SimulatedBoard, factor: float) -> SimulatedBoard:
    """The board with ``factor`` times the power at every clock."""
    scaled = {name: value * factor for name, value in board.power.model_dump().items() if "w" in name.split("_")}
    return board.model_copy(update={"power": board.power.model_copy(update=scaled)})


def faster(board: SimulatedBoard, factor: float = 2.0) -> SimulatedBoard:
    """The board with ``factor`` times the speed in everything, at the same power."""
    memory, host = board.memory, board.host
    rates = ("achieved_gbps", "optimizer_gbps", "bandwidth_gbps")
    times = ("s_per_operation", "s_per_optimizer_operation", "sample_factor")
    peaks = {name: gflops * factor for name, gflops in board.gpu.peak_gflops.items()}
    return board.model_copy(
        update={
            "gpu": board.gpu.model_copy(update={"peak_gflops": peaks}),
            "memory": memory.model_copy(update={name: getattr(memory, name) * factor for name in rates}),
            "host": host.model_copy(update={name: getattr(host, name) / factor for name in times}),
        }
    )


def members_of(devices: Sequence[SimulatedDevice], work: StepWork) -> list[Member]:
    """Exact figures of these boards."""
    return [
        Member(exact, {knobs: device._exact_rest_w(knobs) for knobs in exact})
        for device, exact in ((device, device.exact_steps(work)) for device in devices)
    ]


def exact_cells(device: Device, shape: BatchShape, work: StepWork) -> list[ProfileCell]:
    """A profile's cell for each setting of a simulated board, with its exact figures of steps of this work."""
    return [
        ProfileCell(
            **OperatingPoint(shape, knobs).fields(),
            **step._asdict(),
            memory_bytes=work.peak_memory_bytes,
            steps=1,
        )
        for knobs, step in device.exact_steps(work).items()
    ]


def equal_shares(members: Sequence[Member], cap_w: float) -> float | None:
    """Steps a second if each board keeps an equal share of the cap; None if one cannot."""
    paces_s = []
    for member in members:
        below_s = [s.step_s for s in member.steps.values() if s.power_mean_w <= cap_w / len(members)]
        if not below_s:
            return None
        paces_s.append(min(below_s))
    return 1 / max(paces_s)


def best(members: Sequence[Member], cap_w: float, *, spins: bool) -> float | None:
    """Steps a second of the fastest combination below the cap; None without one.

    In a step of a given length one board takes just that long, and each other one draws the least of its settings that
    take no longer: this is the lowest sum of all combinations that take so long.
    """
    for step_s in sorted({step.step_s for member in members for step in member.steps.values()}):
        least_w, extra_w = 0.0, []
        for member in members:
            in_time = {
                knobs: member.mean_w(knobs, max(step_s, own.step_s), spins=spins)
                for knobs, own in member.steps.items()
                if own.step_s <= step_s * ALIKE
            }
            if not in_time:
                break
            least_w += min(in_time.values())
            exact = [watts for knobs, watts in in_time.items() if member.steps[knobs].step_s * ALIKE >= step_s]
            extra_w += [min(exact) - min(in_time.values())] if exact else []
        else:
            if least_w + min(extra_w) <= cap_w:
                return 1 / step_s
    return None


def counted(model: nn.Module, inputs: Tensor, labels: Tensor) -> StepWork:
    """The work of a step of SGD with these samples, counted while it runs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counter = StepWorkCounter(model, optimizer, counts=True)
    counter.open()
    counter.begin("step", [inputs, labels])
    functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    work = counter.end(len(labels), len(labels))
    counter.close()
    return work
