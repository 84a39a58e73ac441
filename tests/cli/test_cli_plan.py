from __future__ import annotations

import json

import pytest
from tests.support.cli_records import EFFICIENCY, PROFILE, written

from wattune.cap import PowerCap
from wattune.planning import plan
from wattune.records import Plan, ProfileTable, SampleEfficiency


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


def test_the_record_goes_to_the_file_and_is_never_overwritten(wattune, records, tmp_path):
    path = tmp_path / "new" / "p.json"
    code, out, _ = wattune("plan", *records, "--cap", "4W", "-o", path)
    assert code == 0
    assert "chosen: batch size" in out
    before = path.read_bytes()
    assert Plan.load(path).cap_w == 4.0
    code, out, err = wattune("plan", *records, "--cap", "3W", "-o", path)
    assert (code, out, len(err)) == (2, "", 1)
    assert path.read_bytes() == before


def test_without_a_name_it_is_only_printed(wattune, records, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for cap in ("none", "4W"):
        code, out, err = wattune("plan", *records, "--cap", cap)
        assert (code, err) == (0, [])
        assert "chosen: batch size" in out
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("text", ["4W", "4", " 4.0 W", "4000mW", "4e0", "4w"])
def test_caps_that_are_the_same(wattune, records, text):
    code, out, _ = wattune("plan", *records, "--cap", text, "--json")
    assert code == 0
    assert json.loads(out)["cap_w"] == 4.0


@pytest.mark.parametrize("text", ["nan", "inf", "-4", "0", "", "4V", "4MW", "4,5W", "1e999", "none W", "٤"])
def test_caps_that_are_none(wattune, records, text):
    code, out, err = wattune("plan", *records, f"--cap={text}")
    assert (code, out, len(err)) == (2, "", 1)
    assert "--cap" in err[0]
    assert "4500mW" in err[0]


@pytest.mark.parametrize("text", ["-0.1", "nan", "x"])
def test_margins_that_are_none(wattune, records, text):
    code, _, err = wattune("plan", *records, "--cap", "4", f"--margin={text}")
    assert (code, len(err)) == (2, 1)
    assert "--margin" in err[0]


def test_a_margin_counts(wattune, records):
    _, out, _ = wattune("plan", *records, "--cap", "4W", "--margin", "500mW", "--json")
    chosen = json.loads(out)
    assert chosen["predicted_peak_w"] <= 3.5
    assert chosen["margin_w"] == 0.5
