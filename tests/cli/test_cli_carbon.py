"""Commands with a forecast of carbon or price: plan, run and train, and what they refuse."""

from __future__ import annotations

import json

import pytest
from tests.support.cli_records import SMALL

from wattune.records import Plan, TrainingRecord

GRID = "seconds,gco2_per_kwh\n0,420\n30,400\n60,90\n90,250\n120,400\n"


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "grid.csv").write_text(GRID)
    return tmp_path / "grid.csv"


@pytest.mark.slow
def test_a_run_waits_for_the_cleanest_time(wattune, tmp_path, grid):
    folder = tmp_path / "run"
    device, until = ("--device", "sim:jetson-nano"), ("--set", f"carbon={grid}", "--deadline", "2min")
    until += ("--goal", "energy-above-rest")  # so short a run does not pay for a minute of waiting
    code, out, err = wattune("run", SMALL, *device, "--cap", "5W", *until, "--set", "seeds=1", "-o", folder)
    assert code in (0, 3), err
    plan, training = Plan.load(folder / "plan.json"), TrainingRecord.load(folder / "training.json")
    assert [one.from_s for one in plan.schedule.times] == [60.0]
    assert training.evaluations[0].time_s > 60
    assert training.emissions.emissions > 0
    assert "Trains at one time of low carbon intensity" in out
    assert any("waits: more carbon now than later, for 0:01:00" in line for line in err)
    assert "Times to train at" in (folder / "report.html").read_text()
    grid.unlink()  # the plan has the times
    again_code, _, again_err = wattune("run", "-o", folder, "--resume")
    assert again_code == code, again_err
    trained_code, _, trained_err = wattune("train", folder / "plan.json", SMALL, *device, "-o", tmp_path / "t.json")
    assert trained_code == code, trained_err
    again = TrainingRecord.load(tmp_path / "t.json")
    assert again.cap_intervals == training.cap_intervals
    assert json.loads((folder / "run.json").read_text())["arguments"]["carbon"] == str(grid)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("carbon=missing.csv",), "cannot read missing.csv"),
        (("tariff=GRID",), "no column of price_per_kwh; allowed: seconds or time, and price_per_kwh or price_per_mwh"),
        (("carbon=GRID", "price_per_kwh=1"), "the goal cost with"),
    ],
)
def test_what_a_run_refuses(wattune, tmp_path, grid, settings, message):
    words = [word for setting in settings for word in ("--set", setting.replace("GRID", str(grid)))]
    folder = tmp_path / "run"
    arguments = (SMALL, "--device", "sim:jetson-nano", "--cap", "5W", "--deadline", "1h", *words)
    code, _, err = wattune("run", *arguments, "-o", folder)
    assert code == 2
    assert message in err[-1]
    assert not folder.exists()
