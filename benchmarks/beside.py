"""Training beside an inference service: requests within their latency bound, and what that costs in throughput.

`python -m benchmarks beside`: on three simulated boards, whose GPU does one piece of work at a time, in order. Requests
arrive at random (Poisson, seeded), each a forward pass of a few images. Training, waiting and requests are wattune's
own, on the board's virtual time: `CappedRun`, `Beside` and `SimulatedRequests`. The plan knows the exact table of the
board and the service's time at the highest clocks, but not the rate of the requests.

The best point is searched for exhaustively, among all clocks and micro-batch sizes under the cap, after a run of each
with the same arrivals: the highest throughput of those that answered 97 % of the requests in time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from benchmarks.session_worlds import TASKS, work_of
from benchmarks.timing import keep
from wattune.algorithms import open_algorithm
from wattune.cap import NO_LIMIT, PowerCap
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.requests import SimulatedRequests
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.errors import InputError, NoFeasiblePoint
from wattune.latency import LatencyBound
from wattune.planning import plan
from wattune.point import BatchShape, OperatingPoint
from wattune.power.beside import Beside
from wattune.power.capped_run import CappedRun
from wattune.records import ProfileCell, ProfileTable, StepWork

BOARDS = ("jetson-nano", "jetson-tx2-nx", "jetson-tx2")
TASK = next(task for task in TASKS if task.name == "resnet8")
BATCH = TASK.user
MICRO = tuple(2**k for k in range(BATCH.bit_length()))
IMAGES = 4
"""Images of a request."""

BOUNDS_S = (0.03, 0.05, 0.1, 0.2)
RATES_HZ = (2.0, 10.0, 20.0, 40.0)
CAPS = (0.35, 0.6, 1.0)
"""Caps, as shares of the way from the lowest power of all points to the highest."""

MUST = 0.97
"""Share of requests that the best point answers in time."""

REQUESTS, LEAST_S = 1000, 60.0
"""Requests that a run has on average at least, and its least seconds."""


class Outcome(NamedTuple):
    """A run at one point with one rate of requests: samples a second, and the latencies of the requests."""

    point: OperatingPoint
    rate: float
    latencies_s: tuple[float, ...]

    def share(self, bound_s: float) -> float:
        """Share of the requests within the bound."""
        return sum(latency_s <= bound_s + 1e-9 for latency_s in self.latencies_s) / len(self.latencies_s)


class Board(NamedTuple):
    """The exact table of a board, and the time of a request at its highest clocks."""

    name: str
    table: ProfileTable
    service_s: float


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    if arguments:
        raise InputError("arguments of beside", value=" ".join(arguments), allowed="none")
    cases = [case for name in BOARDS for case in cases_of(board_of(name))]
    keep("beside", {"batch_size": BATCH, "images": IMAGES, "must": MUST, "cases": cases})


@cache
def request() -> StepWork:
    """The work of a request."""
    work: StepWork = open_algorithm("backprop", TASK, IMAGES).evaluation_work(IMAGES)
    return work


def board_of(name: str) -> Board:
    """The table of a board at each of its GPU clocks, its other clocks at their highest."""
    device = SimulatedDevice(builtin_board(name))
    top = device.combinations()[-1]
    cells = []
    for micro in MICRO:
        shape = BatchShape(BATCH, micro)
        for knobs, step in device.exact_steps(work_of(TASK, shape)).items():
            if knobs.replace(clock_mhz=top["clock_mhz"]) == top:
                figures = {"step_s": step.step_s, "power_mean_w": step.power_mean_w, "power_peak_w": step.power_peak_w}
                cells.append(ProfileCell(**OperatingPoint(shape, knobs).fields(), **figures, steps=1))
    table = ProfileTable(device=f"sim:{name}", workload=TASK.name, cells=tuple(cells))
    return Board(name, table, device.exact_steps(request())[top].step_s)


def cases_of(board: Board) -> Iterator[dict[str, Any]]:
    """Each rate, cap and bound on a board."""
    powers_w = [cell.power_peak_w or 0.0 for cell in board.table.measured]
    for rate_hz in RATES_HZ:
        outcomes = {cell.point: run(board, cell.point, rate_hz) for cell in board.table.measured}
        for share in CAPS:
            cap = PowerCap(min(powers_w) + share * (max(powers_w) - min(powers_w)), window="peak")
            under = [outcomes[cell.point] for cell in board.table.measured if (cell.power_peak_w or 0.0) <= cap.limit_w]
            for bound_s in BOUNDS_S:
                yield {
                    "device": board.table.device,
                    "rate_hz": rate_hz,
                    "cap_w": cap.limit_w,
                    "cap_share": share,
                    "bound_s": bound_s,
                    "service_s": board.service_s,
                    **_compared(board, cap, bound_s, under, outcomes),
                }


def _compared(
    board: Board,
    cap: PowerCap,
    bound_s: float,
    under: Sequence[Outcome],
    outcomes: dict[OperatingPoint, Outcome],
) -> dict[str, Any]:
    best = max((one for one in under if one.share(bound_s) >= MUST), key=lambda one: one.rate, default=None)
    try:
        bound = LatencyBound(bound_s, board.service_s)
        pick = plan(board.table, batch_size=BATCH, cap=cap, latency=bound).point
    except NoFeasiblePoint as error:
        return {"best": best and _figures(best, bound_s, best), "wattune": None, "why_not": str(error)}

    def fastest(micro: int) -> Outcome:
        return max((one for one in under if one.point.micro_batch_size == micro), key=lambda one: one.rate)

    smallest = min(one.point.micro_batch_size for one in under)
    whole = max(one.point.micro_batch_size for one in under)
    return {
        "best": best and _figures(best, bound_s, best),
        "wattune": _figures(outcomes[pick], bound_s, best),
        "largest micro-batch": _figures(fastest(whole), bound_s, best),
        "smallest micro-batch": _figures(fastest(smallest), bound_s, best),
    }


def _figures(outcome: Outcome, bound_s: float, best: Outcome | None) -> dict[str, Any]:
    return {
        **outcome.point.fields(),
        "requests": len(outcome.latencies_s),
        "within": outcome.share(bound_s),
        "samples_per_s": outcome.rate,
        "of_best": None if best is None else outcome.rate / best.rate,
    }


def run(board: Board, point: OperatingPoint, rate_hz: float) -> Outcome:
    """Train at a point beside requests."""
    device = SimulatedDevice(builtin_board(board.name))
    requests = SimulatedRequests(device, request(), rate_hz=rate_hz, seed=round(rate_hz))
    work, steps, seconds = work_of(TASK, point.shape), 0, max(LEAST_S, REQUESTS / rate_hz)
    with CappedRun(device, NO_LIMIT, point.knobs) as capped:
        capped.start()
        beside, begun_s = Beside(capped, requests), device.now_s()
        with device.breaks(lambda: _wait(beside)):
            while device.now_s() - begun_s < seconds:
                beside.make_room()
                with device.step(work):
                    pass
                steps += 1
        beside.make_room()
        rate = steps * BATCH / (device.now_s() - begun_s)
    return Outcome(point, rate, tuple(requests.latencies_s) or (math.inf,))


def _wait(beside: Beside) -> None:
    beside.make_room()


def summary(cases: Sequence[dict[str, Any]], rule: str) -> dict[str, float]:
    """Shares of requests and throughput of a rule over the cases that some point can serve."""
    most = 1.0 if rule == "wattune" else math.inf  # nothing is gained by a point that is faster, but late
    rows = [case[rule] for case in cases if case["best"] is not None and case[rule] is not None]
    return {
        "cases": len(rows),
        "within": sum(row["within"] * row["requests"] for row in rows) / sum(row["requests"] for row in rows),
        "within_worst": min(row["within"] for row in rows),
        "of_best": statistics.mean(min(most, row["of_best"]) for row in rows),
        "of_best_worst": min(row["of_best"] for row in rows),
    }


if __name__ == "__main__":
    main()
