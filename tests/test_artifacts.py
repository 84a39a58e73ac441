"""Files that wattune 0.1.0 wrote, each altered by hand: every later version reads them, and finds what was altered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.support.agent_trees import HIGH, MadeTree, gpu_tree, put
from tests.support.sessions import perceptron, session_of, train

from wattune.cli import main
from wattune.job.folder import RunArguments
from wattune.records import (
    Comparison,
    LearningCurve,
    Plan,
    ProfileTable,
    SampleEfficiency,
    SessionRecord,
    TrainingRecord,
)
from wattune.reporting import write_report
from wattune_agent.folders import SYSTEM_FOLDER
from wattune_agent.leftover import restore_left_behind

FILES = Path(__file__).parent / "artifacts/0.1.0"


@pytest.mark.parametrize(
    ("name", "kind", "altered"),
    [
        ("run/profile.json", ProfileTable, lambda record: record.cells[0].step_s == 0.7531),
        ("guided.json", ProfileTable, lambda record: record.cells[0].step_s == 0.7531),
        ("run/efficiency.json", SampleEfficiency, lambda record: record.points[0].samples == 77.0),
        ("run/curves/proxy/b008-s0.json", LearningCurve, lambda record: record.evaluations[0].metric == 0.12345),
        ("run/plan.json", Plan, lambda record: record.predicted_s == 0.98765),
        ("run/training.json", TrainingRecord, lambda record: record.energy_j == 123.456),
        ("run/comparison.json", Comparison, lambda record: record.rows[0].time_s == 7.25),
        ("run/run.json", RunArguments, lambda record: record.highest_w == 4.25),
        ("session.json", SessionRecord, lambda record: record.energy_j == 321.5),
    ],
)
def test_a_record_is_read_whole(name, kind, altered):
    record = kind.load(FILES / name)
    assert altered(record)
    written, now = json.loads((FILES / name).read_text()), record.dump()
    assert now["later"] == "kept"
    assert {key: now[key] for key in written} == written


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the files, in which to work."""
    shutil.copytree(FILES, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    return tmp_path / "files"


def test_a_report_is_written_of_a_run(folder):
    write_report(folder / "run", folder / "report.html")
    assert "123 J" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_run_is_resumed_from_its_checkpoint(folder):
    for name in ("training", "comparison"):
        (folder / f"run/{name}.json").unlink()
    assert main(["run", "--resume", "-o", "run"]) == 0
    record = TrainingRecord.load(folder / "run/training.json")
    assert record.evaluations[0].metric == 0.12345
    assert record.reached


@pytest.mark.parametrize(("algorithm", "has"), [("async-fgd:modules=2", "1"), ("backprop@7", "7")])
def test_a_plan_of_another_revision_of_its_algorithm_is_refused(folder, capsys, algorithm, has):
    plan = json.loads((folder / "run/plan.json").read_text())
    (folder / "other.json").write_text(json.dumps({**plan, "algorithm": algorithm}))
    assert main(["train", "other.json", "workload.toml", "--device", "sim:jetson-nano"]) == 2
    said = capsys.readouterr().err
    assert f"revision {has} of the training algorithm: {algorithm}, written by wattune 0.1.0; allowed: " in said
    assert "wattune profile, estimate and plan" in said


@pytest.mark.parametrize("now", ["async-fgd:modules=2", "async-fgd@2:modules=2"])
def test_a_profile_of_another_revision_of_its_algorithm_is_not_planned(folder, capsys, now):
    """``now``: of the efficiency record, which may be newer."""
    major, minor = torch.__version__.split(".")[:2]
    for name, algorithm in (("profile", "async-fgd:modules=2"), ("efficiency", now)):
        text = (folder / f"run/{name}.json").read_text()
        text = text.replace('"algorithm": "backprop"', f'"algorithm": "{algorithm}"')
        # Of the torch that is here: another one is refused for that.
        (folder / f"{name}.json").write_text(text.replace("torch 2.13", f"torch {major}.{minor}"))
    for command in (
        "plan profile.json efficiency.json",
        "plan run/profile.json run/efficiency.json --also profile.json --also efficiency.json",
        "compare profile.json efficiency.json workload.toml --device sim:jetson-nano",
        "run workload.toml --device sim:jetson-nano --profile profile.json",
    ):
        assert main([*command.split(), "--cap", "4.5W"]) == 2
        said = capsys.readouterr().err
        assert "revision 1 of the training algorithm: async-fgd:modules=2, written by wattune 0.1.0; allowed: " in said


def test_the_folder_of_a_run_with_another_revision_of_its_algorithm_is_not_resumed(folder, capsys):
    before = json.loads((folder / "run/run.json").read_text())
    before["arguments"]["algorithm"] = "async-fgd:modules=2"
    (folder / "run/run.json").write_text(json.dumps(before))
    assert main(["run", "--resume", "-o", "run"]) == 2
    said = capsys.readouterr().err
    assert "revision 1 of the training algorithm: async-fgd:modules=2; allowed: " in said
    assert "wattune run in a new folder" in said


@pytest.mark.slow
def test_a_killed_profile_is_resumed_with_its_cells(folder):
    options = ["--device", "sim:jetson-tx2", "--cap", "6W", "--strategy", "guided", "-o", "killed.json", "--resume"]
    assert main(["profile", "workload.toml", *options]) == 0
    assert 4.4321 in [cell.power_peak_w for cell in ProfileTable.load(folder / "killed.json").cells]


def test_a_session_is_resumed_from_its_checkpoint(folder):
    model = perceptron()
    with session_of(model, checkpoint=folder / "session.safetensors", resume=True) as session:
        assert session.passes == 7
        assert all(torch.equal(part, torch.full_like(part, 0.25)) for part in model.parameters())
        train(session, model, 1)
    assert session.record.samples > json.loads((FILES / "session.json").read_text())["samples"]


def test_a_board_is_restored_from_its_snapshot(tmp_path):
    tree = MadeTree(gpu_tree(tmp_path))
    put(tmp_path, HIGH, "612000000\n")
    put(tmp_path, f"{SYSTEM_FOLDER}/board-jetson.json", (FILES / "board-jetson.json").read_text())
    assert len(restore_left_behind(tree)) == 1
    assert (tmp_path / HIGH.lstrip("/")).read_text() == "918000000\n"
