"""A training that was stopped for safety goes on where it was stopped, once somebody has seen to the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattune.cli import main
from wattune.records import TrainingRecord

SMALL = Path(__file__).with_name("small.toml")
DEVICE = ["--device", "sim:jetson-nano"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan whose cap the board cannot keep, at its lowest clock neither, for a training that takes long."""
    folder = tmp_path_factory.mktemp("steps")
    pair = [str(folder / "profile.json"), str(folder / "efficiency.json")]
    for arguments in (
        ["profile", str(SMALL), *DEVICE, "-o", pair[0]],
        ["estimate", str(SMALL), "--seeds", "1", "--processes", "1", "-o", pair[1]],
        ["plan", *pair, "--cap", "4.2W", "-o", str(folder / "plan.json")],
    ):
        assert main(arguments) == 0, arguments
    made = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**made, "cap_w": 1.0}))
    return folder / "plan.json"


def test_a_stopped_run_resumes(plan, wattune, tmp_path):
    endless = tmp_path / "small.toml"
    text = SMALL.read_text().replace("target = 0.93", "target = 1.0").replace("budget_samples = 3200", "")
    endless.write_text(text.replace("evaluate_every = 64", "budget_samples = 64000\nevaluate_every = 6400"))
    output = tmp_path / "training.json"
    command = ["train", plan, endless, *DEVICE, "-o", output, "--json"]
    code, out, err = wattune(*command)
    first = TrainingRecord.load(output)
    assert (code, first.ended) == (4, "stopped for safety"), err
    code, out, err = wattune(*command, "--resume")
    second = TrainingRecord.load(output)
    assert (code, second.ended) == (4, "stopped for safety"), err
    assert second.samples > first.samples
    assert second.time_s > first.time_s
    assert json.loads(out)["samples"] == second.samples
