"""The commands under a cap that changes: plan, train and run, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SMALL = Path(__file__).with_name("small.toml")
CAPS = "seconds,watts\n0,5\n0.5,4.2\n1,\n3,5\n"


@pytest.fixture
def caps(tmp_path):
    path = tmp_path / "caps.csv"
    path.write_text(CAPS)
    return path


@pytest.mark.slow
def test_a_run_under_a_cap_that_changes(wattune, tmp_path, caps):
    folder = tmp_path / "run"
    code, out, err = wattune(
        "run", SMALL, "--device", "sim:jetson-nano", "--cap", caps, "--set", "seeds=1", "-o", folder
    )
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cap", "missing.csv"), "missing.csv cannot be read"),
        (("--cap", "watch:missing"), "missing cannot be read"),
        (("--cap", "CAPS", "--set", "cap_range=4W..7W"), "a range of caps; allowed: with watch:FILE"),
        (("--cap", "CAPS", "--set", "cap_stale=10s"), "cap_stale: 10 s; allowed: with watch:FILE"),
    ],
)
def test_what_a_run_refuses(wattune, tmp_path, caps, arguments, message):
    words = [str(caps) if word == "CAPS" else word for word in arguments]
    code, _, err = wattune("run", SMALL, "--device", "sim:jetson-nano", *words, "-o", tmp_path / "run")
    assert code == 2
    assert message in err[-1]
    assert not (tmp_path / "run" / "profile.json").exists()
