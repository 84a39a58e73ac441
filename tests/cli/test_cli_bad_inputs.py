"""Inputs that somebody will give one day: each is one line that names the value, and exit code 2."""

import json

import pytest
from tests.support.cli_records import EFFICIENCY, PROFILE, written

BOARD = """name = "mine"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two good records and several files that are none."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "table.json", PROFILE)
    written(tmp_path, "curve.json", EFFICIENCY)
    (tmp_path / "board.toml").write_text(BOARD)
    (tmp_path / "caps.csv").write_text("time,cap\n0,5\n0,6\n")
    (tmp_path / "workload.toml").write_text('name = "a"\nname = "b"\n')
    return tmp_path


PLAN = ("plan", "table.json", "curve.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*PLAN, "--cap", "5,5,5W"), "5,5,5W"),
        ((*PLAN, "--cap", "5 horsepower"), "5 horsepower"),
        ((*PLAN, "--cap", "9W", "--set", "cap_window="), "--set: cap_window="),
        ((*PLAN, "--cap", "9W", "--batch-size", "0"), "--batch-size"),
        ((*PLAN, "--cap", "9W", "--batch-size", "many"), "many"),
        ((*PLAN, "--cap", "9W", "--batch-size", "7"), "7"),
        ((*PLAN, "--cap", "9W", "--memory", "-1GB"), "-1GB"),
        ((*PLAN, "--cap", "9W", "--memory", "much"), "much"),
        ((*PLAN, "--cap", "9W", "--goal", "enrgy"), "did you mean energy?"),
        (("profile", "--device", "sim:nano"), "did you mean jetson-nano?"),
        (("profile", "--device", "replay:table.csv?noize=1"), "did you mean noise?"),
        ((*PLAN, "--cap", "caps.csv"), "caps.csv"),
        ((*PLAN, "--cap", "absent.csv"), "absent.csv"),
        (("plan", ".", "curve.json", "--cap", "9W"), "."),
        (("profile", "--device", "sim:"), "sim:"),
        (("profile", "--device", ""), "unknown device"),
        (("profile", "--device", "board.toml"), "board.toml"),
        (("profile", "--device", "replay:absent.csv"), "absent.csv"),
        (("profile", "--device", "sim:jetson-nano", "--steps", "1e3"), "1e3"),
        (("profile", "--device", "sim:jetson-nano", "--strategy", "clever"), "clever"),
        (("profile", "workload.toml", "--device", "sim:jetson-nano"), "workload.toml"),
        (("train", "table.json", "--device", "sim:jetson-nano"), "table.json"),
        (("report", "absent"), "absent"),
        (("guard", "--device", "sim:jetson-nano", "--cap", "5W"), "guard"),
        (("doctor", "--device", "sim:jetson-nano"), "not a physical one"),
        (("doctor", "--sysfs-root", "."), "a folder with sys/"),
        (("devices", "nano"), "nano"),
        ((*PLAN[:2], "table.json", "--cap", "9W"), "table.json is not a efficiency record"),
        (("nonsense",), "nonsense"),
        (("--nonsense",), "--nonsense"),
        (PLAN, "cap is missing"),
        ((*PLAN, "--cap"), "--cap"),
        ((*PLAN, "c.json", "--cap", "4"), "c.json"),
        (("estimate", "--processes", "0"), "processes: 0"),
        (("report",), "RECORDS"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_bad_input_on_the_command_line(wattune, folder, arguments, said):
    code, out, err = wattune(*arguments)
    assert (code, out, len(err)) == (2, "", 1), (out, err)
    assert said in err[0]
    assert "Traceback" not in err[0]
    assert "Input should" not in err[0]  # the words of a library
    code, out, err = wattune(*arguments, "--json")
    assert (code, len(err), json.loads(out)["error"]["exit_code"]) == (2, 1, 2)
