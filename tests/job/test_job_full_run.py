"""The whole run in this process: its folder, what it refuses, and going on where it was stopped."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import wattune
from wattune.cap import PowerCap
from wattune.errors import CapError, InputError, OutputError, RecordError, WattuneError, WorkloadError
from wattune.goal import Goal
from wattune.job.config import RunConfig
from wattune.job.folder import RunArguments, RunFolder, free_folder
from wattune.records import Comparison, Plan, ProfileTable, SampleEfficiency, Supply, TrainingRecord

SMALL = Path(__file__).parent.parent / "cli" / "small.toml"
RECORDS = {"profile": ProfileTable, "efficiency": SampleEfficiency, "plan": Plan, "training": TrainingRecord}


class Stop(Exception):
    """Stands for whatever ends a run in the middle."""


def run(output, *, progress=None, **changes):
    arguments = {"device": "sim:jetson-nano", "workload": SMALL, "cap_w": 4.2, "seeds": 2, "processes": 1, **changes}
    return wattune.run(**arguments, output=output, progress=progress)


def timeless(data):
    """A record's content but for when it was made."""
    if isinstance(data, dict):
        return {key: timeless(value) for key, value in data.items() if key != "created_at"}
    return [timeless(value) for value in data] if isinstance(data, list) else data


def contents(folder):
    return {path.name: timeless(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "one"
    said = []
    record = run(folder, compare=True, progress=lambda *what: said.append(what))
    return folder, record, said


@pytest.mark.slow
def test_a_run_leaves_every_record(finished):
    folder, record, said = finished
    for name, kind in RECORDS.items():
        assert kind.load(folder / f"{name}.json")
    assert TrainingRecord.load(folder / "training.json") == record
    assert record.reached
    assert record.provenance.kind == "simulated"
    assert Comparison.load(folder / "comparison.json").seeds == (0, 1)
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "checkpoint",
        "comparison.json",
        "curves",
        "efficiency.json",
        "model.safetensors",
        "plan.json",
        "profile.json",
        "report.html",
        "run.json",
        "training.json",
    ]
    steps = list(dict.fromkeys(what.partition(":")[0] for _, _, what in said))
    assert steps == ["profile", "estimate", "plan", "train", "compare"]


@pytest.mark.slow
def test_the_trained_model_is_there_by_its_own_names(finished):
    folder, record, _ = finished
    workload = wattune.load_workload(SMALL)
    model = workload.model(0)
    before = workload.evaluate(model)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    assert workload.evaluate(model) == pytest.approx(record.evaluations[-1].metric)
    assert workload.evaluate(model) > before


@pytest.mark.slow
def test_the_pick_was_measured_again_before_it_was_trained_at(finished):
    folder, record, _ = finished
    profile = ProfileTable.load(folder / "profile.json")
    assert profile.confirmed[-1].clock_mhz == record.plan.clock_mhz
    assert profile.confirmed[-1].power_w <= 4.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "sim:jetson-tx2-nx"}, "device"),
        ({"mode": "5W"}, r"mode \(MAXN .*, not 5W\); profile again"),
        ({"cells": ()}, "no measured cell"),
        ({"batch": 64}, "batch sizes that the workload lacks: 64"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused_before_anything_is_done(tmp_path, change, said):
    profile = wattune.profile("sim:jetson-nano", SMALL, cap_w=4.2)
    if "batch" in change:
        profile = profile.model_copy(update={"cells": (profile.cells[0].model_copy(update={"batch_size": 64}),)})
    elif change.keys() & {"device", "mode"}:
        profile = profile.model_copy(update={"key": profile.key.model_copy(update=change)})
    else:
        profile = profile.model_copy(update=change)
    profile.save(tmp_path / "profile.json")
    with pytest.raises(RecordError, match=said):
        run(tmp_path / "run", profile=tmp_path / "profile.json")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cap_w": "4.2W@supply"}, "a meter at the supply"),
        ({"cap_w": PowerCap(4.2, max_temp_c=80.0)}, "does not report its temperature"),
    ],
)
def test_limits_that_the_board_cannot_have_are_refused_before_anything_is_done(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_cap_at_the_supply_is_one_of_the_module_in_every_record(tmp_path):
    board = wattune.open_device("sim:jetson-nano")
    board.supply = Supply(other_w=0.8, efficiency=0.8)
    record = run(tmp_path / "run", device=board, cap_w=PowerCap(6.25, "supply", margin_w=0.1), compare=True)
    assert record.plan.cap_w == pytest.approx(4.2)
    assert (record.plan.cap_side, record.plan.supply_cap_w) == ("supply", 6.25)
    assert record.plan.predicted_window_w <= 4.1
    profile = ProfileTable.load(tmp_path / "run" / "profile.json")
    assert profile.supply == record.plan.supply == board.supply
    assert profile.cost.cap_w == pytest.approx(4.1)
    comparison = Comparison.load(tmp_path / "run" / "comparison.json")
    assert (comparison.cap_w, comparison.supply_cap_w) == (record.plan.cap_w, 6.25)
    assert "6.25 W at the supply" in (tmp_path / "run" / "report.html").read_text()
    again = run(tmp_path / "run", device=board, cap_w=PowerCap(6.25, "supply", margin_w=0.1), compare=True, resume=True)
    assert again == record


@pytest.mark.slow
def test_a_training_that_was_stopped_for_safety_is_gone_on_with(finished, tmp_path):
    whole, record, _ = finished
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "training.json"
    record.model_copy(update={"ended": "stopped for safety", "reached": False}).save(path)
    assert run(tmp_path / "run", compare=True, resume=True).reached
    assert TrainingRecord.load(path).ended == "target reached"


@pytest.mark.slow
def test_the_records_fit_together(finished):
    folder, record, _ = finished
    plan = Plan.load(folder / "plan.json")
    assert record.plan == plan
    assert plan == wattune.plan(folder / "profile.json", folder / "efficiency.json", cap_w=4.2).model_copy(
        # These need the board itself.
        update={field: getattr(plan, field) for field in ("provenance", "evaluations")}
    )
    assert plan.evaluations is not None
    rows = {row.rule: row for row in Comparison.load(folder / "comparison.json").rows}
    assert rows["wattune"].batch_size == plan.batch_size
    assert rows["wattune"].clock_mhz == plan.clock_mhz


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(finished):
    folder, record, _ = finished
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.json")}
    said = []
    assert run(folder, compare=True, resume=True, progress=lambda *what: said.append(what)) == record
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.json")}
    assert {p: v for p, v in after.items() if p.name != "run.json"} == {
        p: v for p, v in before.items() if p.name != "run.json"
    }
    assert said == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["profile: small", "profile: done", "estimate: batch size 8", "train: ", "compare: "]
)
def test_a_stopped_run_resumes_to_the_same_result(finished, tmp_path, moment):
    whole, _, _ = finished
    folder, seen = tmp_path / "run", 0

    def stop(done, total, what):
        nonlocal seen
        seen += what.startswith(moment)
        if seen == (1 if moment == "profile: done" else 2):
            raise Stop

    with pytest.raises(Stop):
        run(folder, compare=True, progress=stop)
    said = []
    run(folder, compare=True, resume=True, progress=lambda *what: said.append(what))
    assert contents(folder) == contents(whole)
    steps = list(dict.fromkeys(what.partition(":")[0] for _, _, what in said))
    assert steps[0] == moment.partition(":")[0]
    assert not (folder / "profile-partial.json").exists()


@pytest.mark.slow
def test_a_comparison_can_be_asked_for_afterwards(finished, tmp_path):
    whole, _, _ = finished
    run(tmp_path / "run")
    assert not (tmp_path / "run" / "comparison.json").exists()
    run(tmp_path / "run", compare=True, resume=True)
    assert contents(tmp_path / "run") == contents(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cap_w": 4.3}, "another cap: 4.3W; allowed: 4.2W"),
        ({"cap_w": None}, "another cap: none"),
        ({"device": "sim:jetson-tx2-nx"}, "device"),
        ({"seeds": 3}, "seeds"),
        ({"seed": 1}, "seed"),
        ({"cap_w": PowerCap(4.2, margin_w=0.1)}, "margin"),
        ({"strategy": "full"}, "strategy"),
        ({"goal": "energy"}, "goal"),
    ],
)
def test_a_run_is_not_resumed_as_another(finished, changes, expected):
    folder, _, _ = finished
    before = contents(folder)
    with pytest.raises(OutputError, match=expected):
        run(folder, compare=True, resume=True, **changes)
    assert contents(folder) == before


@pytest.mark.slow
def test_nor_with_a_workload_that_has_changed(tmp_path):
    workload = tmp_path / "w.toml"
    workload.write_text(SMALL.read_text())
    with pytest.raises(Stop):
        run(tmp_path / "run", workload=workload, progress=lambda *_: (_ for _ in ()).throw(Stop))
    workload.write_text(SMALL.read_text().replace("target = 0.93", "target = 0.8"))
    with pytest.raises(OutputError, match="changed"):
        run(tmp_path / "run", workload=workload, resume=True)


@pytest.mark.slow
def test_a_foreign_profile_in_the_folder_is_refused(finished, tmp_path):
    whole, _, _ = finished
    folder = RunFolder(tmp_path / "run")
    folder.claim(RunArguments.load(whole / "run.json"), resume=False)
    folder.close()
    profile = json.loads((whole / "profile.json").read_text())
    profile["key"]["model"] = "another"
    (tmp_path / "run" / "profile.json").write_text(json.dumps(profile))
    with pytest.raises(RecordError, match="model"):
        run(tmp_path / "run", compare=True, resume=True)


@pytest.mark.slow
def test_a_profile_that_is_there_is_not_measured_again(finished, tmp_path):
    whole, _, _ = finished
    said = []
    run(tmp_path / "run", profile=whole / "profile.json", progress=lambda *what: said.append(what))
    assert {what.partition(":")[0] for _, _, what in said} == {"estimate", "plan", "train"}
    mine, other = contents(tmp_path / "run"), contents(whole)
    assert all(mine[f"{name}.json"] == other[f"{name}.json"] for name in RECORDS)
    with pytest.raises(RecordError, match="sim:jetson-tx2-nx"):
        run(tmp_path / "other", profile=whole / "profile.json", device="sim:jetson-tx2-nx")
    with pytest.raises(InputError, match="strategy"):
        run(tmp_path / "other", profile=whole / "profile.json", strategy="full")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_cap_that_nothing_keeps_is_found_before_the_proxy_trains(tmp_path):
    with pytest.raises(CapError, match="lowest"):
        run(tmp_path / "run", cap_w=1.0)
    assert not (tmp_path / "run" / "curves").exists()
    with pytest.raises(CapError, match="lowest measured"):
        run(tmp_path / "full", cap_w=1.0, strategy="full")


@pytest.mark.slow
def test_an_open_device_is_used_and_left_open(finished, tmp_path):
    whole, _, _ = finished
    device = wattune.open_device("sim:jetson-nano")
    run(tmp_path / "run", device=device)
    assert device.now_s() > 0
    device.wait(1.0)
    mine, other = contents(tmp_path / "run"), contents(whole)
    assert all(mine[f"{name}.json"] == other[f"{name}.json"] for name in RECORDS)


def test_what_cannot_be_meant_leaves_no_folder(tmp_path):
    with pytest.raises(InputError, match="seeds"):
        run(tmp_path / "run", seeds=0)
    assert list(tmp_path.iterdir()) == []


def test_without_a_proxy_nothing_begins(tmp_path):
    workload = tmp_path / "w.toml"
    workload.write_text(SMALL.read_text().partition("[proxy.data]")[0])
    with pytest.raises(WorkloadError, match="proxy"):
        run(tmp_path / "run", workload=workload)
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------------------- the folder

ARGUMENTS = RunArguments(arguments=RunConfig.read({"device": "sim:jetson-nano", "cap": 4.2}).saved(), highest_w=4.2)


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(OutputError, match="not empty"):
            RunFolder(tmp_path).claim(ARGUMENTS, resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_is_not_begun_twice_in_one_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.claim(ARGUMENTS, resume=False)
    with pytest.raises(OutputError, match="--resume"):
        folder.claim(ARGUMENTS, resume=False)
    folder.claim(ARGUMENTS, resume=True)
    assert folder.arguments == ARGUMENTS


def test_an_empty_folder_and_what_a_kill_leaves_of_the_first_file_will_do(tmp_path):
    (tmp_path / ".run.json.x81").write_text('{"record": "ru')
    folder = RunFolder(tmp_path)
    folder.claim(ARGUMENTS, resume=True)
    assert folder.arguments == ARGUMENTS
    (tmp_path / ".plan.json.x82").write_text('{"record": "pl')
    folder.claim(ARGUMENTS, resume=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".run.json.lock", "run.json"]
    folder.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("long" * 100)):
        with pytest.raises(OutputError):
            RunFolder(path).claim(ARGUMENTS, resume=False)
    assert (tmp_path / "file").read_text() == "mine"


def test_the_first_free_folder(tmp_path):
    assert free_folder(tmp_path).name == "wattune-run-1"
    (tmp_path / "wattune-run-1").mkdir()
    (tmp_path / "wattune-run-2").write_text("a file counts, too")
    assert free_folder(tmp_path).name == "wattune-run-3"


@pytest.mark.slow
@pytest.mark.parametrize("cap_w", [4.05, 4.45, 4.85])
def test_a_noisy_sensor_hardly_ever_reads_more_than_the_cap(tmp_path, cap_w):
    """On the board as it is shipped, with 30 mW of noise: under 1 % of the readings, none by more than 3 sd."""
    record = run(tmp_path / "run", cap_w=cap_w, seeds=1)
    assert record.readings_above_cap <= 0.01 * record.readings
    assert record.power_peak_w <= cap_w + 3 * 0.03
    assert bool(record.readings_above_cap) == bool(record.guard)  # each is answered
    assert record.exact.above_cap_s == 0
    assert record.energy_j == pytest.approx(record.exact.energy_j, rel=0.01, abs=record.power_peak_w * 0.422)


def test_a_folder_in_which_nothing_was_done_is_given_back(tmp_path):
    workload = dataclasses.replace(wattune.load_workload(SMALL), optimizer=no_optimizer)
    with pytest.raises(WattuneError):
        run(tmp_path / "run", workload=workload)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def no_optimizer(model, batch_size):
    return 3


@pytest.mark.slow
def test_a_guided_run_probes_and_trains_the_proxy_seldom(tmp_path):
    record = run(tmp_path / "run", strategy="guided", seeds=None)
    assert record.reached
    table = ProfileTable.load(tmp_path / "run" / "profile.json")
    assert table.strategy == "guided"
    assert len(table.cells) + len(table.aborted) <= 16
    curve = SampleEfficiency.load(tmp_path / "run" / "efficiency.json")
    assert curve.strategy == "pooled"
    assert 0 <= curve.runs_used <= 12  # none where the profile leaves a single batch size in question
    plan = record.plan
    assert 0 < plan.p_best <= 1
    assert plan.expected_loss >= 0
    assert record.power_peak_w <= plan.cap_w
    assert "is the fastest batch size" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_several_clocks_are_profiled_by_a_few_probes_unless_told_otherwise(tmp_path):
    record = run(tmp_path / "run", device="sim:jetson-tx2", cap_w=9, seeds=None, goal=Goal("energy", max_slowdown=0.05))
    table = ProfileTable.load(tmp_path / "run" / "profile.json")
    assert table.strategy == "guided"
    assert table.cost.probes <= 17  # 16, and the pick once more
    assert set(record.plan.knobs) == {"clock_mhz", "memory_clock_mhz", "cpu_clock_mhz"}
    assert SampleEfficiency.load(tmp_path / "run" / "efficiency.json").strategy == "pooled"
    assert not record.exceeds_cap
    assert record.plan.goal == table.guided.goal == Goal("energy", max_slowdown=0.05)
    assert record.plan.rest_w == table.rest_w < record.plan.power_mean_w
    fastest = min(one.relative_time for one in record.plan.candidates if one.feasible)
    assert record.plan.relative_time <= 1.05 * fastest
