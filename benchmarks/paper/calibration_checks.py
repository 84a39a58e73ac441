"""Published figures of the two boards in seconds, watts and mebibytes, compared with their simulation."""

from __future__ import annotations

from typing import Any

import wattune
from benchmarks.paper.calibration_model import LEVEL_S, level_s, step_s
from benchmarks.paper.models import work, workload
from benchmarks.paper.power_check import our_limits_w
from benchmarks.paper.published import CELLS, EFFICIENTVIT, MOBILENET_V2, NANO, RESNET18, TRANSFORMER, TX2_NX
from wattune.cap import PEAK, PowerCap
from wattune.devices import SimulatedDevice, builtin_board
from wattune.devices.simulator.variants import exact
from wattune.point import Knobs
from wattune.records import ProfileTable

PAPER = "arXiv 2502.18323"
LOGS = "public tegrastats logs"
STAIRCASE_SHARE = {RESNET18: 0.019, MOBILENET_V2: 0.06}
"""Model -> largest published share of profiling with a known limit in the training time of section 5.2."""


def measure() -> list[dict[str, Any]]:
    """One row per published figure: its description, the allowed range of ours, ours, and if it is within."""
    return [*_level(), *_processors(), *_staircase(), *_powers(), *_memory()]


def _row(what: str, source: str, published: str, ours: float, low: float, high: float, unit: str) -> dict[str, Any]:
    return {
        "what": what,
        "source": source,
        "published": published,
        "ours": ours,
        "low": low,
        "high": high,
        "unit": unit,
        "within": low <= ours <= high,
    }


def _level() -> list[dict[str, Any]]:
    return [
        _row(
            "Nano, ResNet18 at 224x224, batch size 8: a step",
            "dusty-nv/jetson-inference, docs/pytorch-cat-dog.md",
            "0.77 s, ±15% assumed: different optimizer and loader",
            level_s(builtin_board(NANO)),
            LEVEL_S * 0.85,
            LEVEL_S * 1.15,
            "s",
        )
    ]


def _processors() -> list[dict[str, Any]]:
    rows = []
    for name in (NANO, TX2_NX):
        board = builtin_board(name)
        on_gpu, on_cpu = (max(exact(board, kind, work(RESNET18, 32)).items())[1] for kind in ("gpu", "cpu"))
        rows.append(
            _row(
                f"{name}, ResNet18, batch size 32: CPU time relative to GPU time (by construction)",
                f"{PAPER}, A.1",
                "about 10, for no particular board",
                on_cpu.step_s / on_gpu.step_s,
                9.0,
                11.0,
                "",
            )
        )
        rows.append(
            _row(
                f"{name}, the same: CPU power relative to GPU power (by construction)",
                f"{PAPER}, A.1",
                "nearly equal",
                on_cpu.power_mean_w / on_gpu.power_mean_w,
                0.9,
                1.1,
                "",
            )
        )
    return rows


def _staircase() -> list[dict[str, Any]]:
    """The cost of a staircase under this simulation's limits, relative to the published time of the choice.

    Both as wattune probes by default (two steps of warm-up, then five or more), and with probes of one step, which is
    the least that a staircase can cost on this board.
    """
    rows = []
    for name, model in ((NANO, RESNET18), (TX2_NX, RESNET18), (NANO, MOBILENET_V2)):
        whole, bare = [], []
        for limit, cap_w in our_limits_w(name).items():
            table = _profiled(name, model, cap_w)
            assert table.cost is not None
            probed = [(one.batch_size, one.clock_mhz) for one in (*table.measured, *table.aborted)]
            steps_s = [step_s(builtin_board(name), model, size, clock) for size, clock in probed if clock is not None]
            for cell in CELLS:
                if (cell.device, cell.model, cell.method, cell.limit) == (name, model, "Ours", limit):
                    whole.append(table.cost.time_s / cell.mean_s)
                    bare.append(sum(steps_s) / cell.mean_s)
        published = f"at most {100 * STAIRCASE_SHARE[model]:g}%"
        what = f"{name}, {model}: largest share of a staircase profile in a training run under a limit"
        for how, shares in (("with probes as wattune makes them", whole), ("with probes of one step", bare)):
            source = f"{PAPER}, section 4"
            rows.append(
                _row(f"{what}, {how}", source, published, max(shares), 0.0, STAIRCASE_SHARE[model], "share")
            )  # fmt: skip
    return rows


def _profiled(name: str, model: str, cap_w: float) -> ProfileTable:
    limit = PowerCap(cap_w, window=PEAK)  # the paper's caps are on the highest reading
    return wattune.profile(f"sim:{name}", workload(model), cap_w=limit, strategy="staircase", reference=False)


def _powers() -> list[dict[str, Any]]:
    nano, tx2 = builtin_board(NANO), builtin_board(TX2_NX)
    every = [(RESNET18, 8), (RESNET18, 32), (RESNET18, 128), (MOBILENET_V2, 64), (TRANSFORMER, 128)]
    wanted = (
        (nano, 921.6, every, "5.6 to 7.4 W: sum of its rails", 5.6, 7.4),
        (nano, 76.8, every, "2.5 to 3.5 W: sum of its rails", 2.5, 3.5),
        (tx2, 1300.5, [(RESNET18, 128)], "7.7 to 10.5 W: sum of a TX2's rails", 7.7, 10.5),
    )
    rows = []
    for board, clock, points, published, low, high in wanted:
        watts = [exact(board, "gpu", work(*point))[Knobs(clock_mhz=clock)].power_mean_w for point in points]
        for word, value in {"lowest": min(watts), "highest": max(watts)}.items():
            what = f"{board.name}, training at {clock:g} MHz, {word} of {len(points)} points"
            rows.append(_row(what, LOGS, published, value, low, high, "W"))
    for board, published, low, high in (
        (nano, "0.93 to 2.06 W", 0.93, 2.06),
        (tx2, "1.38 to 1.93 W, a TX2", 1.38, 1.93),
    ):
        device = SimulatedDevice(board)
        with device.at(device.safest):
            device.wait(5 * board.sensor.period_s)
            watts = [device.power_w()]
        rows.append(_row(f"{board.name}, at rest at the lowest clock", LOGS, published, watts[0], low, high, "W"))
    return rows


def _memory() -> list[dict[str, Any]]:
    available = SimulatedDevice(builtin_board(NANO)).memory_bytes
    assert available is not None
    rows = []
    for name, size, fits in (
        (RESNET18, 128, True),
        (MOBILENET_V2, 64, True),
        (MOBILENET_V2, 128, False),
        (EFFICIENTVIT, 64, True),
        (EFFICIENTVIT, 128, False),
        (TRANSFORMER, 128, True),
    ):
        share = work(name, size).peak_memory_bytes / available
        published = "fits" if fits else "does not fit"
        low, high = (0.0, 1.0) if fits else (1.0, float(2**20))
        rows.append(
            _row(f"Nano, {name}, batch size {size}: share of the memory", PAPER, published, share, low, high, "")
        )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The results as a table for the documentation."""
    lines = ["| figure | published | ours | within | source |", "|---|---|---|---|---|"]
    for row in rows:
        ours = f"{100 * row['ours']:.1f}%" if row["unit"] == "share" else f"{row['ours']:.2f} {row['unit']}".strip()
        lines.append(
            f"| {row['what']} | {row['published']} | {ours} | {'yes' if row['within'] else 'no'} | {row['source']} |"
        )
    return "\n".join(lines) + "\n"
