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
from dataclasses import dataclass

from wattune.devices.simulator.board_file import Chip
from wattune.point import Knobs
from wattune.records import Operation, PhaseWork, StepWork

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
    busy = [_Busy.of(phase, work, chip, knobs) for phase in work.phases]
    host = [phase.host_s * chip.host.sample_factor for phase in work.phases]
    step_s = sum(b.seconds for b in busy) + sum(host)
    rise = step_s / (step_s + chip.power.rise_s) if step_s > 0 else 0.0
    result: list[Segment] = []
    for host_s, part in zip(host, busy, strict=True):
        if host_s > 0:
            result.append(_segment(_Busy(host_s), 0.0, chip, knobs))
        if part.seconds > 0:
            result.append(_segment(part, rise, chip, knobs))
    return tuple(result)


def idle(chip: Chip, knobs: Knobs) -> Segment:
    """A second at rest with the clock running."""
    steady_w, leakage_w = _processor_w(chip, knobs["clock_mhz"], activity=0.0)
    return Segment(1.0, chip.power.idle_w + steady_w, leakage_w)


@dataclass(frozen=True)
class _Busy:
    """One phase on the processor: its duration, and the time in which arithmetic and memory are busy."""

    seconds: float
    compute_s: float = 0.0
    memory_s: float = 0.0
    bytes: float = 0.0

    @classmethod
    def of(cls, phase: PhaseWork, work: StepWork, chip: Chip, knobs: Knobs) -> _Busy:
        """The phase of work whose forward passes take ``micro_batch_size`` samples."""
        seconds = compute = memory = 0.0
        for operation in phase.operations:
            compute_s, memory_s, host_s = _group(operation, work, chip, knobs)
            seconds += max(compute_s, memory_s) + host_s
            compute += compute_s
            memory += memory_s
        return cls(seconds, compute, memory, phase.bytes)


def _group(operation: Operation, work: StepWork, chip: Chip, knobs: Knobs) -> tuple[float, float, float]:
    """Seconds of arithmetic, of memory and of the host for the operations of one kind."""
    processor, access, host = chip.processor, chip.access, chip.host
    slower = processor.clocks_mhz[-1] / knobs["clock_mhz"]
    peak = processor.peak_gflops[work.data_type] * 1e9  # type: ignore[index]  # checked before the step
    filled = work.micro_batch_size / (work.micro_batch_size + processor.half_speed_samples)
    stretch = access.clock_share * slower + (1 - access.clock_share)
    # The optimizer differs: long passes over contiguous weights, many tiny operations from a Python loop.
    optimizer = operation.kind == "optimizer"
    achieved = (access.optimizer_gbps if optimizer else access.achieved_gbps) * 1e9 * _memory_share(chip, knobs)
    issue_s = host.s_per_optimizer_operation if optimizer else host.s_per_operation
    return (
        operation.flops / (processor.efficiency * filled * peak) * slower,
        operation.bytes / achieved * stretch,
        operation.kernels * issue_s,
    )


def _segment(part: _Busy, rise: float, chip: Chip, knobs: Knobs) -> Segment:
    power, share = chip.power, _memory_share(chip, knobs)
    arithmetic = power.compute_w_per_v2ghz * part.compute_s / part.seconds
    memory = share * power.memory_w_per_v2ghz * part.memory_s / part.seconds
    steady_w, leakage_w = _processor_w(chip, knobs["clock_mhz"], activity=rise * (arithmetic + memory))
    traffic_w = share * rise * power.traffic_w_per_gbps * part.bytes / part.seconds / 1e9
    return Segment(part.seconds, power.base_w + steady_w + traffic_w, leakage_w)


def _memory_share(chip: Chip, knobs: Knobs) -> float:
    """The memory's clock over its highest one; 1 if it has one clock."""
    return knobs["memory_clock_mhz"] / chip.memory_clocks_mhz[-1] if chip.memory_clocks_mhz else 1.0


def _processor_w(chip: Chip, clock_mhz: float, *, activity: float) -> tuple[float, float]:
    """Switching and leakage of the processor; ``activity`` in W/(V^2 GHz) beyond the running clock."""
    volts = chip.processor.voltage_v[chip.processor.clocks_mhz.index(clock_mhz)]
    switching_w = (chip.power.clock_w_per_v2ghz + activity) * volts**2 * clock_mhz / 1e3
    return switching_w, chip.power.leakage_w_per_v3 * volts**3
