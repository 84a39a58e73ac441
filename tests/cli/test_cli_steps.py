"""The steps one at a time, from record to record, on a workload that trains in a second."""

from __future__ import annotations

import json

import pytest
from tests.support.cli_records import SMALL

from wattune.records import Comparison, Plan, ProfileTable, SampleEfficiency, TrainingRecord

DEVICE = ["--device", "sim:jetson-nano"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each step once, as a user would."""
    from wattune.cli import main

    folder = tmp_path_factory.mktemp("steps")
    name = {step: str(folder / f"{step}.json") for step in ("profile", "efficiency", "plan", "training", "comparison")}
    pair = [name["profile"], name["efficiency"]]
    for arguments in (
        ["profile", str(SMALL), *DEVICE, "-o", name["profile"]],
        ["estimate", str(SMALL), "--seeds", "2", "--processes", "1", "-o", name["efficiency"]],
        ["plan", *pair, "--cap", "4.2W", "-o", name["plan"]],
        ["train", name["plan"], str(SMALL), *DEVICE, "-o", name["training"]],
        ["compare", *pair, str(SMALL), *DEVICE, "--cap", "4.2W", "--seeds", "2", "-o", name["comparison"]],
        ["report", str(folder)],
    ):
        assert main(arguments) == 0, arguments
    return folder


def test_each_step_leaves_its_record(folder):
    profile = ProfileTable.load(folder / "profile.json")
    assert len(profile.measured) == 2 * 12
    assert profile.provenance.kind == "simulated"
    efficiency = SampleEfficiency.load(folder / "efficiency.json")
    assert [point.runs for point in efficiency.points] == [2, 2]
    plan = Plan.load(folder / "plan.json")
    training = TrainingRecord.load(folder / "training.json")
    assert training.plan == plan
    assert training.reached
    comparison = Comparison.load(folder / "comparison.json")
    assert comparison.cap_w == 4.2
    assert "<html" in (folder / "report.html").read_text()


def test_nothing_unfinished_stays_but_what_can_be_of_use(folder):
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "comparison-curves",
        "comparison.json",
        "efficiency-curves",
        "efficiency.json",
        "plan.json",
        "profile.json",
        "report.html",
        "training-checkpoint.safetensors",
        "training-model.safetensors",
        "training.json",
    ]


def test_a_finished_step_is_not_done_again(folder, wattune):
    before = (folder / "training.json").read_bytes()
    code, out, _ = wattune(
        "train", folder / "plan.json", SMALL, *DEVICE, "-o", folder / "training.json", "--resume", "--json"
    )
    assert (code, (folder / "training.json").read_bytes()) == (0, before)
    assert json.loads(out) == json.loads(before)


def test_unfinished_work_is_not_lost_to_a_second_start(folder, refused, tmp_path):
    (tmp_path / "t-checkpoint.safetensors").write_bytes(b"weeks of work")
    assert "--resume" in refused("train", folder / "plan.json", SMALL, *DEVICE, "-o", tmp_path / "t.json")
    assert (tmp_path / "t-checkpoint.safetensors").read_bytes() == b"weeks of work"


def test_a_broken_checkpoint_is_one_line(folder, refused, tmp_path):
    (tmp_path / "t-checkpoint.safetensors").write_bytes(b"weeks of work")
    refused("train", folder / "plan.json", SMALL, *DEVICE, "-o", tmp_path / "t.json", "--resume")


def test_a_target_that_is_not_reached(folder, wattune, tmp_path):
    hard = tmp_path / "hard.toml"
    hard.write_text(SMALL.read_text().replace("target = 0.93", "target = 1.0").replace("3200", "320"))
    arguments = ["train", folder / "plan.json", hard, *DEVICE]
    path = tmp_path / "t.json"
    code, out, err = wattune(*arguments, "-o", path)
    assert code == 3
    assert "target not reached" in err[-1]
    assert "TARGET NOT REACHED" in out
    kept = TrainingRecord.load(path)
    assert (kept.reached, kept.ended, kept.samples) == (False, "budget used up", 320)
    code, out, _ = wattune(*arguments, "--json")
    assert code == 3
    told = json.loads(out)
    assert (told["record"], told["reached"]) == ("training", False)
    assert told["error"]["type"] == "TargetNotReached"
    assert told["error"]["exit_code"] == 3


def test_a_cap_that_cannot_be_kept_stops_the_training(folder, wattune, tmp_path):
    plan = json.loads((folder / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "cap_w": 2.0}))
    # Long enough that the guard has stepped down to the lowest clock.
    slow = tmp_path / "slow.toml"
    slow.write_text(SMALL.read_text().replace("target = 0.93", "target = 1.0").replace("3200", "320000"))
    path = tmp_path / "t.json"
    code, out, err = wattune("train", tmp_path / "plan.json", slow, *DEVICE, "-o", path, "--json")
    assert code == 4
    assert "stopped for safety" in err[-1]
    assert json.loads(out)["error"]["type"] == "SafetyStop"
    assert TrainingRecord.load(path).ended == "stopped for safety"


def test_a_workload_that_cannot_be_trained(wattune, tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(SMALL.read_text().replace("[1, 16, 16]", "[3, 16, 16]"))
    code, out, err = wattune(
        "run", path, *DEVICE, "--cap", "4W", "-o", tmp_path / "out", "--json", "--set", "processes=1"
    )
    assert (code, len(err)) == (2, 1)
    assert "shape" in err[0]
    assert "error" in json.loads(out)
    assert not (tmp_path / "out").exists()


def test_what_is_finished_is_not_taken_for_something_else(folder, tmp_path, capsys):
    from wattune.cli import main

    other = ["--device", "sim:jetson-tx2-nx"]
    pair = [str(folder / "profile.json"), str(folder / "efficiency.json")]
    assert main(["plan", *pair, "--cap", "4.6W", "-o", str(tmp_path / "plan.json")]) == 0
    profile = ProfileTable.load(folder / "profile.json")
    profile.model_copy(update={"algorithm": "backprop:last=1"}).save(tmp_path / "other.json")
    for arguments, said in (
        (["profile", str(SMALL), *other, "-o", str(folder / "profile.json"), "--resume"], "device"),
        (["train", str(tmp_path / "plan.json"), str(SMALL), *DEVICE, "-o", str(folder / "training.json"), "--resume"],
         "another plan"),
        (["estimate", "-o", str(folder / "efficiency.json"), "--resume"], "another workload"),
        (["compare", *pair, str(SMALL), *DEVICE, "--cap", "4.6W", "-o", str(folder / "comparison.json"), "--resume"],
         "another cap"),
        (["compare", str(tmp_path / "other.json"), pair[1], str(SMALL), *DEVICE, "--cap", "4.2W",
          "-o", str(folder / "comparison.json"), "--resume"],
         "the finished comparison is of another training algorithm: backprop; allowed: backprop:last=1"),
    ):  # fmt: skip
        capsys.readouterr()
        assert main(arguments) == 2, arguments
        assert said in capsys.readouterr().err
