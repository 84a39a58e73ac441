"""Any program from profile to guard, on a live board in user space and on the files of one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from tests.support.cli_boards import limits
from tests.support.live_board import COMMAND, ENVIRONMENT, live, wait_for
from tests.support.programs import running

from wattune.devices.cap_window import ABOVE_Z, NOISE_SHARE
from wattune.records import Plan, ProfileTable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="/sys")

BURN = """
import os, sys, time
batch, steps, load = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
open(load, "w").write(str(os.getpid()))
for step in range(steps):
    begun, x = time.monotonic(), 1.0
    for _ in range(2000 * batch):
        x *= 1.0000001
    print("step", step, time.monotonic() - begun)
"""


@contextmanager
def started(words, **options):
    """A process that is killed where a test fails before its end, also where it stands still: else we wait for it."""
    with subprocess.Popen(words, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch-sizes", "8"], "batch_sizes without a command"),
        (["--step-time", "x(.)"], "--step-time needs --command"),
        (["--command", "true {batch_size} {steps}"], "--batch-sizes"),
        (["--command", "true {batch_size} {steps}", "--batch-sizes", "8;16"], "8,16,32"),
        (["--command", "true {batch_size} {steps}", "--batch-sizes", "8", "w.toml"], "workload with a command: w.toml"),
        (["--command", "true {batch_size} {steps}", "--batch-sizes", "8", "--run-limit", "nan"], "limit"),
        (["--command", "true", "--batch-sizes", "8"], "{batch_size}"),
        (["--command", "no-such {batch_size} {steps}", "--batch-sizes", "8"], "no-such"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(refused, root, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    before = limits(root)
    assert words in refused("profile", "--device", "jetson", "--sysfs-root", root, *options)
    assert limits(root) == before


def test_the_one_that_auto_opens_is_marked(wattune, root):
    _, out, _ = wattune("devices", "--sysfs-root", root)
    (line,) = (
        part for part in out.split("\n\n")[1].split("\njetson?root=") if "--device auto" in " ".join(part.split())
    )
    assert str(root) in line.partition(":")[0]
    listed = json.loads(wattune("devices", "--json", "--sysfs-root", root)[1])
    assert [entry["auto"] for entry in listed] == [True, False]


@pytest.mark.slow
@pytest.mark.xdist_group("boards")
def test_from_profile_to_guard_on_a_live_board(tmp_path):
    """Interrupted after its first cell, taken up again, planned, and run by the line that the plan printed."""
    (tmp_path / "burn.py").write_text(BURN)
    burn = shlex.join([sys.executable, "-S", str(tmp_path / "burn.py")])
    with live(tmp_path / "board") as board:
        command = f"{burn} {{batch_size}} {{steps}} {board.root / 'load'}"
        profile = [*COMMAND, "profile", "--device", "auto", "--sysfs-root", str(board.root), "--cap", "7W"]
        profile += ["--command", command, "--batch-sizes", "4,16", "--step-time", r"step \d+ (\S+)", "-o", "p.json"]

        with started(profile, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
            assert wait_for((tmp_path / "p-partial.json").exists, 60)
            assert wait_for(board.is_pinned, 5)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "--resume" in said.splitlines()[-1]
        assert wait_for(board.is_as_found, 5), board.changes()
        assert not running(tmp_path / "burn.py")
        _, *kept = map(json.loads, (tmp_path / "p-partial.json").read_text().splitlines())

        done = subprocess.run(
            [*profile, "--resume"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert wait_for(board.is_as_found, 5), board.changes()
        assert not (tmp_path / "p-partial.json").exists()
        table = ProfileTable.load(tmp_path / "p.json")
        assert table.provenance.kind == "simulated"
        assert kept[0]["cell"]["step_s"] in [cell.step_s for cell in table.measured]
        assert table.program.device == f"jetson?root={board.root}"
        # Not surely above the cap, by one reading of the noisiest sensor.
        assert all(cell.power_window_w * (1 - ABOVE_Z * NOISE_SHARE) <= 7.0 for cell in table.measured)

        plan = [*COMMAND, "plan", "p.json", "--cap", "7W", "--batch-size", "16", "--json"]
        done = subprocess.run(plan, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        chosen = Plan.parse(json.loads(done.stdout))
        assert chosen.batch_size == 16
        words = shlex.split(chosen.run_by.replace("STEPS", "60"))
        assert words[0] == "wattune"
        guard = [*COMMAND, "guard", "--json", *words[2:]]
        done = subprocess.run(guard, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        report = json.loads(done.stdout)
        assert done.returncode == report["exit_code"] == 0
        assert report["clock_mhz"] == chosen.clock_mhz
        assert report["cap_w"] == 7.0
        # The mean: a busy computer gives the program less load while it is profiled than while it is guarded, so that
        # the first readings may be above the cap.
        assert 0 < report["power_mean_w"] < 8.0
        assert "step 59" in done.stderr
        assert wait_for(board.is_as_found, 5), board.changes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_program_as_well(root, tmp_path, number):
    before = limits(root)
    (tmp_path / "burn.py").write_text(BURN)
    command = f"{sys.executable} -S {tmp_path / 'burn.py'} {{batch_size}}000 {{steps}} {tmp_path / 'pid'}"
    profile = [*COMMAND, "profile", "--device", "jetson", "--sysfs-root", str(root), "--batch-sizes", "4"]
    with started([*profile, "--command", command], cwd=tmp_path, env=ENVIRONMENT) as process:
        assert wait_for((tmp_path / "pid").exists, 30)
        assert limits(root) != before
        process.send_signal(signal.SIGTSTP)  # ignored: a process that stands still would not end
        process.send_signal(number)
        assert process.wait(20) == 130
    assert not running(tmp_path / "burn.py")
    assert limits(root) == before
