"""Random boards of two kinds with different generators, twelve clocks by six batch sizes each.

``roofline``: the project's own board files with random constants, and a counted model on them. ``table``: no formula
of a processor, but the kernels of a library, each chosen for some batch sizes, with its own speed and power; work in
whole waves; a memory clock in steps; a voltage with a floor; and a board that draws more when warm.
"""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np

from benchmarks.decisions.boards import Array, Board
from benchmarks.session_worlds import TASKS, exact_peak_w, exact_step_s, random_board, work_of
from wattune.point import BatchShape, Knobs

BATCH_SIZES = (4, 8, 16, 32, 64, 128)
CLOCKS = 12
NOISE = (0.005, 0.03)
"""Noise of one window's reading relative to the board's median power, of a good and of a bad sensor."""


def board(kind: str, seed: int) -> Board:
    """The board of this kind and seed."""
    return {"roofline": roofline, "table": table}[kind](seed)


@cache
def roofline(seed: int) -> Board:
    """A board file with random constants, and one of the session benchmark's models."""
    draw = random.Random(f"decisions roofline {seed}")
    plain = random_board(seed + 50_000)
    task = draw.choice([task for task in TASKS if task.name != "resnet18"])  # which does not fit at 128
    clocks = plain.gpu.clocks_mhz
    clocks = tuple(clocks[round(i * (len(clocks) - 1) / (CLOCKS - 1))] for i in range(CLOCKS))
    works = [work_of(task, BatchShape(size, size)) for size in BATCH_SIZES]
    step_s = np.array([[exact_step_s(plain, work, Knobs(clock_mhz=clock)) for clock in clocks] for work in works])
    power_w = np.array([[exact_peak_w(plain, work, Knobs(clock_mhz=clock)) for clock in clocks] for work in works])
    name = f"roofline {seed}: {plain.name}, {task.name}"
    return _board(name, clocks, step_s, power_w, draw, cold=0.0)


@cache
def table(seed: int) -> Board:
    """A chip with a library's kernels, as a table of batch sizes and clocks."""
    draw = random.Random(f"decisions table {seed}")
    share = np.linspace(draw.uniform(0.08, 0.3), 1.0, CLOCKS)
    top_mhz = draw.uniform(600, 1400)

    # A voltage with a floor and a bend, rising to one volt or so.
    floor, bend = draw.uniform(0.6, 0.8), draw.uniform(0.3, 0.7)
    above = np.maximum(share - bend, 0.0) / (1 - bend)
    volts = floor + (1 - floor) * above ** draw.uniform(0.8, 1.6)

    # The memory clock goes with the core's, in two to four steps.
    edges = sorted(draw.uniform(0.15, 0.8) for _ in range(draw.randint(1, 3)))
    levels = np.linspace(draw.uniform(0.4, 0.8), 1.0, len(edges) + 1)
    memory = levels[np.searchsorted(edges, share)]

    # Kernels: the batch size from which each is chosen, its speed at a full wave, its power, its memory-bound share.
    starts = [0, *sorted(draw.sample(range(1, len(BATCH_SIZES)), draw.randint(1, 3)))]
    kernels = [
        {
            "speed": math.exp(draw.gauss(0.10 * number, 0.08)),
            "activity": math.exp(draw.gauss(0.0, 0.12)),
            "waits": draw.uniform(0.05, 0.6),
        }
        for number in range(len(starts))
    ]
    wave = draw.choice((6, 12, 24, 40, 100))  # samples that the chip works on at once
    per_wave_s = math.exp(draw.gauss(math.log(8e-3), 0.8)) * wave / 24
    launch_s = math.exp(draw.gauss(math.log(4e-3), 0.7))
    idle_w, chip_w = draw.uniform(1.0, 2.5), math.exp(draw.gauss(math.log(6.0), 0.4))
    clocked, leaking = draw.uniform(0.1, 0.3), draw.uniform(0.05, 0.2)

    step_s, power_w = np.zeros((len(BATCH_SIZES), CLOCKS)), np.zeros((len(BATCH_SIZES), CLOCKS))
    for place, size in enumerate(BATCH_SIZES):
        kernel = kernels[np.searchsorted(starts, place, side="right") - 1]
        # Whole waves; a partial last one saves half of the missing work.
        waves = math.ceil(size / wave) - 0.5 * (math.ceil(size / wave) - size / wave)
        arithmetic = waves * per_wave_s * (1 - kernel["waits"]) / kernel["speed"] / share
        traffic = waves * per_wave_s * kernel["waits"] / kernel["speed"] / memory
        busy = arithmetic + traffic
        step_s[place] = busy + launch_s * (0.6 + 0.4 / share)
        filled = size / wave / math.ceil(size / wave)
        level = kernel["activity"] * (0.35 + 0.65 * filled) * (0.5 + 0.5 * arithmetic / busy)
        active = clocked + (1 - clocked) * level * busy / step_s[place]
        power_w[place] = idle_w + chip_w * (active * volts**2 * share + leaking * volts**3 + 0.1 * memory)
    power_w = np.maximum.accumulate(power_w, axis=1)  # power never falls with the clock; with the batch size it may
    clocks = tuple(float(round(top_mhz * one, 1)) for one in share)
    name = f"table {seed}: {len(kernels)} kernels"
    return _board(name, clocks, step_s, power_w, draw, cold=draw.uniform(0.0, 0.02))


def _board(
    name: str,
    clocks: tuple[float, ...],
    step_s: Array,
    power_w: Array,
    draw: random.Random,
    *,
    cold: float,
) -> Board:
    noise = math.exp(draw.uniform(*(math.log(end) for end in NOISE)))
    return Board(
        name=name,
        batch_sizes=BATCH_SIZES,
        clocks_mhz=clocks,
        step_s=step_s,
        power_w=power_w,
        noise_w=noise * float(np.median(power_w)),
        noise_known=draw.random() < 0.5,
        step_noise=noise,
        resolution_w=draw.choice((0.001, 0.01, 0.04)),
        window_s=draw.choice((0.1, 0.5, 1.0)),
        lag_s=draw.choice((0.0, 0.1, 0.3)),
        cold=cold,
        warming_s=draw.uniform(60.0, 300.0),
    )
