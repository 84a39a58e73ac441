"""The whole job on a live board in user space, on wall-clock time: its clock really holds back what works on it."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_socket import serving
from tests.support.live.power import MODELS
from tests.support.live.tree import LiveTree
from tests.support.live_board import COMMAND, ENVIRONMENT, Board, live, wait_for, wattune

from wattune.cap import SensorLimit
from wattune.devices import Meter
from wattune.devices.agent import BoardDevice
from wattune.point import Knobs
from wattune.power.limiter import PowerLimiter
from wattune.power.monitor import BoardMonitor
from wattune.records import Plan, ProfileTable, SampleEfficiency, TrainingRecord
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("boards"),
    pytest.mark.skipif(os.name != "posix", reason="/sys"),
]

CAP_W = 7.5

TINY = """
name = "tiny"
model = { name = "small-cnn", options = { width = 16, channels = 1, classes = 5 } }
input_shape = [1, 16, 16]
batch_sizes = [8, 16]
budget_samples = 24000
evaluate_every = 640
target = 0.96
optimizer = { name = "adam", learning_rate = 5e-5, reference_batch_size = 32, scaling = "sqrt" }
data = { source = "digits", size = 16, classes = [5, 6, 7, 8, 9], invert = true }

[proxy]
target = 0.6
data = { source = "digits", size = 16, classes = [5, 6, 7, 8, 9] }
"""

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Board, Path]:
    """A run whose training draws more than its profile said, since the board was less busy then; and its board."""
    folder = tmp_path_factory.mktemp("run")
    with live(folder / "board") as board:
        board.load(0.6)
        with wattune(board, *run(tiny, board, folder / "run")) as process:
            assert wait_for((folder / "run" / "plan.json").exists, 240) or process.poll() is None
            exceed_cap(board, Plan.load(folder / "run" / "plan.json").clock_mhz or 0.0)
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0, said
        assert wait_for(board.is_as_found, 5), board.changes()
    return board, folder / "run"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with live(tmp_path / "board") as board:
        yield board
        assert wait_for(board.is_as_found, 5), board.changes()


def run(tiny: Path, board: Board, folder: Path) -> list[object]:
    """By the GPU's clock alone: its staircase has a cell of every batch size."""
    device = ["--device", "jetson", "--set", f"sysfs_root={board.root}", "--set", "knobs=gpu"]
    return ["run", tiny, *device, "--cap", f"{CAP_W}W", "--set", "seeds=1", "--set", "processes=1", "-o", folder]


def exceed_cap(board: Board, mhz: float) -> None:
    """Let this clock draw more than the cap, whichever was planned: on a machine that others use, the fastest measured
    point may have a low clock, where full load alone stays below the cap, and its processes may have little time."""
    idle_w, full_w = (MODELS["orin-nano"].power(mhz / 1e3, load, False)["VDD_IN"] for load in (0.0, 1.0))
    board.load(max(1.0, (CAP_W + 0.4 - idle_w) / (full_w - idle_w)))


def guard(board: Board, *arguments: object, timeout: float = 60.0) -> tuple[int, dict[str, Any]]:
    """``wattune guard`` on the live board: its exit code and report."""
    command = [*COMMAND, "guard", "--device", "jetson", "--sysfs-root", board.root, "--json", *arguments]
    words = [str(word) for word in command]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout)
    return done.returncode, json.loads(done.stdout)


def check_run(folder: Path) -> TrainingRecord:
    """Every record is there, says that it comes from a board in user space, and tells what was drawn."""
    for kind in (ProfileTable, SampleEfficiency, Plan, TrainingRecord):
        record = kind.load(folder / f"{kind.name}.json")
        if kind is not SampleEfficiency:
            assert record.provenance.kind == "simulated"
    table, record = ProfileTable.load(folder / "profile.json"), TrainingRecord.load(folder / "training.json")
    assert table.reference is None
    sizes = {cell.batch_size for cell in table.cells} | {probe.batch_size for probe in table.aborted}
    assert sizes == {8, 16} if table.strategy == "staircase" else sizes
    assert record.ended == "target reached"
    assert record.plan.cap_w == CAP_W
    assert 3.0 * record.time_s < record.energy_j < 13.0 * record.time_s
    assert (record.readings or 0) > 3 * record.time_s
    assert "simulated" in (folder / "report.html").read_text(encoding="utf-8").lower()
    return record


def test_the_whole_job(finished: tuple[Board, Path]) -> None:
    record = check_run(finished[1])
    downs = [event for event in record.guard if event.action == "down"]
    assert downs
    assert downs[0].power_w > CAP_W
    assert record.power_peak_w > CAP_W
    assert record.above_cap_s < record.time_s
    assert record.trace[-1].setting == record.guard[-1].setting


def test_the_clock_really_holds_the_work_back(finished: tuple[Board, Path]) -> None:
    table = ProfileTable.load(finished[1] / "profile.json")
    rows = [[cell for cell in table.cells if cell.batch_size == size and cell.step_s] for size in (8, 16)]
    row = sorted((cell.clock_mhz or 0.0, cell.step_s or 0.0) for cell in max(rows, key=len))
    (low_mhz, slow_s), (high_mhz, fast_s) = row[0], row[-1]
    assert low_mhz < high_mhz
    assert slow_s > fast_s


def test_the_whole_job_through_an_agent(tiny: Path, board: Board, tmp_path: Path) -> None:
    with serving(board.root, tmp_path / "socket") as agent:
        device = f"agent:{agent.socket}"
        command = ["run", tiny, "--device", device, "--cap", f"{CAP_W}W", "--set", "seeds=1", "--set", "processes=1"]
        with wattune(board, *command, "-o", tmp_path / "run") as process:
            assert wait_for(board.is_pinned, 60)
            said, _ = process.communicate(timeout=240)
            assert process.returncode == 0, said
        assert wait_for(board.is_as_found, 5), board.changes()  # before the agent ends
    check_run(tmp_path / "run")


def test_killed_twice_brought_back_and_gone_on_with(tiny: Path, board: Board, tmp_path: Path) -> None:
    folder, resume = tmp_path / "run", ["run", "-o", tmp_path / "run", "--resume"]
    with wattune(board, *run(tiny, board, folder)) as process:
        # Since the first cell is kept there is a second one under way.
        assert wait_for(lambda: (folder / "profile-partial.json").exists() and board.snapshots(), 120)
        process.kill()
        process.communicate()
    assert board.snapshots()
    command = [*COMMAND, "restore", "--sysfs-root", str(board.root)]
    restored = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert restored.returncode == 0, restored.stderr
    assert wait_for(board.is_as_found, 5), board.changes()

    with wattune(board, *resume) as process:
        assert wait_for((folder / "checkpoint" / "training.safetensors").exists, 240), process.poll()
        process.kill()
        process.communicate()
    assert not board.is_as_found()
    kept = ProfileTable.load(folder / "profile.json")

    with wattune(board, *resume) as process:  # it brings the board back by itself
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
    record = check_run(folder)
    assert ProfileTable.load(folder / "profile.json") == kept
    assert "left behind" in {event.kind for event in record.board_events}


def test_a_trainer_that_hangs_is_capped_by_the_agent(finished: tuple[Board, Path], tiny: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    shutil.copy(finished[1] / "plan.json", plan)
    planned_mhz = Plan.load(plan).clock_mhz or 0.0
    socket = tmp_path / "socket"
    with live(tmp_path / "board", throttled=False, load=0.2) as board, serving(board.root, socket):
        endless = tmp_path / "endless.toml"  # no target, so that it does not end before it hangs
        endless.write_text(TINY.replace("target = 0.96\n", ""), encoding="utf-8")
        command = ["train", plan, endless, "--device", f"agent:{socket}", "-o", tmp_path / "training.json"]
        with wattune(board, *command) as process:
            assert wait_for((tmp_path / "training-checkpoint.safetensors").exists, 120), process.poll()
            process.send_signal(signal.SIGSTOP)
            assert board.limit_mhz() == planned_mhz
            exceed_cap(board, planned_mhz)
            assert wait_for(lambda: board.power_w() > CAP_W, 2)
            # Two seconds are left to the trainer; from then on it is the lowest clock until the trainer reads again.
            assert wait_for(lambda: board.limit_mhz() == 306.0, 8)
            assert wait_for(lambda: board.power_w() <= CAP_W, 8)
            board.load(0.2)
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 3, said  # there was no target to reach
        assert wait_for(board.is_as_found, 5), board.changes()
    kinds = {event.kind for event in TrainingRecord.load(tmp_path / "training.json").board_events}
    assert {"guard", "reading again"} <= kinds


LOWERED = "f={0}/sys/class/devfreq/17000000.gpu/max_freq; until [ $(cat $f || echo 0) -le {1}000000 ]; do {2}; done"
"""Runs until the clock's limit is there. How busy the board is, is told: this machine may have little time."""


def test_a_shell_loop_under_a_cap(board: Board) -> None:
    board.load(1.0)
    script = LOWERED.format(board.root, 306, "i=$((i+1))") + "; exit 7"
    code, report = guard(board, "--clock", "612MHz", "--cap", "6W", "--", "sh", "-c", script)
    assert code == report["exit_code"] == 7
    assert report["ended"] == "finished"
    assert 3.0 * report["time_s"] < report["energy_j"] < 13.0 * report["time_s"]
    # At 408 MHz and busy the board draws 6.07 W.
    lowered = [event["setting"] for event in report["events"] if event["kind"] == "guard" and event["action"] == "down"]
    assert lowered[-1] == 306.0
    assert lowered == sorted(lowered, reverse=True)
    assert report["above_cap_s"] < report["time_s"]


def test_a_reading_opens_few_files_and_starts_no_program(tmp_path: Path) -> None:
    """That is what would make it slow; how long it takes stands in the benchmark's results."""
    from benchmarks.boards import SENSED, opened

    done: list[str] = []
    looks = True
    sys.addaudithook(lambda event, _: done.append(event) if looks else None)  # for good: there is no way to remove it
    found = {}
    try:
        for path in SENSED:
            _, controller = opened(path, tmp_path / path.stem)
            counters = sorted({file.resolve() for file in (tmp_path / path.stem).glob("sys/**/energy_uj")})
            for _ in range(2):  # the first reading opens what later ones keep open
                for counter in counters:
                    counter.write_text(f"{int(counter.read_text()) + 50000}\n")
                time.sleep(0.005)  # of a counter, power is the difference over a time
                done.clear()
                controller.read()
            found[path.stem] = list(done)
    finally:
        looks = False  # or it would keep all that later tests of this process open
    assert len(found) >= 12
    assert not [board for board, events in found.items() if "subprocess.Popen" in events]
    assert {board: events.count("open") for board, events in found.items() if events.count("open") > 12} == {}


class VirtualBoard(BoardDevice):
    """A live board on virtual time, which is sampled whenever time passes."""

    def __init__(self, tree: LiveTree) -> None:
        super().__init__(Controller(find_board(tree, "jetson")), tree)

    @contextmanager
    def every(self, period_s: float, call: Callable[[], None]) -> Iterator[None]:
        self._call = call
        yield

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._call()


def test_an_hour_of_readings_takes_no_memory(tmp_path: Path) -> None:
    tree = LiveTree(tmp_path / "board")
    device, shuffle, before = VirtualBoard(tree), random.Random(0), 0
    with device.at(Knobs(clock_mhz=816.0)) as setting:
        limiter, monitor = PowerLimiter(device, setting, SensorLimit(7.5, max_temp_c=90.0)), BoardMonitor(device)
        with Meter(device, limit=SensorLimit(7.5), on_reading=limiter) as meter:
            for tick in range(36000):
                if tick % 600 == 0:  # so that the guard has something to do
                    tree.board.load = shuffle.random()
                device.wait(0.1)
                monitor.look(meter.elapsed_s)
                if tick == 6000:  # from here on, the meter's trace has its full length
                    gc.collect()
                    before = sys.getallocatedblocks()
            gc.collect()
            growth = sys.getallocatedblocks() - before
        assert meter.figures().readings == 36000
    device.close()
    assert len(limiter.events) > 5
    # Fifty minutes are 30000 readings: one object kept of each tenth one would be more.
    assert growth < 3000


def test_an_interrupted_run_leaves_the_board_as_found(tiny: Path, board: Board, tmp_path: Path) -> None:
    with wattune(board, *run(tiny, board, tmp_path / "run")) as process:
        assert wait_for(board.snapshots, 120)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1].endswith("--resume") or "interrupted" in said
    assert board.is_as_found(), board.changes()
