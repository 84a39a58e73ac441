"""Profiles of programs: what comes out of those that work, and what is said of those that do not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.support.profiles import board
from tests.support.programs import (
    PATTERN,
    Files,
    OneClock,
    ProgramsTime,
    is_gone,
    power_w,
    running,
    step_s,
    trainer,
)

from wattune.cap import SensorLimit
from wattune.errors import InputError, OutOfDeviceMemory, SensorError, WorkloadError
from wattune.point import Knobs
from wattune.profiling import profile_command
from wattune.profiling.program import program_probe, step_times
from wattune.program.process import Process
from wattune.program.workload import ProgramWorkload
from wattune.records import ProfileCell, ProfileTable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(program_probe, "SHORTEST_S", 0.4)


def check(cell, batch_size, clock):
    assert cell.step_s == pytest.approx(step_s(batch_size, clock), rel=1e-6)
    assert cell.power_mean_w == pytest.approx(power_w(batch_size, clock), rel=1e-3)
    assert cell.power_peak_w == pytest.approx(power_w(batch_size, clock), rel=1e-3)


@pytest.mark.slow
def test_by_the_lines_that_it_prints(tmp_path):
    device, said = Files(tmp_path), []
    command = trainer(tmp_path, "--steps", "{steps}")
    table = profile_command(
        device,
        command,
        batch_sizes=(8, 4),
        step_time=PATTERN,
        progress=lambda done, total, what: said.append((done, total, what)),
    )
    assert [(c.batch_size, c.clock_mhz) for c in table.cells] == [(4, 100), (4, 200), (8, 100), (8, 200)]
    for cell in table.cells:
        check(cell, cell.batch_size, cell.clock_mhz)
        assert cell.steps >= 5
        assert cell.power_std_w == pytest.approx(0, abs=1e-9)
    assert table.program.model_dump() == {"command": command, "device": "files:here", "step_time": "printed"}
    assert table.key.model == command
    assert table.strategy == "full"
    assert table.cost.probes == 4
    assert table.cost.time_s > 2
    assert ProfileTable.parse(table.dump()) == table
    assert device.current() == Knobs(clock_mhz=200)
    assert said[0][:2] == (0, 4)
    assert said[-1] == (4, 4, "done")
    assert "batch size 4 at 100 MHz, 8 steps" in said[0][2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (("--steps", "{steps}"), {}),
        (("--steps", "{steps}", "--hold"), {"step_time": PATTERN}),
        (("--say", "{ms:.3f}ms/step"), {"step_time": r"(?P<ms>[\d.]+)ms/step"}),
        (("--stubborn",), {"step_time": PATTERN}),
    ],
    ids=["two run lengths", "lines that come late", "milliseconds, without an end", "does not end"],
)
def test_other_ways_of_timing(tmp_path, monkeypatch, options, arguments):
    monkeypatch.chdir(tmp_path)
    device = OneClock(tmp_path) if arguments else ProgramsTime(tmp_path)
    table = profile_command(device, trainer(tmp_path, *options), batch_sizes=[8], **arguments)
    (cell,) = table.cells
    check(cell, 8, 100.0)
    assert table.program.step_time == ("printed" if arguments else "run lengths")
    assert is_gone(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dies",
    ["killed", "RuntimeError: CUDA out of memory. Tried", "NvMapMemAllocInternalTagged: error 12", "std::bad_alloc"],
)
def test_memory_that_is_not_enough(tmp_path, dies):
    command = trainer(tmp_path, "--steps", "{steps}", "--fits", "4", "--dies", dies)
    table = profile_command(OneClock(tmp_path), command, batch_sizes=[4, 8, 16], step_time=PATTERN)
    assert [c.out_of_memory for c in table.cells] == [False, True, True]
    assert "16" not in (tmp_path / "calls").read_text().split()
    with pytest.raises(OutOfDeviceMemory, match="not even 8"):
        profile_command(OneClock(tmp_path), command, batch_sizes=[8, 16], step_time=PATTERN)


@pytest.mark.slow
def test_along_a_cap(tmp_path):
    # 3.5 and 4.5 W at batch size 4, 4 and 5 W at 8, 6 and 7 W at 24.
    command = trainer(tmp_path, "--steps", "{steps}", "--stubborn")
    table = profile_command(Files(tmp_path), command, batch_sizes=[4, 8, 24], step_time=PATTERN, limit=SensorLimit(4.6))
    assert is_gone(tmp_path)
    assert table.strategy == "staircase"
    assert {(p.batch_size, p.clock_mhz, p.power_w) for p in table.aborted} == {(24, 100, 6.0), (8, 200, 5.0)}
    assert {(c.batch_size, c.clock_mhz) for c in table.cells} == {(8, 100), (4, 100), (4, 200)}
    assert all(c.power_peak_w <= 4.6 for c in table.cells)
    assert table.cost.cap_w == 4.6


class Children(OneClock):
    """Hears of no power below the cap."""

    def power_w(self):
        return 9.0


@pytest.mark.slow
def test_above_the_cap_children_end_as_well(tmp_path):
    (tmp_path / "many.sh").write_text("(trap '' TERM; sleep 60) & (sleep 60) & echo $!; trap '' TERM; wait; sleep 60")
    command = f"sh {tmp_path / 'many.sh'} {{batch_size}} {{steps}}"
    table = profile_command(Children(tmp_path), command, batch_sizes=[4], limit=SensorLimit(5.0))
    assert [p.power_w for p in table.aborted] == [9.0]
    assert not running("many.sh")


def test_what_left_the_programs_session_ends_as_well(tmp_path):
    """Left behind, it would draw power in all that is measured later."""
    script = f"setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done # {tmp_path}' & sleep 60"
    (tmp_path / "away.sh").write_text(script)
    table = profile_command(Children(tmp_path), f"sh {tmp_path / 'away.sh'} {{batch_size}}", batch_sizes=[4],
                            limit=SensorLimit(5.0), step_time=PATTERN)  # fmt: skip
    assert table.aborted
    assert not running(tmp_path)


@pytest.mark.slow
def test_a_program_that_takes_no_notice_of_its_batch_size_is_named(tmp_path):
    device = Files(tmp_path)
    ignoring = trainer(tmp_path, "--steps", "{steps}").replace("--batch {batch_size}", "--batch 4 --dies {batch_size}")
    assert "--dies {batch_size}" in ignoring
    options = {"batch_sizes": (4, 16), "step_time": PATTERN}
    (note,) = profile_command(device, ignoring, **options).notes
    assert "as long with batch size 16 as with 4" in note
    assert profile_command(device, trainer(tmp_path, "--steps", "{steps}"), **options).notes == ()


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        ("echo hello; exit 3", {}, ["exit code 3", "batch size 4 and 100 MHz", "hello"]),
        ("kill -SEGV $$", {}, ["signal 11", "none"]),
        ("sleep 60", {"run_limit_s": 1.0}, ["did not end within 1 s", "--run-limit"]),
        ("sleep 0.01; true", {}, ["hardly longer", "{steps}"]),
        ("printf '\\377\\376\\000(step 1 took x s\\n'", {"step_time": PATTERN}, ["too few step times", "took x s"]),
        ("for i in 1 2 3 4 5 6 7 8 9; do echo took 45 s; done", {"step_time": PATTERN}, ["add up to", "(?P<ms>"]),
        ("for i in 1 2 3 4 5 6 7 8 9; do echo took 0.0001 s; done", {"step_time": PATTERN}, ["too short"]),
        ("head -c 3000000 /dev/zero; exit 1", {}, ["exit code 1"]),
    ],
)
def test_programs_that_do_not_work_are_one_line(tmp_path, monkeypatch, script, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.sh").write_text(script)
    device = OneClock(tmp_path)
    with pytest.raises(WorkloadError) as caught:
        profile_command(device, f"sh {tmp_path / 'bad.sh'} {{batch_size}} {{steps}}", batch_sizes=[4], **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert device.current() == Knobs(clock_mhz=200)


@pytest.mark.parametrize(
    ("script", "unseen_s"),
    [("for n in 1 2 3; do echo acc 0.$n; done; sleep 60", 300.0), ("echo acc 0.3; sleep 60", 0.5)],
)
def test_a_program_whose_steps_are_not_seen_is_ended_early(tmp_path, monkeypatch, script, unseen_s):
    monkeypatch.setattr(step_times, "UNSEEN_S", unseen_s)
    (tmp_path / "train.sh").write_text(script)
    program = ProgramWorkload(f"sh {tmp_path / 'train.sh'} {{batch_size}}", (4,), 0.9, "acc ([0-9.]+)")
    with pytest.raises(WorkloadError, match=r"no step of .*; its last line: acc 0\.3; give --samples REGEX"):
        profile_command(OneClock(tmp_path), program, run_limit_s=20.0)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("true {batch_size}", {}, "put {steps} into the command"),
        ("true '{batch_size}", {}, "No closing quotation"),
        ("true {batch_size} {steps}", {"step_time": "("}, "pattern"),
        ("true {batch_size} {steps}", {"step_time": "no group"}, "one group"),
        ("true {batch_size} {steps}", {"batch_sizes": [4, 4]}, "4,4"),
        ("true {batch_size} {steps}", {"batch_sizes": []}, "none"),
        ("true {batch_size} {steps}", {"strategy": "staircase"}, "only with a cap"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, command, options, words):
    with pytest.raises(InputError, match=re.escape(words)):
        profile_command(Files(tmp_path), command, **{"batch_sizes": [4], **options})


STEPS = """
import sys, torch
size = int(sys.argv[1])
weight = torch.zeros(64, 64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(int(sys.argv[2])):
    (torch.ones(size, 64) @ weight).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_simulated_board_counts_the_steps_of_a_python_program(tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    command = f"{sys.executable} {tmp_path / 'steps.py'}"
    table = profile_command(board(), f"{command} {{batch_size}} 9", batch_sizes=[4, 4096], strategy="full")
    steps_s = {cell.batch_size: cell.step_s for cell in table.measured if cell.clock_mhz == table.measured[0].clock_mhz}
    assert 0 < steps_s[4] < steps_s[4096]
    assert (table.provenance.kind, table.program.step_time) == ("simulated", "steps seen")
    limit = SensorLimit(4.4, window_s=1.0)
    below = profile_command(board(), f"{command} {{batch_size}} 9", batch_sizes=[4, 4096], limit=limit)
    assert below.aborted == (), "what would be above the cap is foreseen from the probes below"
    for size in (4, 4096):
        kept = {cell.clock_mhz for cell in table.measured if cell.batch_size == size and cell.power_peak_w <= 4.4}
        assert max(kept) == max(cell.clock_mhz for cell in below.measured if cell.batch_size == size)
    for arguments, says in (
        ("4 9 {batch_size}", "the program's steps are the same at all batch sizes: 4, 16"),
        ("{batch_size} 2", "the program makes too few steps of torch to be simulated"),
        ("{batch_size} x", "with exit code 1 at batch size 4; its last line: ValueError"),
    ):
        with pytest.raises(WorkloadError, match=says):
            profile_command(board(), f"{command} {arguments}", batch_sizes=[4, 16])
    few = STEPS.replace(
        "size = int(sys.argv[1])", "size = int(sys.argv[1])\nif size > int(sys.argv[3]): raise MemoryError"
    )
    (tmp_path / "few.py").write_text(few)
    command, options = f"{sys.executable} {tmp_path / 'few.py'} {{batch_size}} 9", {"batch_sizes": [4, 8, 16, 32]}
    table = profile_command(board(), f"{command} 8", strategy="full", **options)
    assert {cell.batch_size for cell in table.measured} == {4, 8}
    assert {cell.batch_size for cell in table.cells if cell.out_of_memory} == {16, 32}
    with pytest.raises(OutOfDeviceMemory, match="runs out of memory at batch size 4"):
        profile_command(board(), f"{command} 2", **options)
    with pytest.raises(WorkloadError, match=r"can only rehearse Python's"):
        profile_command(board(), "true {batch_size}", batch_sizes=[4])


@pytest.mark.slow
def test_by_the_steps_that_are_seen(tmp_path):
    """The hook sees them: the program neither prints them nor takes a number of steps."""
    (tmp_path / "steps.py").write_text(
        STEPS.replace("    optimizer", "    __import__('time').sleep(size / 400)\n    optimizer")
    )
    command = f"{sys.executable} {tmp_path / 'steps.py'} {{batch_size}} 100000"
    table = profile_command(OneClock(tmp_path), command, batch_sizes=[4, 16], strategy="full")
    steps_s = {cell.batch_size: cell.step_s for cell in table.measured}
    assert 0.01 < steps_s[4] < 0.04 < steps_s[16]
    said = trainer(tmp_path, "--stubborn", "--say", "acc {samples}e-9 of {samples}")
    program = ProgramWorkload(said, (8,), 0.9, "acc ([0-9.e-]+)", samples="of ([0-9]+)")
    (cell,) = profile_command(OneClock(tmp_path), program).measured
    assert cell.step_s >= 0.02, "not by the steps that it makes while it is asked to end"
    with pytest.raises(WorkloadError, match="too few step times in what is seen of the program"):
        profile_command(OneClock(tmp_path), "sleep {batch_size}", batch_sizes=[1])


@pytest.mark.slow
def test_a_sensor_that_goes_ends_the_program(tmp_path):
    device = OneClock(tmp_path)
    (tmp_path / "asleep.sh").write_text(f"echo $$ > {tmp_path / 'pid'}; exec sleep 60")
    threading.Timer(0.5, device.power_file.unlink).start()
    with pytest.raises(SensorError):
        profile_command(device, f"sh {tmp_path / 'asleep.sh'} {{batch_size}} {{steps}}", batch_sizes=[4])
    assert is_gone(tmp_path)
    assert device.current() == Knobs(clock_mhz=200)


@pytest.mark.slow
def test_it_goes_on_where_it_was_interrupted(tmp_path):
    command, path = trainer(tmp_path, "--steps", "{steps}"), tmp_path / "partial.json"

    def interrupt(done, total, what):
        if done == 2 and what != "done":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    def measure(progress=None, **options):
        return profile_command(
            Files(tmp_path), command, batch_sizes=[4, 8], step_time=PATTERN, partial=path, progress=progress, **options
        )

    with pytest.raises(KeyboardInterrupt):
        measure(interrupt)
    assert is_gone(tmp_path)
    assert (tmp_path / "cur_freq").read_text() == "200\n"
    first, *kept = map(json.loads, path.read_text().splitlines())
    assert len(kept) == 2
    kept[0]["cell"]["step_s"] *= 1.25
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, *kept)))
    (tmp_path / "calls").unlink()
    table = measure()
    assert "4" not in (tmp_path / "calls").read_text().split()
    assert list(table.cells[:2]) == [ProfileCell.model_validate(note["cell"]) for note in kept]
    assert len(table.cells) == 4
    (tmp_path / "calls").unlink()
    assert measure().cells == table.cells
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_while_a_program_is_started_ends_the_program(tmp_path, monkeypatch, number):
    """Also one that comes when the program runs already, and nothing here knows it yet."""
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGTERM, signal.SIGHUP)}
    start = subprocess.Popen

    def starts(*arguments, **options):
        started = start(*arguments, **options)
        os.kill(os.getpid(), number)
        return started

    monkeypatch.setattr(subprocess, "Popen", starts)
    words = [sys.executable, "-S", "-c", f"import time; time.sleep(30)  # {tmp_path}"]
    try:
        with pytest.raises(KeyboardInterrupt):
            with Process(words, now_s=time.monotonic):
                pytest.fail("it was entered")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert not running(tmp_path)


def test_a_program_ends_with_the_process_that_started_it(tmp_path):
    """Killed, it cannot end the program itself, which would draw power that nobody limits."""
    code = f"""
import sys, threading, time
from wattune.program.process import Process
words = ["sh", "-c", "trap '' TERM; echo $$ > {tmp_path}/pid; echo on; while :; do sleep 0.1; done"]
with Process(words, now_s=time.monotonic, on_line=lambda _, line: print(line, flush=True)):
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout.readline() == "on\n"
        starter.kill()
    assert is_gone(tmp_path, 20.0)
