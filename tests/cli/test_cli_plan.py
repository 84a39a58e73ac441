from __future__ import annotations

import json
import re

import pytest
from tests.support.cli_records import EFFICIENCY, PROFILE, written

from wattune.cap import PowerCap
from wattune.goal import Goal
from wattune.planning import plan
from wattune.records import Plan, ProfileTable, SampleEfficiency
from wattune.reporting.plan_text import LEAST


@pytest.fixture
def records(tmp_path):
    return written(tmp_path, "profile.json", PROFILE), written(tmp_path, "efficiency.json", EFFICIENCY)


def without_time(record):
    return {**record, "provenance": {**record["provenance"], "created_at": None}}


def test_json_prints_the_record_and_nothing_else(wattune, records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = wattune("plan", *records, "--cap", "4W", "--json")
    expected = plan(ProfileTable.parse(PROFILE), SampleEfficiency.parse(EFFICIENCY), cap=PowerCap(4.0))
    assert (code, err) == (0, [])
    assert without_time(json.loads(out)) == without_time(expected.dump())
    assert not (tmp_path / "plan.json").exists()


def test_the_record_goes_to_the_file_and_is_never_overwritten(wattune, refused, records, tmp_path):
    path = tmp_path / "new" / "p.json"
    code, out, _ = wattune("plan", *records, "--cap", "4W", "-o", path)
    assert code == 0
    assert "Batch size " in out
    before = path.read_bytes()
    assert Plan.load(path).cap_w == 4.0
    refused("plan", *records, "--cap", "3W", "-o", path)
    assert path.read_bytes() == before


def test_without_a_name_it_is_only_printed(wattune, records, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for cap in ("none", "4W"):
        code, out, err = wattune("plan", *records, "--cap", cap)
        assert (code, err) == (0, [])
        assert "Batch size " in out
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        (["--goal", "energy"], Goal("energy")),
        (["--max-slowdown", "5%"], Goal("energy", max_slowdown=0.05)),
        (["--goal", "edp", "--max-slowdown", "0.1"], Goal("edp", max_slowdown=0.1)),
        (["--deadline", "100h"], Goal("energy", deadline_s=360000.0)),
        (["--energy", "50Wh"], Goal(energy_j=180000.0)),
        (
            ["--set", "price_per_kwh=0.3", "--set", "price_per_hour=2"],
            Goal("cost", price_per_kwh=0.3, price_per_hour=2.0),
        ),
    ],
)
def test_goals_on_the_command_line(wattune, records, words, goal):
    code, out, err = wattune("plan", *records, "--cap", "4W", *words, "--json")
    assert (code, err) == (0, [])
    assert Plan.parse(json.loads(out)).goal == goal
    code, out, _ = wattune("plan", *records, "--cap", "4W", *words)
    assert f"Chosen for the least {LEAST[goal.aim]}" in out
    assert "range of caps" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--deadline", "0.001s"], "no point under the cap meets the deadline: 0.001 s; allowed: "),
        (["--goal", "energy-above-rest"], "the power at rest is not known"),
    ],
)
def test_goals_that_are_refused_in_one_line(refused, records, words, said):
    assert said in refused("plan", *records, "--cap", "4W", *words)


@pytest.mark.parametrize(
    ("cap", "said"),
    [("4000W", r"4000 W is \d+ times what this board draws at most; 4000mW"), ("mw.csv", r"mw.csv, .* are these mW")],
)
def test_watts_that_are_milliwatts_are_refused(wattune, refused, records, tmp_path, monkeypatch, cap, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mw.csv").write_text("seconds,watts\n0,4939\n60,6629\n")
    assert re.search(said, refused("plan", *records, "--cap", cap))
    assert wattune("plan", *records, "--cap", "40W")[0] == 0  # it does not limit this board
