"""Records: validated on the way in, whole on disk, unknown fields kept."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wattune
from wattune.errors import InputError, OutputError, RecordError
from wattune.goal import Goal
from wattune.records import (
    Comparison,
    LearningCurve,
    Plan,
    ProfileCell,
    ProfileKey,
    ProfileTable,
    SampleEfficiency,
    SessionRecord,
    StepWork,
    Supply,
    TrainingRecord,
    provenance,
)

CELL = {"batch_size": 8, "clock_mhz": 384.0, "step_s": 0.5, "power_mean_w": 4.0, "power_peak_w": 4.2, "steps": 5}
PROFILE = {"record": "profile", "version": 1, "device": "d", "workload": "w", "algorithm": "backprop", "cells": [CELL]}
POINT = {"batch_size": 8, "relative_samples": 1, "low": None, "high": None, "samples": 100, "runs": 1, "censored": 0}
EFFICIENCY = {"record": "efficiency", "version": 1, "workload": "w", "reference_batch_size": 8, "points": [POINT]}


def test_a_record_survives_its_file(tmp_path):
    table = ProfileTable.parse({**PROFILE, "provenance": {"kind": "simulated", "seed": 3}})
    assert ProfileTable.load(table.save(tmp_path / "profile.json")) == table


def test_unknown_fields_are_kept(tmp_path):
    table = ProfileTable.parse({**PROFILE, "room": "cellar", "cells": [{**CELL, "fan_rpm": 900}]})
    again = ProfileTable.load(table.save(tmp_path / "p.json")).dump()
    assert again["room"] == "cellar"
    assert again["cells"][0]["fan_rpm"] == 900


PLAN = {"record": "plan", "version": 1, "batch_size": 8}
FIGURES = {"reached": True, "samples": 6400, "time_s": 20.0, "energy_j": 80.0, "power_peak_w": 4.2, "above_cap_s": 0.0}
TRAINING = {"record": "training", "version": 1, "plan": PLAN, **FIGURES}


def test_the_name_and_the_version_come_first():
    assert list(ProfileTable.parse(PROFILE).dump())[:2] == ["record", "version"]


@pytest.mark.parametrize("given_", [None, {}, {"kind": "measured"}])
def test_provenance_is_optional(given_):
    assert ProfileTable.parse({**PROFILE, "provenance": given_}).provenance.device is None


def test_a_file_that_does_not_say_where_it_comes_from_is_not_called_measured():
    assert ProfileTable.parse(PROFILE).provenance.kind is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"record": "plan"}, "record"),
        ({"cells": [{**CELL, "power_peak_w": -1.0}]}, "power_peak_w"),
        ({"cells": [{**CELL, "power_mean_w": 0}]}, "power_mean_w"),
        ({"cells": [{**CELL, "step_s": "0.5"}]}, "step_s"),
        ({"cells": [{**CELL, "step_s": None}]}, "step_s"),
        ({"cells": [{**CELL, "power_peak_w": None}]}, "power_peak_w"),
        ({"cells": [{**CELL, "batch_size": True}]}, "batch_size"),
        ({"cells": [{**CELL, "batch_size": 2.5}]}, "batch_size"),
        ({"cells": [{**CELL, "micro_batch_size": 16}]}, "micro_batch_size"),
        ({"cells": [{**CELL, "out_of_memory": True}]}, "out of memory"),
        ({"cells": [CELL, CELL]}, "twice"),
        ({"cells": [CELL, {**CELL, "clock_mhz": None}]}, "the same knobs"),
        ({"cells": [CELL, {**CELL, "clock_mhz": None, "power_limit_w": 9.0}]}, "the same knobs"),
        ({"cells": [CELL, {**CELL, "batch_size": 4, "power_limit_w": 9.0}]}, "the same knobs"),
        ({"cells": {}}, "cells"),
        ({"provenance": {"kind": "guessed"}}, "kind"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(change, said):
    with pytest.raises(RecordError, match=said) as caught:
        ProfileTable.parse({**PROFILE, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": []}, "reference"),
        ({"points": [POINT, POINT]}, "once"),
        ({"points": [{**POINT, "relative_samples": 0.5}]}, "relative_samples of 1"),
        ({"reference_batch_size": 16}, "16"),
        ({"points": [{**POINT, "low": 2, "high": 1}]}, "low at most high"),
        ({"points": [{**POINT, "censored": 2}]}, "censored at most runs"),
        ({"target": "0.8"}, "target"),
    ],
)
def test_an_efficiency_curve_does_not_contradict_itself(change, said):
    with pytest.raises(RecordError, match=said):
        SampleEfficiency.parse({**EFFICIENCY, **change})


def test_a_missing_batch_size_is_named_with_those_that_are_there():
    with pytest.raises(RecordError, match=r"batch size: 4; allowed: 8"):
        SampleEfficiency.parse(EFFICIENCY).at(4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        "null",
        '{"record": "profile"',
        "\x00",
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        "9" * 5000,
        "[" * 100_000,
    ],
)
def test_a_file_that_is_not_a_record_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        ProfileTable.load(path)
    assert "broken.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_what_cannot_be_read_is_refused(tmp_path, name):
    with pytest.raises(RecordError):
        ProfileTable.load(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError):
        ProfileTable.load(tmp_path / "bytes.json")


def test_a_record_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError):
        ProfileTable.parse(PROFILE).save(tmp_path / "file" / "profile.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError):
        ProfileTable.parse(PROFILE).save(tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_an_interrupt_while_a_record_is_written_is_one(monkeypatch, tmp_path):
    class Interrupting:
        def __contains__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setattr(ProfileCell, "unwritten", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        ProfileTable.parse(PROFILE).save(tmp_path / "profile.json")
    assert list(tmp_path.iterdir()) == []


def test_frozen():
    with pytest.raises(ValueError, match="frozen"):
        ProfileCell.model_validate(CELL).step_s = 1.0


@given(st.floats())
def test_no_number_that_is_not_one_comes_in(value):
    cell = {**CELL, "step_s": value}
    if math.isfinite(value) and value > 0:
        assert ProfileTable.parse({**PROFILE, "cells": [cell]}).cells[0].step_s == value
    else:
        with pytest.raises(RecordError):
            ProfileTable.parse({**PROFILE, "cells": [cell]})


def test_a_training_holds_its_plan():
    plan = Plan(batch_size=8, clock_mhz=384.0, cap_w=4.5, provenance=provenance("simulated", seed=1))
    record = TrainingRecord(
        plan=plan, reached=True, samples=10, time_s=1.0, energy_j=4.0, power_peak_w=4.2, above_cap_s=0.0
    )
    again = TrainingRecord.parse(json.loads(json.dumps(record.dump())))
    assert again == record
    assert again.plan.knobs == {"clock_mhz": 384.0}
    assert again.plan.provenance.software.startswith("wattune ")


def test_keys_say_in_what_they_differ():
    fields = {"device": "a", "mode": "m", "model": "x", "input_shape": "3x32x32", "data_type": "fp32"}
    key = ProfileKey(**fields, optimizer="adam", algorithm="backprop", software="s")
    other = key.model_copy(update={"data_type": "fp16"})
    assert key.differences(key) == []
    assert key.differences(other) == ["data_type (fp16, not fp32)"]
    for mode in ("fan quiet, L4T 36.4.3", "persistence on, L4T 36.4.3", "L4T 36.4.3, fan cool"):  # of earlier versions
        old, now = (key.model_copy(update={"mode": text}) for text in (mode, "L4T 36.4.3"))
        assert old.differences(now) == now.differences(old) == []
    assert old.differences(key)


def test_work_adds_up():
    operation = {"kind": "matmul", "flops": 10, "bytes": 4, "kernels": 2}
    phases = [{"phase": "forward", "operations": [operation, operation]}, {"phase": "host", "host_s": 0.1}]
    work = StepWork(samples=2, micro_batch_size=2, data_type="fp32", phases=phases, peak_memory_bytes=1)
    assert (work.flops, work.bytes, work.kernels) == (20, 8, 4)


def test_errors_are_one_line_whatever_the_value():
    error = InputError("bad text", value="a\nb" * 200, allowed="less", hint="try again")
    assert "\n" not in str(error)
    assert len(str(error)) < 200
    assert str(error).endswith("allowed: less; try again")


def test_a_supply_is_turned_into_the_modules_power_and_back():
    supply = Supply(other_w=1.5, efficiency=0.9)
    assert supply.at_supply(7.5) == pytest.approx(10.0)
    assert supply.at_module(10.0) == pytest.approx(7.5)
    assert Supply().at_module(10.0) == 10.0


@pytest.mark.parametrize("fields", [{"other_w": -1.0}, {"efficiency": 0.0}, {"efficiency": 1.2}, {"efficiency": "0.9"}])
def test_an_impossible_supply_is_refused(fields):
    with pytest.raises(ValueError, match="validation error"):
        Supply(**fields)


def test_what_a_cell_was_measured_under():
    assert not ProfileCell(**CELL).disturbed
    assert ProfileCell(**CELL, throttled=("gpu",)).disturbed
    assert ProfileCell(**CELL, over_current=1).disturbed
    assert not ProfileCell(**CELL, over_current=0, swapped_bytes=4096, temperature_c=-5.0).disturbed


def test_a_record_is_printed_in_one_short_line():
    plan = Plan(
        batch_size=16, clock_mhz=921.6, workload="<mine>", candidates=[{"batch_size": 8, "feasible": True}] * 50
    )
    assert str(plan).startswith("Plan(batch_size=16, ")
    assert "clock_mhz=921.6" in str(plan)
    assert len(str(plan)) < 500


@pytest.mark.parametrize(
    ("content", "field", "value", "said"),
    [
        (PLAN, "target", "0.9", "a number"),
        (TRAINING, "target", True, "a number"),
        (TRAINING, "reached", 1, "true or false"),
        (TRAINING, "reached", "yes", "true or false"),
    ],
)
def test_texts_and_booleans_are_no_numbers_and_numbers_no_booleans(content, field, value, said):
    kind = Plan if content is PLAN else TrainingRecord
    with pytest.raises(RecordError, match=f"field {field}: .*; allowed: {said}"):
        kind.parse({**content, field: value})


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (Plan, {**PLAN, "version": 99}, "version is 99, not 1"),
        (Plan, {**PLAN, "version": "1"}, "version is '1', not 1"),
        (TrainingRecord, {**TRAINING, "plan": {**PLAN, "version": 99}}, "plan.version is 99, not 1"),
        (Plan, {**PLAN, "needs": ["caps", "stages"]}, "the whole record needs stages, which it does not know"),
        (TrainingRecord, {**TRAINING, "plan": {**PLAN, "needs": [8]}}, "plan needs 8, which it does not know"),
        (Plan, {**PLAN, "needs": {"caps": 1}}, "the whole record needs {'caps': 1}, which it does not know"),
        (Plan, {**PLAN, "needs": [["caps"]]}, "the whole record needs ['caps'], which it does not know"),
    ],
)
def test_a_refusal_of_a_later_record_names_writer_reader_and_command(kind, content, said):
    with pytest.raises(RecordError) as refused:
        kind.parse({**content, "provenance": {"software": "wattune 9.9.0"}}, source="FILE")
    assert str(refused.value) == (
        f"FILE cannot be read by wattune {wattune.__version__}: {said}, written by wattune 9.9.0; "
        f"update wattune, or write it again with {kind.written_by}"
    )


def test_a_plan_needs_a_reader_that_knows_its_caps_its_times_and_all_of_its_knobs():
    caps = {"caps": [{"asked_w": 0, "share": 1, "feasible": False}]}
    plan = Plan.parse({**PLAN, **caps, "cpu_cores": 2})
    assert plan.dump()["needs"] == ["caps", "cpu_cores"]
    assert Plan.parse(plan.dump()) == plan
    assert "needs" not in Plan.parse(PLAN).dump()


def test_a_record_within_a_record_is_of_its_kind_and_a_bad_goal_names_the_file():
    with pytest.raises(RecordError, match="field plan"):
        TrainingRecord.parse({**TRAINING, "plan": {**PLAN, "record": "profile"}})
    with pytest.raises(RecordError, match=r"^FILE: a price and the goal cost"):
        Plan.parse({**PLAN, "goal": {"aim": "time", "price_per_kwh": 0.3}}, source="FILE")


PAGE = (Path(__file__).parents[1] / "docs/records.md").read_text()


@pytest.mark.parametrize(
    "kind", [ProfileTable, SampleEfficiency, Plan, TrainingRecord, Comparison, LearningCurve, SessionRecord]
)
def test_every_field_is_documented(kind):
    schema = kind.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        for field in part.get("properties", ()):
            described = f"{PAGE}{Goal.__doc__}{part.get('description')}"  # pydantic 2.6 describes no dataclass
            assert f"`{field}`" in described, f"{field} of {kind.name} is in no docstring and not in the page"


def test_the_examples_of_the_documentation_are_read():
    examples = [json.loads(part.split("```")[0]) for part in PAGE.split("```json\n")[1:]]
    kinds = {kind.name: kind for kind in (ProfileTable, SampleEfficiency, Plan)}
    assert [kinds[example["record"]].parse(example).name for example in examples] == list(kinds)
