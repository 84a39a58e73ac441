"""``wattune guard`` chooses clocks: on a live board in user space with real programs, and as a rehearsal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.support.live_board import COMMAND, ENVIRONMENT, live

STAMPING = """
import os, signal, sys, time
from wattune.program.hook.sitecustomize import VARIABLE, Stamps
stamps, end_s = Stamps(os.environ[VARIABLE]), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end_s:
    time.sleep(0.02)
    stamps.stamp(0)
print("stamped", flush=True)
exec(sys.argv[2])
"""
"""A program that makes rounds as a training does, without the seconds that torch takes to begin."""

TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
print(model[0].weight.double().sum().item())
raise SystemExit(3)
"""


def guard(board, folder, *program, cap="12W"):
    words = [*COMMAND, "guard", "--device", "jetson", "--sysfs-root", board.root, "--cap", cap, "--json"]
    return subprocess.Popen(
        [*map(str, words), "--", sys.executable, "-c", STAMPING, *map(str, program)],
        env={**ENVIRONMENT, "XDG_CACHE_HOME": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_clocks_are_chosen_and_remembered(tmp_path):
    with live(tmp_path / "board", load=0.8) as board:
        reports = []
        for _ in range(2):
            process = guard(board, tmp_path, 20, "sys.exit(5)")
            out, err = process.communicate(timeout=120)
            assert (process.returncode, "stamped" in err) == (5, True), err
            assert board.is_as_found(), board.changes()
            reports.append(json.loads(out))
    choice, again = (report["choice"] for report in reports)
    assert choice["chosen"] is not None
    assert set(choice["chosen"]) == {"clock_mhz", "memory_clock_mhz", "cpu_clock_mhz"}
    assert choice["step_s"] == pytest.approx(0.02, rel=0.5)
    assert again["remembered"]
    assert reports[0]["above_cap_s"] < 3.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [("raise RuntimeError", 1), ("os._exit(9)", 9), ("os.kill(os.getpid(), signal.SIGKILL)", 137)],
)
def test_the_board_comes_back_however_the_program_ends(tmp_path, end, code):
    with live(tmp_path / "board", load=0.8) as board:
        process = guard(board, tmp_path, 8, end)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        assert json.loads(out)["choice"] is not None, "it was choosing"
        assert board.is_as_found(), board.changes()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_goes_to_the_program_and_the_board_comes_back(tmp_path, number, code):
    with live(tmp_path / "board", load=0.8) as board:
        process = guard(board, tmp_path, 60, "")
        assert_pinned(board)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (code, 1), err  # Python turns SIGINT into an exception
        assert board.is_as_found(), board.changes()


@pytest.mark.slow
def test_after_a_kill_restore_brings_all_clocks_back(tmp_path):
    with live(tmp_path / "board", load=0.8) as board:
        process = guard(board, tmp_path, 60, "")
        assert_pinned(board)
        process.kill()
        process.communicate(timeout=60)  # the program ends too
        subprocess.run([*COMMAND, "restore", "--sysfs-root", str(board.root)], env=ENVIRONMENT, check=True)
        assert board.is_as_found(), board.changes()


def assert_pinned(board) -> None:
    """Wait until the choice holds the clocks."""
    end_s = time.monotonic() + 60
    while not board.is_pinned():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    time.sleep(1.0)


@pytest.mark.slow
def test_a_rehearsal_trains_as_the_program_does(wattune, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = tmp_path / "train.py"
    program.write_text(TRAINING.format(steps=400))
    alone = subprocess.run([sys.executable, program], capture_output=True, text=True)
    words = ["guard", "--device", "sim:jetson-nano", "--cap", "5W", "-o", tmp_path / "report.json"]
    done = subprocess.run(
        [*COMMAND, *map(str, words), "--", "python", str(program)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout) == (3, alone.stdout), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["provenance"]["kind"] == "simulated"
    assert report["choice"]["rounds"] == 400
    assert report["above_cap_s"] < 2.0


@pytest.mark.slow
def test_a_rehearsed_program_that_forks_has_one_end(tmp_path):
    (tmp_path / "forks.py").write_text("import os, sys\nif os.fork() == 0: sys.exit(3)\nos.wait()\nprint('done')\n")
    command = [*COMMAND, "guard", "--device", "sim:jetson-nano", "--cap", "5W", "-o", "report.json"]
    command += ["--", "python", "forks.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("finished after") == 1
    assert {file.name for file in tmp_path.iterdir()} == {"forks.py", "report.json"}


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (["--", "echo"], "rehearse Python's"),
        (["--clock", "614MHz", "--", "python", "x.py"], "can only rehearse the choice of clocks"),
        (["--hold-clocks", "--", "python", "x.py"], "can only rehearse the choice of clocks"),
        (["--expect", "soon", "--", "python", "x.py"], "--expect"),
        (["--clocks", "cpu", "--", "python", "x.py"], "--clocks"),
    ],
)
def test_what_cannot_be_rehearsed_is_one_line(wattune, tail, words):
    code, out, err = wattune("guard", "--device", "sim:jetson-nano", "--cap", "5W", *tail)
    assert (code, out) == (2, "")
    assert words in " ".join(err)
