"""``sim:jetson-tx2-nx`` as derived from ``sim:jetson-tx2``: what is published of it, and the TX2's recorded powers.

The TX2 NX has the TX2's chip, with the memory at 1600 MHz at most. Three constants of its file are fitted to its
published times, since no recording tells them: what a batch size fills of the GPU, and the speed of memory and host
under the paper's software. Its host's time is added instead of hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.paper.calibration_model import SOUND_RATIOS, fit, rms, value_of
from benchmarks.paper.models import work
from benchmarks.paper.published import NANO, RESNET18, TX2_NX
from benchmarks.tx2_recordings import FILES, TOP_CPU_MHZ, Cell, FittedBoard, spread
from wattune.devices import SimulatedBoard
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.exact_steps import exact
from wattune.point import Knobs
from wattune.records import StepWork

MEMORY_MHZ = 1600.0
FITTED = ("gpu.half_speed_samples", "memory.achieved_gbps", "host.s_per_operation")
"""Places in the board file that are fitted to the published times; everything else is the TX2's or assumed."""
OF_THIS_BOARD = [ratio for ratio in SOUND_RATIOS if ratio.cell.device == TX2_NX]


def derived(tx2: SimulatedBoard, nx: SimulatedBoard) -> SimulatedBoard:
    """The TX2 NX with nothing fitted to it: the TX2's times and power with memory and CPU at the clocks of ``nx``.

    Of ``nx`` remain its memory's size and bandwidth, its sensor and its temperatures.
    """
    memory, host, power = tx2.memory, tx2.host, tx2.power
    memory_w = dict(zip(memory.clocks_mhz or (), memory.clock_w or (), strict=True))
    slower = MEMORY_MHZ / max(memory_w)
    cpu_mhz, cpu_v = (host.clocks_mhz or (0.0,))[-1], (host.voltage_v or (0.0,))[-1]
    cpu_w = host.clock_w_per_v2ghz * cpu_v**2 * cpu_mhz / 1e3
    one_clock = {"clocks_mhz": None, "voltage_v": None, "clock_w_per_v2ghz": 0.0, "busy_w_per_v2ghz": 0.0}
    return nx.model_copy(
        update={
            "gpu": tx2.gpu,
            "memory": nx.memory.model_copy(
                update={
                    "achieved_gbps": memory.achieved_gbps * slower,
                    "optimizer_gbps": memory.optimizer_gbps * slower,
                    # The GPU's requests take as long as beside the faster memory, so a smaller share of its time.
                    "clock_share": memory.clock_share * slower,
                    "clock_form": memory.clock_form,
                }
            ),
            "host": host.model_copy(update=one_clock),
            "power": power.model_copy(update={"base_w": power.base_w + memory_w[MEMORY_MHZ] + cpu_w}),
        }
    )


def figures(works: dict[str, StepWork], steps: Sequence[Cell]) -> dict[str, Any]:
    """Errors of the board with nothing fitted and as shipped, and the fitted constants by the fit and in the file.

    ``works``: the recorded workloads. ``steps``: their recorded steps, of which those at this board's clocks count.
    """
    tx2, nx, nano = (builtin_board(name) for name in ("jetson-tx2", TX2_NX, NANO))
    cells = [c for c in steps if c.knobs["memory_clock_mhz"] == MEMORY_MHZ and c.knobs["cpu_clock_mhz"] == TOP_CPU_MHZ]
    again = fit({NANO: nano, TX2_NX: nx}, {TX2_NX: FITTED}, OF_THIS_BOARD)
    return {
        "nothing fitted": _judged(derived(tx2, nx), nano, works, cells),
        "as shipped": _judged(nx, nano, works, cells),
        "constants": {
            place: {
                "file": value_of(nx, place),
                "fit": float(f"{value_of(again.boards[TX2_NX], place):.3g}"),
                "known": again.spread[TX2_NX][place],
            }
            for place in FITTED
        },
    }


def _judged(
    board: SimulatedBoard, nano: SimulatedBoard, works: dict[str, StepWork], cells: Sequence[Cell]
) -> dict[str, Any]:
    """Errors of the published time ratios, and power beside the recorded TX2."""
    boards = {NANO: nano, TX2_NX: board}
    times = {
        group: [ratio.error(boards) for ratio in OF_THIS_BOARD if ratio.between_boards == between]
        for group, between in (("within", False), ("between", True))
    }
    model = FittedBoard(board, works)
    power = {}
    for name in FILES:
        own = [replace(c, knobs=Knobs(clock_mhz=c.knobs["clock_mhz"])) for c in cells if c.workload == name]
        power[name] = {
            **spread(model.power_errors(own)),
            "low_w": round(model.step(own[0])[1], 2),
            "high_w": round(model.step(own[-1])[1], 2),
            "recorded_w": [round(own[at].power_w or math.nan, 2) for at in (0, -1)],
            "slower": round(math.exp(sum(model.time_errors(own)) / len(own)), 3),
        }
    watts = [one.power_mean_w for one in exact(board, "gpu", work(RESNET18, 128)).values()]
    return {
        "times": {
            group: {"rms": round(rms(errors), 4), "largest": round(max(errors, key=abs), 4)}
            for group, errors in times.items()
        },
        "low_w": round(watts[0], 2),
        "high_w": round(watts[-1], 2),
        "power": power,
    }
