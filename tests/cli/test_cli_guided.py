"""``wattune profile --strategy guided`` on the command line."""

from __future__ import annotations

import json

import pytest
from tests.support.cli_records import SMALL

from wattune.records import EfficiencyPoint, ProfileTable, SampleEfficiency

GUIDED = ["profile", SMALL, "--device", "sim:jetson-nano", "--strategy", "guided"]


@pytest.fixture
def efficiency(tmp_path):
    points = (EfficiencyPoint(batch_size=8, relative_samples=0.9), EfficiencyPoint(batch_size=32, relative_samples=1.0))
    path = tmp_path / "efficiency.json"
    SampleEfficiency(workload="small", reference_batch_size=32, points=points).save(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--strict"]])
def test_it_says_what_it_picked_and_why_it_stopped(wattune, tmp_path, efficiency, more):
    path = tmp_path / "profile.json"
    code, out, _ = wattune(*GUIDED, "--cap", "4.5W", "--efficiency", efficiency, "--no-reference", "-o", path, *more)
    assert code == 0
    found = ProfileTable.load(path)
    assert found.guided.strict == bool(more)
    assert found.guided.stopped_because in out
    assert f"Fastest: batch size {found.guided.pick.batch_size} at {found.guided.pick.clock_mhz:g} MHz" in out
    assert "probability" in out
    # A plan takes it as any other profile.
    code, out, _ = wattune("plan", path, efficiency, "--cap", "4.5W", "--json")
    assert code == 0
    assert json.loads(out)["predicted_peak_w"] <= 4.5
    # What is finished is not done again.
    assert wattune(*GUIDED, "--cap", "4.5W", "--efficiency", efficiency, "-o", path, "--resume", *more)[0] == 0
    assert ProfileTable.load(path) == found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (GUIDED, "only with a cap"),
        ([*GUIDED, "--cap", "1W"], "at rest"),
        ([*GUIDED, "--cap", "nanW"], "cap: nanW"),
        ([*GUIDED, "--cap", "4W", "--efficiency", "nowhere.json"], "nowhere.json"),
        ([*GUIDED[:4], "--cap", "4W", "--strict"], "--strict needs --strategy guided"),
        ([*GUIDED[:4], "--cap", "4W", "--efficiency", "x.json"], "--efficiency needs --strategy guided"),
    ],
)
def test_bad_input_is_one_line(wattune, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    code, out, err = wattune(*arguments)
    assert (code, out) == (2, "")
    assert expected in err[-1]
    assert len([line for line in err if "Traceback" in line]) == 0
    assert not (tmp_path / "profile.json").exists()
