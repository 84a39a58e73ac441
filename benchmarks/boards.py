"""What touching a board costs, on files that stand for one: aim 0.2 ms a reading, and no memory that grows.

A reading is taken on the files of every board in ``tests/boards``; those are plain files, which the kernel's own are
not: their driver also has to ask the chip, over a bus that takes its own time. Clock, guard and agent are measured on
a live board in user space, which looks at its files every 2 ms and whose clock follows 50 ms later. A rise of power is
that of a program in C that begins to work; its board counts its use of the processor every 100 ms, as one that
averages over that time would, so what the guard itself needs is the time from when the board's power is above the cap.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.tree import LiveTree
from tests.live_made import agent, compiled, live, rises

from benchmarks.timing import keep
from wattune.devices import Meter
from wattune.devices.local import BoardDevice
from wattune.training.guard import Guard
from wattune.training.watch import Watch
from wattune_agent.capture import materialise
from wattune_agent.client import Client
from wattune_agent.conditions import conditions
from wattune_agent.controller import Controller
from wattune_agent.discovery import families, find_board
from wattune_agent.tree import PROGRAMS, Tree

BOARDS = Path(__file__).parent.parent / "tests" / "boards"
READINGS = 400
RISES = 16
HOUR_S = 3600.0
WARM_S = 600.0
"""After that much time of a training the meter's trace is as long as it will be."""


def main() -> None:
    """Measure and keep."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keep(
            "boards",
            {
                "aim_s": 2e-4,
                "readings": READINGS,
                "boards": [reading(path, folder / path.stem) for path in sorted(BOARDS.glob("*.json"))],
                "pinning": pinning(folder / "pinned"),
                "agent": round_trips(folder / "asked"),
                "guard": latency(folder / "guarded"),
                "memory": memory(folder),
            },
        )


def opened(path: Path, root: Path) -> tuple[Tree, Controller, bool]:
    """A board's files, written below ``root``, with their controller; and whether a program has to be asked."""
    materialise(json.loads(path.read_text(encoding="utf-8")), str(root))
    # A Raspberry Pi 5 is read by a program, vcgencmd: here a script that prints what one printed.
    by_program = (root / "outputs" / "vcgencmd").exists()
    if by_program:
        as_program(root)
    tree = Tree(str(root))
    return tree, Controller(find_board(tree, families(tree)[0])), by_program


def reading(path: Path, root: Path) -> dict[str, Any]:
    """What a reading costs on one board's files: of the controller, and of the device that training sees."""
    tree, controller, by_program = opened(path, root)
    sensor = controller.board.sensor
    assert sensor is not None
    device = BoardDevice(controller, tree)
    counters = sorted({file.resolve() for file in root.glob("sys/**/energy_uj")})
    calls: dict[str, Callable[[], object]] = {
        "sensor": sensor.read,
        "controller": controller.read,
        "device": device.power_w,
    }
    found: dict[str, Any] = {"board": path.stem, "by_program": by_program}
    repeats = READINGS // 10 if by_program else READINGS
    for name, call in calls.items():
        times_s = []
        for repeat in range(repeats + 3):
            for counter in counters:
                counter.write_text(f"{int(counter.read_text()) + 50000}\n")
            if counters:
                time.sleep(0.005)  # of a counter, power is the difference over a time
            taken_s = timed(call)
            if repeat >= 3:
                times_s.append(taken_s)
        found[name] = spread(times_s)
    # Temperatures and counters, which a reading looks at as well once a second.
    found["conditions"] = spread([timed(lambda: conditions(tree)) for _ in range(50)])
    return found


def as_program(root: Path) -> None:
    """Have a program give the answers that were recorded; programs of such a folder run only for who asks for it."""
    answers = (root / "outputs" / "vcgencmd").rename(root / "answers")
    script = root / "usr" / "bin" / "vcgencmd"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nwhile IFS= read -r line; do echo "$line"; done < "{answers}/$1"\n', encoding="utf-8")
    script.chmod(0o755)
    os.environ[PROGRAMS] = "1"


def pinning(root: Path) -> dict[str, Any]:
    """Taking the board, changing its clock, and bringing it back."""
    first_s, next_s, back_s = [], [], []
    with live(root, throttled=False) as board:
        controller = Controller(find_board(Tree(str(root)), "jetson"))
        for repeat in range(30):
            times = [time.perf_counter()]
            for mhz in (612.0, 816.0 if repeat % 2 else 306.0):
                controller.pin(mhz)
                times.append(time.perf_counter())
            controller.restore()
            times.append(time.perf_counter())
            for where, begin, end in zip((first_s, next_s, back_s), times, times[1:], strict=False):
                where.append(end - begin)
            time.sleep(0.1)
        assert board.is_as_found(), board.changes()
    return {"first": spread(first_s), "next": spread(next_s), "restore": spread(back_s)}


def round_trips(folder: Path) -> dict[str, Any]:
    """Questions to an agent: a reading that it has to take, and one that it answers by itself."""
    folder.mkdir()
    read_s, renew_s = [], []
    with live(folder / "board", throttled=False) as board, agent(board, folder / "socket"):
        with Client(str(folder / "socket")) as client:
            client.pin(612.0)
            for _ in range(READINGS // 2):
                time.sleep(0.025)  # a reading is shared for 20 ms
                begin_s = time.perf_counter()
                client.read()
                between_s = time.perf_counter()
                client.check()
                read_s.append(between_s - begin_s)
                renew_s.append(time.perf_counter() - between_s)
    return {"read": spread(read_s), "renew": spread(renew_s)}


def latency(folder: Path) -> dict[str, Any]:
    """From a rise of power above the cap to the lower clock in the board's files, through ``wattune guard``."""
    folder.mkdir()
    program = compiled(folder)
    with live(folder / "board") as board:
        found = rises(board, program, RISES)
        assert board.is_as_found(), board.changes()
    return {
        "from_power": spread([one.power_s for one in found]),
        "from_program": spread([one.program_s for one in found]),
        "sampling_s": 0.1,
    }


def memory(folder: Path) -> dict[str, Any]:
    """An hour of virtual time, ten readings a second, after ten minutes and at its end."""
    began_s = time.perf_counter()
    rss_bytes = hour(folder / "hour", _resident)
    untraced_s = time.perf_counter() - began_s
    tracemalloc.start()
    try:
        traced_bytes = hour(folder / "traced", lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return {
        "readings": rss_bytes["readings"],
        "guard_events": rss_bytes["guard_events"],
        "resident_growth_bytes": rss_bytes["growth"],
        "traced_growth_bytes": traced_bytes["growth"],
        "wall_s": untraced_s,
    }


class VirtualBoard(BoardDevice):
    """A live board on time of its own, which is sampled whenever time passes."""

    def __init__(self, tree: LiveTree) -> None:
        super().__init__(Controller(find_board(tree, "jetson")), tree)
        self._call: Callable[[], None] = lambda: None

    @contextmanager
    def every(self, period_s: float, call: Callable[[], None]) -> Iterator[None]:
        """Remember what ``wait`` calls."""
        self._call = call
        yield

    def wait(self, seconds: float) -> None:
        """One instant of sampling."""
        super().wait(seconds)
        self._call()


def hour(root: Path, bytes_now: Callable[[], int], seconds: float = HOUR_S, warm_s: float = WARM_S) -> dict[str, Any]:
    """What a training does beside its steps, for an hour: how many bytes more are held at its end than at ``warm_s``.

    The board's load changes every minute, so that the guard has something to do.
    """
    tree = LiveTree(root)
    device, shuffle, before, tick = VirtualBoard(tree), random.Random(0), 0, 0
    with device.at(816.0) as setting:
        guard, watch = Guard(device, setting, 7.5, 90.0), Watch(device)
        with Meter(device, cap_w=7.5, on_reading=guard) as meter:
            for tick in range(1, round(10 * seconds) + 1):
                if tick % 600 == 1:
                    tree.board.load = shuffle.random()
                device.wait(0.1)
                watch.look(meter.elapsed_s)
                if tick == round(10 * warm_s):
                    gc.collect()
                    before = bytes_now()
            gc.collect()
            growth = bytes_now() - before
            events = len(guard.events)
            readings = meter.figures().readings
    device.close()
    return {"growth": growth, "readings": readings, "guard_events": events, "ticks": tick}


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begin_s = time.perf_counter()
    call()
    return time.perf_counter() - begin_s


def spread(times_s: list[float]) -> dict[str, float]:
    """Median and worst, in seconds, and how many."""
    return {"median_s": statistics.median(times_s), "max_s": max(times_s), "repeats": len(times_s)}


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    return 0


if __name__ == "__main__":
    main()
