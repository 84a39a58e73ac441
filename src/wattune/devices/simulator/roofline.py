"""Time and power of a step on one processor at one setting of the clocks, from the work of the step.

Time. Within a group of like operations, arithmetic and memory traffic overlap, and the slower one decides
(roofline; Williams, Waterman, Patterson, CACM 52(4), 2009). Groups follow one another, as kernels of one stream do,
and the time in which the host issues an operation is added and not hidden: with the small kernels of training on
such boards the queue runs empty. With the constants of the board files this form matches the published time ratios
of arXiv 2502.18323 (Tables 2 and 4) within 3.5 %. Forms that hide the host behind the GPU, or add arithmetic and
memory, fitted about twice as badly, and memory time that ignores the GPU's clock four times as badly on the Nano.

Power: see ``board_file.Power``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wattune.devices.simulator.board_file import Chip
from wattune.point import Knobs
from wattune.records import Operation, StepWork

REFERENCE_C = 25.0


@dataclass(frozen=True)
class Segment:
    """A stretch of a step with constant power: ``leakage_w`` at 25 degrees, ``steady_w`` for the rest."""

    seconds: float
    steady_w: float
    leakage_w: float

    def power_w(self, leakage_per_degree: float, temperature_c: float) -> float:
        """Power of the board at this temperature of the chip."""
        if leakage_per_degree == 0:
            return self.steady_w + self.leakage_w
        # The exponent is limited to what a chip survives, so that no board file can make the power infinite.
        exponent = min(leakage_per_degree * (temperature_c - REFERENCE_C), 5.0)
        return self.steady_w + self.leakage_w * math.exp(exponent)


def segments(work: StepWork, chip: Chip, knobs: Knobs) -> tuple[Segment, ...]:
    """The step at this setting, as stretches of constant power; their number is the same at every setting."""
    groups = [[_Group.of(operation, work, chip, knobs) for operation in phase.operations] for phase in work.phases]
    exposed = _exposed(groups, chip)
    busy = [_Busy.of(own, phase.bytes, exposed) for own, phase in zip(groups, work.phases, strict=True)]
    slower = _host_slower(chip, knobs)
    host = [phase.host_s * chip.host.sample_factor * slower for phase in work.phases]
    step_s = sum(b.seconds for b in busy) + sum(host)
    rise = step_s / (step_s + chip.power.rise_s) if step_s > 0 else 0.0
    issuing = min(1.0, sum(b.issue_s for b in busy) / step_s) if step_s > 0 else 0.0
    result: list[Segment] = []
    for host_s, part in zip(host, busy, strict=True):
        if host_s > 0:
            result.append(_segment(_Busy(host_s), 0.0, 1.0, chip, knobs))
        if part.seconds > 0:
            result.append(_segment(part, rise, issuing, chip, knobs))
    return tuple(result)


def idle(chip: Chip, knobs: Knobs) -> Segment:
    """A second at rest with the clock running."""
    steady_w, leakage_w = _processor_w(chip, knobs["clock_mhz"], activity=0.0)
    return Segment(1.0, chip.power.idle_w + steady_w + _memory_clock_w(chip, knobs), leakage_w)


def highest_w(chip: Chip, knobs: Knobs, temperature_c: float) -> float:
    """Upper bound of the power of any step at this setting, with everything busy at the same time."""
    power = chip.power
    activity = power.compute_w_per_v2ghz + power.memory_w_per_v2ghz
    steady_w, leakage_w = _processor_w(chip, knobs["clock_mhz"], activity=activity)
    traffic_w = power.traffic_w_per_gbps * max(chip.access.achieved_gbps, chip.access.optimizer_gbps)
    board_w = power.base_w + _memory_clock_w(chip, knobs) + _host_w(chip, knobs, 1.0)
    return Segment(1.0, board_w + steady_w + traffic_w, leakage_w).power_w(power.leakage_per_degree, temperature_c)


@dataclass(frozen=True)
class _Busy:
    """One phase on the processor: its duration, and the time in which arithmetic and memory are busy.

    ``issue_s``: the time in which the host issues operations, hidden or not.
    """

    seconds: float
    compute_s: float = 0.0
    memory_s: float = 0.0
    bytes: float = 0.0
    issue_s: float = 0.0

    @classmethod
    def of(cls, groups: Sequence[_Group], moved: float, exposed: float) -> _Busy:
        """The phase of these operations, which move as many bytes; ``exposed`` as from ``_exposed``."""
        seconds = compute = memory = issue = 0.0
        for group in groups:
            seconds += group.busy_s + exposed * group.issue_s
            compute += group.compute_s
            memory += group.active_s
            issue += group.issue_s
        return cls(seconds, compute, memory, moved, issue)


class _Group(NamedTuple):
    """Seconds of the operations of one kind: of arithmetic, of the memory, of the processor's part in memory traffic,
    and of the host."""

    compute_s: float
    memory_s: float
    active_s: float
    issue_s: float

    @property
    def busy_s(self) -> float:
        """Seconds on the processor: arithmetic and memory overlap."""
        return max(self.compute_s, self.memory_s)

    @classmethod
    def of(cls, operation: Operation, work: StepWork, chip: Chip, knobs: Knobs) -> _Group:
        processor, access, host = chip.processor, chip.access, chip.host
        slower = processor.clocks_mhz[-1] / knobs["clock_mhz"]
        peak = processor.peak_gflops[work.data_type] * 1e9  # type: ignore[index]  # checked before the step
        filled = work.micro_batch_size / (work.micro_batch_size + processor.half_speed_samples)
        # The optimizer differs: long passes over contiguous weights, many tiny operations from a Python loop.
        optimizer = operation.kind == "optimizer"
        achieved = (access.optimizer_gbps if optimizer else access.achieved_gbps) * 1e9 * _memory_share(chip, knobs)
        issue_s = host.s_per_optimizer_operation if optimizer else host.s_per_operation
        memory_s = operation.bytes / achieved
        if access.clock_form == "slower":
            # Requests take clock_share of the memory's time at the highest clocks, whatever the memory's own clock.
            active_s = access.clock_share * slower * memory_s * _memory_share(chip, knobs)
            memory_s = max(memory_s, active_s)
        else:
            memory_s = active_s = memory_s * (access.clock_share * slower + (1 - access.clock_share))
        return cls(
            operation.flops / (processor.efficiency * filled * peak) * slower,
            memory_s,
            active_s,
            operation.kernels * issue_s * _host_slower(chip, knobs),
        )


def _exposed(phases: Sequence[Sequence[_Group]], chip: Chip) -> float:
    """The share of the host's time to issue operations that adds to the step.

    The queue of operations runs through the whole step, so what is hidden is decided over all of it: of the shorter of
    processor and host, ``hidden`` overlaps with the longer.
    """
    if chip.host.hidden == 0:
        return 1.0
    groups = [group for phase in phases for group in phase]
    busy_s, issue_s = sum(group.busy_s for group in groups), sum(group.issue_s for group in groups)
    return 1.0 - chip.host.hidden * min(busy_s, issue_s) / issue_s if issue_s > 0 else 1.0


def _segment(part: _Busy, rise: float, issuing: float, chip: Chip, knobs: Knobs) -> Segment:
    power = chip.power
    # In the form "slower" the seconds say what the processor moves, and the traffic itself is all that falls.
    share = 1.0 if chip.access.clock_form == "slower" else _memory_share(chip, knobs)
    arithmetic = power.compute_w_per_v2ghz * part.compute_s / part.seconds
    memory = share * power.memory_w_per_v2ghz * part.memory_s / part.seconds
    steady_w, leakage_w = _processor_w(chip, knobs["clock_mhz"], activity=rise * (arithmetic + memory))
    traffic_w = share * rise * power.traffic_w_per_gbps * part.bytes / part.seconds / 1e9
    board_w = power.base_w + _memory_clock_w(chip, knobs) + _host_w(chip, knobs, issuing)
    return Segment(part.seconds, board_w + steady_w + traffic_w, leakage_w)


def _memory_share(chip: Chip, knobs: Knobs) -> float:
    """The memory's clock over its highest one; 1 if it has one clock."""
    return knobs["memory_clock_mhz"] / chip.memory_clocks_mhz[-1] if chip.memory_clocks_mhz else 1.0


def _memory_clock_w(chip: Chip, knobs: Knobs) -> float:
    """Power of the memory's clock beyond that of its lowest one."""
    if not chip.memory_clock_w:
        return 0.0
    return chip.memory_clock_w[chip.memory_clocks_mhz.index(knobs["memory_clock_mhz"])]


def _host_slower(chip: Chip, knobs: Knobs) -> float:
    """Time of the host relative to that at its highest clock; 1 if it has one clock."""
    return chip.host_clocks_mhz[-1] / knobs["cpu_clock_mhz"] if chip.host_clocks_mhz else 1.0


def _host_w(chip: Chip, knobs: Knobs, issuing: float) -> float:
    """Power of a host whose clock can be set; ``issuing``: share of the time in which it issues operations."""
    if not chip.host_clocks_mhz or chip.host.voltage_v is None:
        return 0.0
    clock_mhz = knobs["cpu_clock_mhz"]
    volts = chip.host.voltage_v[chip.host_clocks_mhz.index(clock_mhz)]
    return (chip.host.clock_w_per_v2ghz + issuing * chip.host.busy_w_per_v2ghz) * volts**2 * clock_mhz / 1e3


def _processor_w(chip: Chip, clock_mhz: float, *, activity: float) -> tuple[float, float]:
    """Switching and leakage of the processor; ``activity`` in W/(V^2 GHz) beyond the running clock."""
    volts = chip.processor.voltage_v[chip.processor.clocks_mhz.index(clock_mhz)]
    switching_w = (chip.power.clock_w_per_v2ghz + activity) * volts**2 * clock_mhz / 1e3
    return switching_w, chip.power.leakage_w_per_v3 * volts**3
