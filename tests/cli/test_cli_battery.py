"""The commands with a battery: train and run, what they remember, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli_boards import board_tree

SMALL = Path(__file__).with_name("small.toml")
BATTERY = ("--battery", "80Wh", "--panel", "20W", "--at", "52.52,13.40")
DEVICE = ("--device", "sim:jetson-nano")


@pytest.mark.slow
def test_a_run_from_a_battery(wattune, tmp_path):
    folder = tmp_path / "run"
    code, out, err = wattune("run", SMALL, *DEVICE, "--cap", "5W", *BATTERY, "--seeds", 1, "-o", folder)
    assert code in (0, 3), err
    training = json.loads((folder / "training.json").read_text())
    assert training["battery"]["source"] == "simulated"
    assert training["battery"]["charge"][0] == {"time_s": 0.0, "share": 1.0}
    assert training["above_cap_s"] == 0
    assert "The simulated battery of 80 Wh went from 100 %" in out
    assert json.loads((folder / "run.json").read_text())["battery"]["at"] == "52.52,13.4"
    again_code, _, again_err = wattune("run", "-o", folder, "--resume")
    assert again_code == code, again_err
    other_code, _, other_err = wattune("run", "-o", folder, "--resume", "--battery", "90Wh")
    assert other_code == 2
    assert "with another battery" in other_err[-1]

    charge, record = tmp_path / "charge", tmp_path / "t.json"
    charge.write_text("97%\n")
    options = ("--battery", "80Wh", "--reserve", "10%", "--charge", charge, "--reserve-mode", "soon")
    trained_code, _, trained_err = wattune("train", folder / "plan.json", SMALL, *DEVICE, *options, "-o", record)
    assert trained_code == code, trained_err
    figures = json.loads(record.read_text())["battery"]
    assert (figures["source"], figures["mode"], figures["reserve"]) == (str(charge), "soon", 0.1)
    assert {sample["share"] for sample in figures["charge"]} == {0.97}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reserve", "20%"), "--reserve needs --battery"),
        (("--suspend",), "--suspend needs --battery"),
        (("--battery", "80W"), "--battery: 80W; allowed: an energy above zero"),
        (("--battery", "80Wh", "--reserve", "100%"), "--reserve: 100%; allowed: below 100%"),
        (("--battery", "80Wh", "--panel", "20W"), "--at is missing"),
        (("--battery", "80Wh", "--at", "1,2"), "--panel is missing"),
        (("--battery", "80Wh", "--panel", "20W", "--at", "north"), "--at: north; allowed: degrees north and east"),
        (("--battery", "80Wh", "--panel", "0W", "--at", "1,2"), "--panel: 0W; allowed: watts above zero"),
        (("--battery", "80Wh", "--reserve-mode", "never"), "the reserve mode: never; allowed: strict, soon"),
        (("--battery", "80Wh", "--charge", "missing"), "--charge: missing cannot be read"),
        (("--battery", "80Wh", "--compare"), "a comparison of rules with a battery"),
        (
            ("--battery", "80Wh", "--server", "http://x", "--model", "m", "--data", "d"),
            "a battery and --server cannot be combined",
        ),
    ],
)
def test_what_a_run_refuses(wattune, tmp_path, arguments, message):
    folder = tmp_path / "run"
    workload = () if "--server" in arguments else (SMALL,)
    code, _, err = wattune("run", *workload, *DEVICE, "--cap", "5W", *arguments, "-o", folder)
    assert code == 2
    assert message in err[-1]
    assert not folder.exists()


@pytest.mark.slow
def test_a_run_that_is_to_be_suspended_remembers_it(wattune, tmp_path):
    folder = tmp_path / "run"
    code, _, err = wattune("run", SMALL, *DEVICE, "--cap", "5W", *BATTERY, "--suspend", "--seeds", 1, "-o", folder)
    assert code in (0, 3), err
    assert json.loads((folder / "training.json").read_text())["asleep_s"] == 0.0
    assert json.loads((folder / "run.json").read_text())["battery"]["suspend"] is True
    other_code, _, other_err = wattune("run", "-o", folder, "--resume", *BATTERY)
    assert other_code == 2
    assert "with another battery" in other_err[-1]


def test_a_device_that_cannot_be_suspended_is_refused(wattune, tmp_path):
    root = board_tree(tmp_path / "board")
    folder, charge = tmp_path / "run", tmp_path / "charge"
    charge.write_text("97%\n")
    device = ("--device", "jetson", "--sysfs-root", root)
    options = ("--battery", "80Wh", "--charge", charge, "--suspend")
    code, _, err = wattune("run", SMALL, *device, "--cap", "5W", *options, "-o", folder)
    assert code == 2
    assert "cannot be suspended" in err[-1]
    assert not folder.exists()


def test_a_battery_and_a_cap_that_changes_are_refused(wattune, tmp_path):
    caps = tmp_path / "caps.csv"
    caps.write_text("seconds,watts\n0,5\n")
    code, _, err = wattune("run", SMALL, *DEVICE, "--cap", caps, *BATTERY, "-o", tmp_path / "run")
    assert code == 2
    assert "a battery with a cap that changes" in err[-1]
