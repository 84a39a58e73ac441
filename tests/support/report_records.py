"""Records of a synthetic board, by the physics of the simulated ones, for the tests of the reports."""

from __future__ import annotations

import math
import random

from wattune.cap import PowerCap, SensorLimit
from wattune.planning import pick, plan, plan_algorithms
from wattune.records import (
    AbortedProbe,
    Comparison,
    ComparisonRow,
    EfficiencyPoint,
    Evaluation,
    ExactFigures,
    GuardEvent,
    Plan,
    PowerSample,
    ProfileCell,
    ProfileCost,
    ProfileTable,
    ReferencePower,
    ReferenceSet,
    SampleEfficiency,
    SessionRecord,
    TrainingRecord,
    provenance,
)
from wattune.reporting import RecordSet

BATCH_SIZES = (4, 8, 16, 32, 64, 128)
CLOCKS_MHZ = tuple(round(76.8 * step, 1) for step in range(1, 13))
RELATIVE = {4: 0.33, 8: 0.36, 16: 0.40, 32: 0.47, 64: 0.68, 128: 1.0}
RULES = ("wattune", "largest batch, fixed clock", "best batch, fixed clock", "best batch, then clock", "fastest")
REFERENCE_SAMPLES = 24_576
CAP_W = 5.2


def step_s(batch_size: int, clock_mhz: float) -> float:
    """A host cost per step and compute that scales with the clock, as the Nano's tables show it."""
    return 0.0062 * batch_size * 921.6 / clock_mhz * 0.25 + 0.0195


def power_w(batch_size: int, clock_mhz: float, weight: float = 4.0) -> float:
    """Idle and busy CPU, and a GPU whose power grows with voltage, clock and how long it is busy."""
    voltage = 0.8 + 0.27 * (clock_mhz / 921.6) ** 1.5
    busy = 0.0062 * batch_size * 921.6 / clock_mhz * 0.25 / step_s(batch_size, clock_mhz)
    return 3.1 + (0.35 + weight * 0.62 * busy) * voltage**2 * clock_mhz / 921.6


def profile(*, strategy: str = "full", kind: str | None = "simulated") -> ProfileTable:
    """6 x 12 cells as the sensor would give them, in steps of 40 mW; ``staircase`` stops above the cap."""
    noise = random.Random(0)
    cells, aborted = [], []
    for batch_size in BATCH_SIZES:
        for clock in CLOCKS_MHZ:
            mean = power_w(batch_size, clock)
            peak = math.ceil((mean + 0.05 + 0.03 * noise.random()) / 0.04) * 0.04
            if strategy == "staircase" and peak > CAP_W:
                aborted.append(AbortedProbe(batch_size=batch_size, clock_mhz=clock, cap_w=CAP_W, power_w=peak))
                break
            if strategy == "staircase" and peak < CAP_W - 1.1:
                continue
            time = step_s(batch_size, clock)
            cells.append(
                ProfileCell(
                    batch_size=batch_size,
                    clock_mhz=clock,
                    step_s=time,
                    step_std_s=time * 0.01,
                    power_mean_w=mean,
                    power_peak_w=peak,
                    steps=5,
                )
            )
    cells.append(ProfileCell(batch_size=256, clock_mhz=CLOCKS_MHZ[0], out_of_memory=True))
    cells.extend(
        ProfileCell(batch_size=256, clock_mhz=clock, out_of_memory=True)
        for clock in CLOCKS_MHZ[1:]
        if strategy == "full"
    )
    powers = tuple(
        ReferencePower(workload=name, batch_size=128, clock_mhz=clock, power_peak_w=power_w(128, clock, weight))
        for name, weight in (("cnn", 4.2), ("matmul", 4.9))
        for clock in CLOCKS_MHZ
    )
    return ProfileTable(
        device="Jetson Nano 4 GB",
        workload="resnet8-digits",
        cells=tuple(cells),
        aborted=tuple(aborted),
        reference=ReferenceSet(set_version=1, powers=powers),
        cost=ProfileCost(time_s=118.0, energy_j=512.0, above_cap_s=6.4, probes=len(cells) + len(aborted), cap_w=CAP_W),
        strategy=strategy,
        sensor_window_s=0.1,
        provenance=provenance(kind, device="sim:jetson-nano", seed=0) if kind else {},
    )


def efficiency(*, censored: int | None = None, kind: str | None = "measured") -> SampleEfficiency:
    """The published shape: small batches need fewer samples. ``censored``: a batch size that never got there."""
    points = [
        EfficiencyPoint(
            batch_size=b,
            relative_samples=r,
            low=r * 0.9,
            high=r * 1.12,
            samples=r * REFERENCE_SAMPLES,
            samples_std=r * 0.08 * REFERENCE_SAMPLES,
            runs=3,
            censored=1 if b == 4 else 0,
        )
        if b != censored
        else EfficiencyPoint(batch_size=b, relative_samples=None, runs=3, censored=3)
        for b, r in RELATIVE.items()
    ]
    origin = provenance(kind, seed=0) if kind else {}
    return SampleEfficiency(
        workload="resnet8-digits proxy", target=0.95, reference_batch_size=128, points=tuple(points), provenance=origin
    )


def training(chosen: Plan, *, kind: str = "simulated", spike: bool = True) -> TrainingRecord:
    """Half a minute on the board with one spike, which the guard answers and takes back."""
    noise = random.Random(1)
    lower = max(c for c in CLOCKS_MHZ if c < (chosen.clock_mhz or 0))
    trace, time = [], 0.0
    while time < 1.04 * (chosen.predicted_s or 60.0):
        inside = spike and 10.0 <= time < 12.0
        setting = lower if spike and 10.2 <= time < 22.0 else chosen.clock_mhz
        watts = power_w(chosen.batch_size, setting or 1.0) * (1.2 if inside else 1.0) + 0.02 * noise.gauss(0, 1)
        trace.append(PowerSample(time_s=round(time, 2), power_w=round(watts / 0.04) * 0.04, setting=setting))
        time += 0.1
    guard = (
        GuardEvent(time_s=10.1, power_w=trace[101].power_w, action="down", setting=lower),
        GuardEvent(time_s=22.0, power_w=4.84, action="up", setting=chosen.clock_mhz),
    )
    above = [sample for sample in trace if chosen.cap_w is not None and sample.power_w > chosen.cap_w]
    energy = sum(sample.power_w for sample in trace) * 0.1
    samples = int(RELATIVE[chosen.batch_size] * REFERENCE_SAMPLES)
    evaluations = [
        Evaluation(
            samples=n, metric=0.97 - 0.55 * math.exp(-3.35 * n / samples), time_s=time * n / samples, energy_j=energy
        )
        for n in range(1024, samples + 1024, 1024)
    ]
    return TrainingRecord(
        plan=chosen,
        target=chosen.target,
        reached=True,
        ended="target reached",
        samples=evaluations[-1].samples,
        time_s=time,
        energy_j=energy,
        power_mean_w=energy / time,
        power_peak_w=max(sample.power_w for sample in trace),
        power_window_w=5.31 if spike else chosen.predicted_window_w,
        above_cap_s=0.1 * len(above),
        readings=len(trace),
        readings_above_cap=len(above),
        evaluations=tuple(evaluations),
        guard=guard if spike else (),
        trace=tuple(trace),
        exact=ExactFigures(energy_j=energy * 1.002, above_cap_s=0.1 * len(above), time_s=time),
        profiling_share=118.0 / time,
        pays_after_trainings=2.6,
        provenance=provenance(kind, device="sim:jetson-nano", seed=0),
    )


def comparison(table: ProfileTable, curve: SampleEfficiency, cap_w: float | None = CAP_W) -> Comparison:
    """Every rule's pick with a spread of 9 % over three seeds; one rule without a result."""
    rows = []
    own = pick("wattune", table, curve, SensorLimit(cap_w))
    for rule in RULES:
        found = pick(rule, table, curve, SensorLimit(cap_w))
        if found is None or found.predicted_s is None or own is None or own.predicted_s is None:
            rows.append(ComparisonRow(rule=rule, why_not="the profile does not tell what this rule would choose"))
            continue
        rows.append(
            ComparisonRow(
                rule=rule,
                **found.point.fields(),
                runs=3,
                time_s=found.predicted_s * 1.05,
                time_std_s=found.predicted_s * 0.09,
                energy_j=found.predicted_j,
                energy_std_j=(found.predicted_j or 0) * 0.09,
                power_peak_w=found.predicted_peak_w,
                speed_up=found.predicted_s / own.predicted_s,
                above_fastest=0.031 if rule == "wattune" else found.predicted_s / own.predicted_s * 1.031 - 1,
            )
        )
    rows.append(
        ComparisonRow(
            rule="largest batch, own clock", batch_size=128, clock_mhz=307.2, runs=3, censored=1, power_peak_w=5.1
        )
    )
    return Comparison(
        device=table.device,
        workload=table.workload,
        cap_w=cap_w,
        seeds=(0, 1, 2),
        method="Each batch size and seed was trained once and priced at each clock.",
        rows=tuple(rows),
        provenance=provenance("simulated", device="sim:jetson-nano"),
    )


def run(*, cap_w: float | None = CAP_W) -> RecordSet:
    """Everything that a run's folder can hold."""
    table, curve = profile(), efficiency()
    chosen = plan(table, curve, cap=PowerCap(cap_w))
    return RecordSet(
        profile=table,
        efficiency=curve,
        plan=chosen,
        training=training(chosen),
        comparison=comparison(table, curve, cap_w),
    )


def other_actuator(*, limits: bool) -> RecordSet:
    """A board with a power limit in place of a clock, or one that cannot be set at all; with micro-batches."""
    cells = [
        ProfileCell(
            batch_size=batch_size,
            micro_batch_size=micro,
            power_limit_w=limit,
            step_s=step_s(batch_size, 921.6) * (1.0 if limit is None else 200.0 / limit),
            power_mean_w=limit or 180.0 + batch_size / 10,
            power_peak_w=(limit or 180.0 + batch_size / 10) * 1.03,
            steps=5,
        )
        for batch_size, micro in ((8, 8), (32, 8), (32, 32), (128, 32))
        for limit in ((100.0, 150.0, 200.0) if limits else (None,))
    ]
    table = ProfileTable(device="workstation", workload="resnet8-digits", cells=tuple(cells))
    return RecordSet(profile=table, efficiency=efficiency(), plan=plan(table, efficiency(), cap=PowerCap(190.0)))


def several_algorithms(memory_bytes: float | None) -> RecordSet:
    """Three training algorithms to choose from, of which the one with forward gradients needs little memory."""

    def table(algorithm: str, slower: float, sample_bytes: float) -> ProfileTable:
        made = profile()
        cells = tuple(
            cell
            if cell.step_s is None
            else cell.model_copy(
                update={"step_s": cell.step_s * slower, "memory_bytes": 6e6 + sample_bytes * cell.batch_size}
            )
            for cell in made.cells
        )
        return made.model_copy(update={"algorithm": algorithm, "cells": cells})

    curve = efficiency()
    points = tuple(point.model_copy(update={"samples": 40 * (point.samples or 0)}) for point in curve.points)
    forward = curve.model_copy(update={"algorithm": "forward-gradient", "points": points})
    tables = [
        table("backprop", 1.0, 2e6),
        table("backprop:checkpoint=auto", 1.3, 0.9e6),
        table("forward-gradient", 1.1, 0.1e6),
    ]
    chosen = plan_algorithms(tables, [curve, forward], cap=PowerCap(CAP_W), memory_bytes=memory_bytes)
    by_name = {table.algorithm: table for table in tables}
    return RecordSet(
        profile=by_name[chosen.algorithm],
        efficiency=forward if chosen.algorithm == "forward-gradient" else curve,
        plan=chosen,
    )


def session() -> SessionRecord:
    """A training in the user's own loop that looked at two points."""
    table = profile()
    first, chosen = table.cells[0].point, table.cells[5].point
    return SessionRecord(
        device=table.device,
        mode="as made up",
        cap_w=CAP_W,
        recipe={"batch_size": 4, "keep": True, "learning_rate_rule": "unchanged (AdamW)"},
        table=table,
        efficiency_from="the user's batch size",
        point=chosen,
        changes=(
            {"samples": 0, "time_s": 0.0, "point": first, "why": "probe"},
            {"samples": 512, "time_s": 4.0, "point": chosen, "why": "chosen"},
        ),
        samples=4096,
        steps=1024,
        time_s=40.0,
        energy_j=160.0,
        ended="finished",
        provenance=provenance("simulated", device=table.device, seed=0),
    )
