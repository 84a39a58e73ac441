"""Stdout is for the record alone while a user's model prints, and no file that appears meanwhile is replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.support.cli_records import SMALL

from wattune.cli.output import claim, resumable
from wattune.errors import OutputError
from wattune.records import ProfileTable

WORKLOAD = """
name = "talker"
task = "regression"
input_shape = [4, 1]
batch_sizes = [8, 16]
budget_samples = 6400
evaluate_every = 32
metric = "mse"
target = 0.3
model = "talker:Talker"
optimizer = { name = "adam", learning_rate = 5e-2, reference_batch_size = 16 }

[data]
source = "factory"
factory = "talker:data"

[proxy.data]
source = "factory"
factory = "talker:data"
"""
MODULE = """
import os
import subprocess
from pathlib import Path

import numpy as np
from torch import nn

print("import")


class Talker(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(4, 1))

    def forward(self, x):
        print("python")
        os.write(1, b"descriptor ")
        return super().forward(x)


def data():
    print("data")
    subprocess.run(["echo", "child"])
    if "APPEARS" in os.environ:
        Path(os.environ["APPEARS"]).write_text("of somebody else")
    draws = np.random.default_rng(0)
    x = draws.standard_normal((400, 4, 1)).astype(np.float32)
    y = x.sum(1)
    return (x[:300], y[:300]), (x[300:], y[300:])
"""
DEVICE = ("--device", "sim:jetson-nano")


@pytest.fixture
def talker(tmp_path):
    (tmp_path / "talker.toml").write_text(WORKLOAD)
    (tmp_path / "talker.py").write_text(MODULE)
    return tmp_path


def call(folder, *arguments, **options):
    given = {"capture_output": True, "text": True, "timeout": 120, **options}
    environment = {**os.environ, **options.pop("env", {}), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "wattune", *arguments], cwd=folder, **{**given, "env": environment})


@pytest.mark.slow
def test_json_is_alone_on_stdout_while_a_model_prints_in_every_command(talker):
    profile, efficiency, plan = "p.json", "e.json", "plan.json"
    for arguments in (
        ("profile", "talker.toml", *DEVICE, "--cap", "4.5W", "-o", profile),
        ("estimate", "talker.toml", "--seeds", "2", "-o", efficiency),
        ("plan", profile, efficiency, "--cap", "4.5W", "-o", plan),
        ("train", plan, "talker.toml", *DEVICE),
        ("compare", profile, efficiency, "talker.toml", *DEVICE, "--cap", "4.5W", "--set", "processes=1"),
        ("run", "talker.toml", *DEVICE, "--cap", "4.5W", "--set", "seeds=1", "--set", "processes=1"),
    ):
        done = call(talker, *arguments, "--json")
        assert done.returncode in (0, 3), done.stderr
        content = json.loads(done.stdout)
        assert "record" in content, arguments
        if arguments[0] == "run":  # which ends once the error is low enough
            metrics = [one["metric"] for one in content["evaluations"]]
            assert content["reached"], metrics
            assert metrics[-1] <= 0.3 < min(metrics[:-1])
        if arguments[0] not in ("plan", "profile"):  # neither trains
            assert {"import", "data", "child", "python"} <= set(done.stderr.split()), arguments


@pytest.mark.slow
def test_a_file_that_appears_meanwhile_stays_and_the_record_is_saved_beside(talker):
    taken = talker / "e.json"
    estimate = ("estimate", "talker.toml", "--seeds", "1", "--processes", "1", "-o", "e.json")
    done = call(talker, *estimate, env={"APPEARS": str(taken)})
    assert done.returncode in (0, 3), done.stderr
    assert taken.read_text() == "of somebody else"
    assert "the efficiency record is in e-2.json" in done.stderr
    assert json.loads((talker / "e-2.json").read_text())["record"] == "efficiency"


def record() -> ProfileTable:
    return ProfileTable(device="d", workload="w", cells=())


def test_a_record_goes_to_the_first_free_name(tmp_path, capsys):
    outputs = [claim(tmp_path / "p.json", "", as_json=False) for _ in range(3)]
    for output in outputs:
        output.deliver(record(), "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p-2.json", "p-3.json", "p.json"]
    said = capsys.readouterr().err
    assert [f"is in {tmp_path / name}" in said for name in ("p.json", "p-2.json", "p-3.json")] == [True] * 3


def test_an_interruption_before_the_first_result_leaves_nothing_to_continue(tmp_path):
    (tmp_path / "e-curves").mkdir()
    with pytest.raises(KeyboardInterrupt), resumable(["estimate"], tmp_path / "e-curves"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_saved_is_printed(tmp_path, capsys):
    folder = tmp_path / "gone"
    output = claim(folder / "p.json", "", as_json=False)
    folder.rmdir()
    folder.write_text("a file")
    with pytest.raises(OutputError, match="cannot write"):
        output.deliver(record(), "text")
    assert json.loads(capsys.readouterr().out)["record"] == "profile"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_outputs_lose_no_record(talker):
    profile = ("profile", str(SMALL), *DEVICE, "--cap", "4.5W", "--strategy", "guided")
    with open("/dev/full", "w") as full:
        done = call(talker, *profile, "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert "the profile record is in profile.json" in done.stderr
        assert json.loads((talker / "profile.json").read_text())["record"] == "profile"
        done = call(talker, *profile, "-o", "silent.json", capture_output=False, stdout=subprocess.PIPE, stderr=full)
        assert done.returncode == 0
        assert json.loads((talker / "silent.json").read_text())["record"] == "profile"
        assert done.stdout.startswith("small on")
