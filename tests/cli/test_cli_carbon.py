"""Commands with a forecast of carbon or price: plan, run and train, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattune.records import Plan, TrainingRecord

SMALL = Path(__file__).with_name("small.toml")
GRID = "seconds,gco2_per_kwh\n0,420\n30,400\n60,90\n90,250\n120,400\n"


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.csv"
    path.write_text(GRID)
    return path


@pytest.mark.slow
def test_a_run_waits_for_the_cleanest_time(wattune, tmp_path, grid):
    folder = tmp_path / "run"
    device, until = ("--device", "sim:jetson-nano"), ("--carbon", grid, "--deadline", "2min")
    code, out, err = wattune("run", SMALL, *device, "--cap", "5W", *until, "--seeds", 1, "-o", folder)
    assert code in (0, 3), err
    plan, training = Plan.load(folder / "plan.json"), TrainingRecord.load(folder / "training.json")
    assert [one.from_s for one in plan.schedule.times] == [60.0]
    assert training.evaluations[0].time_s > 60
    assert training.emissions.emissions > 0
    assert "trains at one time of low carbon intensity" in out
    assert any("waits: more carbon now than later, for 0:01:00" in line for line in err)
    assert "Times to train at" in (folder / "report.html").read_text()
    grid.unlink()  # the plan has the times
    again_code, _, again_err = wattune("run", "-o", folder, "--resume")
    assert again_code == code, again_err
    trained_code, _, trained_err = wattune("train", folder / "plan.json", SMALL, *device, "-o", tmp_path / "t.json")
    assert trained_code == code, trained_err
    again = TrainingRecord.load(tmp_path / "t.json")
    assert again.cap_intervals == training.cap_intervals
    assert json.loads((folder / "run.json").read_text())["carbon"] == str(grid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--carbon", "GRID"), "without a deadline; allowed: a time until which training may wait"),
        (("--carbon", "missing.csv", "--deadline", "1h"), "missing.csv cannot be read"),
        (("--carbon", "GRID", "--tariff", "GRID", "--deadline", "1h"), "carbon and one of the price; allowed: one of"),
        (("--tariff", "GRID", "--deadline", "1h"), "gco2_per_kwh; allowed: a file of price_per_kwh"),
        (("--carbon", "GRID", "--deadline", "1h", "--goal", "cost", "--price-per-kwh", "1"), "the goal cost with"),
        (("--carbon", "GRID", "--deadline", "1h", "--cap", "CAPS"), "a cap that changes with a forecast of carbon"),
        (
            ("--carbon", "GRID", "--deadline", "1h", "--server", "http://x", "--model", "m", "--data", "d"),
            "a forecast of carbon or price and --server cannot be combined",
        ),
    ],
)
def test_what_a_run_refuses(wattune, tmp_path, grid, arguments, message):
    caps = tmp_path / "caps.csv"
    caps.write_text("seconds,watts\n0,5\n9,4\n")
    words = [{"GRID": str(grid), "CAPS": str(caps)}.get(word, word) for word in arguments]
    workload = () if "--server" in words else (SMALL,)
    cap = () if "--cap" in words else ("--cap", "5W")
    folder = tmp_path / "run"
    code, _, err = wattune("run", *workload, "--device", "sim:jetson-nano", *cap, *words, "-o", folder)
    assert code == 2
    assert message in err[-1]
    assert not folder.exists()
