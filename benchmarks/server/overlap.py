"""Profiling a device while the server estimates: `python -m benchmarks overlap [SECONDS]`.

Aim: together they take less than 1.1 times the longer of the two alone. The board is a simulated Jetson Nano whose time
passes in real time (SECONDS per second of the board, by default 1), so that its profile takes as long as on a physical
board; the server with one worker process and the device's program are on the same machine. Every part has its own empty
store and cache. "Together" is from the call of `wattune.run` until both profile and curve are finished, with the
request for the model, its weights and the checks of the data.

The machine should be idle: the time of the sweep depends on the CPU. The worker's CPU time, alone and together, is
reported beside the times.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.server.slow import RealTime
from tests.support.server.story import Process, running

import wattune
from benchmarks.timing import keep
from wattune.records.served import SweepRequest
from wattune.remote import Client
from wattune.workloads import example_workload

AIM = 1.1
NAME = "server_overlap"
BOARD, CAP_W = "jetson-nano", 5.0
MODEL = "resnet8-digits"


class BothDone(Exception):
    """End of the measurement: profile and curve are finished."""


def main(arguments: list[str]) -> None:
    """Measure each of the three, and store the results."""
    seconds = float(arguments[0]) if arguments else 1.0
    begin_load = os.getloadavg()[0]
    profile_s = _profile_s(seconds)
    estimate = _estimate()
    together = _together(seconds)
    longer_s = max(profile_s, estimate["wall_s"])
    figures = {
        "board": f"sim:{BOARD}",
        "cap_w": CAP_W,
        "model": MODEL,
        "real_s_per_board_s": seconds,
        "workers": 1,
        "profile_alone_s": round(profile_s, 2),
        "estimate_alone_s": round(estimate["wall_s"], 2),
        "estimate_alone_worker_cpu_s": round(estimate["cpu_s"], 2),
        "together_s": round(together["wall_s"], 2),
        "together_worker_cpu_s": round(together["cpu_s"], 2),
        "ratio": round(together["wall_s"] / longer_s, 4),
        "one_after_the_other": round((profile_s + estimate["wall_s"]) / longer_s, 4),
        "aim": AIM,
        "load_before": round(begin_load, 2),
        "load_after": round(os.getloadavg()[0], 2),
    }
    keep(NAME, figures)


def markdown(data: dict[str, Any]) -> str:
    """The table of the README."""
    return (
        "| profile alone | estimate alone | both at once | relative to the longer one | sequentially |\n"
        "|---|---|---|---|---|\n"
        f"| {data['profile_alone_s']:.0f} s | {data['estimate_alone_s']:.0f} s | {data['together_s']:.0f} s "
        f"| {data['ratio']:.2f} | {data['one_after_the_other']:.2f} |\n\n"
        f"The worker used {data['estimate_alone_worker_cpu_s']:.0f} s of CPU time alone and "
        f"{data['together_worker_cpu_s']:.0f} s beside the device. Before the start {data['load_before']:.1f} other "
        "processes were runnable on average.\n"
    )


def verdict(data: dict[str, Any]) -> str:
    """Sentence with the time of profiling and estimating at the same time."""
    return (
        f"Profiling a device while the server estimates takes {data['ratio']:.2f} times as long as the longer of the "
        f"two (aim: {data['aim']:g}; sequentially: {data['one_after_the_other']:.2f}).\n"
    )


def _profile_s(seconds: float) -> float:
    board, work = RealTime(BOARD, seconds=seconds), example_workload()
    begin_s = time.monotonic()
    wattune.profile(board, work, cap_w=CAP_W, reference=False)
    return time.monotonic() - begin_s


def _estimate() -> dict[str, float]:
    with _server() as (server, folder), Client(server.url, cache=folder / "cache") as client:
        model = client.model(MODEL)
        before_s, begin_s = _cpu_s(server), time.monotonic()
        client.sweep(SweepRequest(model=MODEL), model)
        return {"wall_s": time.monotonic() - begin_s, "cpu_s": _cpu_s(server) - before_s}


def _together(seconds: float) -> dict[str, float]:
    def until_both(done: int, total: int, what: str) -> None:
        if what == "estimate: done":
            raise BothDone

    with _server() as (server, folder):
        data = folder / "my.npz"
        _own_images(data)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        board = RealTime(BOARD, seconds=seconds)
        before_s, begin_s = _cpu_s(server), time.monotonic()
        try:
            wattune.run_with_server(
                board,
                server=server.url,
                model=MODEL,
                data=data,
                cap_w=CAP_W,
                device_name="board",
                reference=False,
                output=folder / "run",
                progress=until_both,
            )
        except BothDone:
            return {"wall_s": time.monotonic() - begin_s, "cpu_s": _cpu_s(server) - before_s}
    raise AssertionError("the run ended without a plan")


@contextmanager
def _server() -> Iterator[tuple[Process, Path]]:
    """Context of a server with only the built-in example, whose worker has started."""
    with tempfile.TemporaryDirectory() as name, running(Path(name) / "store") as server:
        end_s = time.monotonic() + 120
        while not server.get("/v1/models"):
            assert time.monotonic() < end_s, "the example is not served"
            time.sleep(0.2)
        time.sleep(2)
        yield server, Path(name)


def _own_images(path: Path) -> None:
    data = example_workload().loaded
    images, labels = (np.concatenate(pair) for pair in zip(data.train, data.test, strict=True))  # type: ignore[union-attr]
    np.savez(path, images=images, labels=labels)


def _cpu_s(server: Process) -> float:
    """CPU time of the server's child processes, which are its workers."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields: list[Any]
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == server.process.pid:
            total += (int(fields[11]) + int(fields[12])) / tick
    return total
