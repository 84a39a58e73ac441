"""Whole runs of a program that trains: on a board of plain files, and by the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.support.board_records import unpack
from tests.support.programs import Files, is_gone, trainer

import wattune
from wattune.errors import InputError, RecordError
from wattune.job.config import RunConfig
from wattune.job.folder import RunArguments
from wattune.profiling.program.profile_command import program_key
from wattune.program.command_template import CommandTemplate
from wattune.records import LearningCurve, Plan, ProfileTable, SampleEfficiency, TrainingRecord
from wattune_agent import cap_guard

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")

LEARNS = {"batch_sizes": "4,16", "metric": "acc ([0-9.e-]+)", "samples": "of ([0-9]+)", "target": 0.9}


@pytest.mark.slow
def test_from_profile_to_target_on_a_board(tmp_path):
    device, output = Files(tmp_path), tmp_path / "run"
    found = device.current()
    command = trainer(tmp_path, "--say", "acc {samples}e-3 of {samples}")
    asked = {"command": command, "cap": "5.5W", "cap_window": "peak", "seeds": 1, **LEARNS, "batch_sizes": "4,16,64"}
    record = wattune.run(device, output=output, **asked)
    assert (record.reached, record.ended, record.exceeds_cap) == (True, "target reached", False)
    assert record.evaluations[-1].metric >= 0.9
    assert record.samples == record.evaluations[-1].samples in range(900, 932)
    assert record.evaluations[-1].time_s <= record.time_s
    assert 0 < record.evaluations[-1].energy_j <= record.energy_j
    assert device.current() == found
    assert is_gone(tmp_path)
    table, plan = ProfileTable.load(output / "profile.json"), Plan.load(output / "plan.json")
    assert table.program.step_time == "steps seen"
    assert (plan.target, plan.program.command) == (0.9, command)
    samples = {point.batch_size: point.samples for point in SampleEfficiency.load(output / "efficiency.json").points}
    assert {samples[4], samples[16]} <= {900, 912}
    assert samples[64] is None, "above the cap at the lowest clock, it is not trained"
    assert len([LearningCurve.load(path) for path in (output / "curves" / "proxy").iterdir()]) == 2
    assert (output / "report.html").exists()
    assert RunArguments.load(output / "run.json").working_folder == os.getcwd()

    calls = (tmp_path / "calls").read_text().splitlines()
    assert sorted(calls[-3:-1]) == ["16 100", "4 100"], "the estimate keeps the cap: 16 draws 6 W at 200 MHz"
    (output / "training.json").unlink()  # as if it had been interrupted there
    again = wattune.run(device, output=output, resume=True, **asked)
    assert isinstance(again, TrainingRecord)
    assert len((tmp_path / "calls").read_text().splitlines()) == len(calls) + 1, "the program ran once more, to train"


@pytest.mark.slow
def test_a_program_above_the_cap_is_stopped(tmp_path, monkeypatch):
    """It draws more while it trains than its profile says."""
    device, output = Files(tmp_path), tmp_path / "run"
    command = trainer(tmp_path, "--say", "acc {samples}e-3 of {samples}")
    asked = {"command": command, "cap": "8W", "seeds": 1, **LEARNS}
    wattune.run(device, output=output, **asked)
    plan = Plan.load(output / "plan.json")
    plan.model_copy(update={"cap_w": 1.0, "cap_window_s": None}).save(output / "plan.json")
    (output / "training.json").unlink()
    monkeypatch.setattr(cap_guard, "PATIENCE_S", 0.3)
    record = wattune.run(device, output=output, resume=True, **asked)
    assert (record.reached, record.ended) == (False, "stopped for safety")
    assert record.reason
    assert is_gone(tmp_path)


def test_the_table_of_a_workload_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        """
[program]
command = "python3 train.py {batch_size} {data}"
batch_sizes = [8, 16]
metric = "acc ([0-9.]+)"
target = 0.9
data = "half"

[run]
device = "sim:jetson-nano"
cap = "4.5W"
"""
    )
    config = RunConfig.of_run({"workload": path, "target": "0.8"})
    assert config.program.batch_sizes == (8, 16)
    assert (config.program.target, config.program.data) == (0.8, "half")
    assert RunConfig.read(config.saved()).program == config.program
    assert RunConfig.of_file({"workload": path}).program.data == "half"
    path.write_text("program = 3")
    with pytest.raises(InputError, match=r"program: 3; allowed: a table \[program\]"):
        RunConfig.of_run({"workload": path})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"metric": None}, "command without metric"),
        ({"compare": True}, "compare: files"),
        ({"cap": lambda seconds: 5.0}, "allowed: a constant cap"),
        ({"command": "no-such {batch_size}"}, "there is no program: no-such"),
        ({"target": "high"}, "target: high"),
    ],
)
def test_what_cannot_be_run_is_one_line(tmp_path, given, says):
    asked = {"command": "sh {batch_size}", "cap": "8W", **LEARNS, **given}
    with pytest.raises(InputError, match=says):
        wattune.run(Files(tmp_path), output=tmp_path / "run", **{key: one for key, one in asked.items() if one})
    assert not (tmp_path / "run").exists()


def test_a_simulated_board_without_torch_is_refused_before_a_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    command = f"{sys.executable} x.py {{batch_size}}"
    with pytest.raises(ModuleNotFoundError, match="torch"):
        wattune.run("sim:jetson-nano", output=tmp_path / "run", command=command, cap="8W", **LEARNS)
    assert not (tmp_path / "run").exists()


def test_a_profile_with_other_batch_sizes_is_refused_at_once(tmp_path):
    device, command = Files(tmp_path), "sh {batch_size}"
    table = ProfileTable(
        device=device.name,
        workload="sh",
        cells=[
            {"batch_size": size, "clock_mhz": 100, "step_s": 1, "power_mean_w": 4, "power_peak_w": 4, "steps": 5}
            for size in (4, 64)
        ],
        key=program_key(device, CommandTemplate(command)),
    )
    with pytest.raises(RecordError, match="other batch sizes than the program: 64; allowed: 4, 16; give those of"):
        wattune.run(device, output=tmp_path / "run", command=command, cap="8W", profile=table, **LEARNS)
    assert not (tmp_path / "run").exists()


TOLD = ["--metric", "acc ([0-9.]+)", "--samples", "of ([0-9]+)", "--target", "0.9", "--seeds", "1"]


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        ("estimate", TOLD, "the program trains the same at batch sizes 4 and 8; does it use {batch_size}?"),
        ("profile", ["--step-time", "of ([0-9]+)"], "add up to"),
    ],
)
def test_a_program_needs_no_torch_of_wattune(tmp_path, command, options, says):
    """A board's wattune may have none: the program has its own."""
    lines = "import sys, time\nfor n in range(1, 30): print(f'acc {n / 20} of {n * 50}', flush=True); time.sleep(0.02)"
    (tmp_path / "train.py").write_text(lines)
    if command == "profile":
        options = [*options, "--device", f"jetson?root={unpack('orin-nano-jp6', tmp_path / 'board')}"]
    words = [command, "--command", f"{sys.executable} -S train.py {{batch_size}}", "--batch-sizes", "4,8", *options]
    code = f"import sys; from wattune.cli import main; assert main({words}) == 2; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stderr
    assert not (tmp_path / "profile.json").exists()
