"""The commands under caps that change, with all that goes with them: plan, train, run, and what they refuse."""

from __future__ import annotations

import json

import pytest
from tests.support.cli_records import EFFICIENCY, PROFILE, SMALL, written

from wattune.records import Comparison, Plan

CAPS = "seconds,watts\n0,5\n0.5,4.2\n1,\n3,5\n"


@pytest.fixture
def caps(tmp_path):
    (tmp_path / "caps.csv").write_text(CAPS)
    return tmp_path / "caps.csv"


@pytest.mark.slow
def test_a_run_under_a_cap_that_changes(wattune, tmp_path, caps):
    folder = tmp_path / "run"
    words = ("--cap", caps, "--set", "seeds=1", "--compare")
    code, out, err = wattune("run", SMALL, "--device", "sim:jetson-nano", *words, "-o", folder)
    assert code in (0, 3), err
    plan, training = (json.loads((folder / f"{name}.json").read_text()) for name in ("plan", "training"))
    assert [one["asked_w"] for one in plan["caps"]] == [0.0, 4.2, 5.0]
    assert training["above_cap_s"] == 0
    assert training["exact"]["above_cap_s"] == 0
    assert training["paused_s"] >= 2
    assert json.loads((folder / "profile.json").read_text())["strategy"] == "full"
    assert "under a cap that changes" in out
    again_code, _, again_err = wattune("run", "-o", folder, "--resume")
    assert again_code == code, again_err
    planned_code, _, planned_err = wattune("plan", folder / "profile.json", folder / "efficiency.json", "--cap", caps)
    assert planned_code == 0, planned_err
    other = tmp_path / "t.json"
    device = ("--device", "sim:jetson-nano")
    trained_code, _, trained_err = wattune("train", folder / "plan.json", SMALL, *device, "--cap", caps, "-o", other)
    assert trained_code == code, trained_err
    assert json.loads(other.read_text())["evaluations"][-1]["metric"] == training["evaluations"][-1]["metric"]
    refused_code, _, refused_err = wattune("train", folder / "plan.json", SMALL, *device, "-o", tmp_path / "u.json")
    assert refused_code == 2
    assert "the plan is for a cap that changes" in refused_err[-1]
    comparison = Comparison.load(folder / "comparison.json")
    assert (comparison.caps, comparison.cap_w) == (str(caps), 5.0)
    records = (folder / "profile.json", folder / "efficiency.json", SMALL, *device, "--seeds", "1")
    compared_code, _, compared_err = wattune("compare", *records, "--cap", caps, "-o", tmp_path / "c.json")
    assert compared_code == 0, compared_err
    assert Comparison.load(tmp_path / "c.json").rows == comparison.rows
    constant = ("--cap", "5W", "-o", tmp_path / "c.json", "--resume")
    other_code, _, other_err = wattune("compare", *records, *constant)
    assert (other_code, "the finished record is of another cap" in other_err[-1]) == (2, True)


def test_the_lowest_of_several_caps_is_planned_for(wattune, tmp_path, caps):
    records = written(tmp_path, "p.json", PROFILE), written(tmp_path, "e.json", EFFICIENCY)
    other = written(tmp_path, "other.csv", "seconds,watts\n0,3\n0.2,5\n")
    for words, expected in (
        ((), {0.0, 4.2, 5.0}),
        (("--cap", "4.5W"), {0.0, 4.2, 4.5}),
        (("--cap", "4.5W", "--cap", other), {0.0, 3.0, 4.2, 4.5}),
    ):
        code, out, err = wattune("plan", *records, "--cap", caps, *words, "--json")
        assert code == 0, err
        assert {one.asked_w for one in Plan.parse(json.loads(out)).caps} == expected
