"""Inputs that somebody will give one day: each is one line that names the value, and exit code 2."""

import json

import pytest
import torch
from tests.support.cli_records import EFFICIENCY, PROFILE, written
from tests.support.real_time_device import RealTimeDevice
from tests.support.sessions import Numbered, board, loss_of, perceptron
from torch.utils.data import DataLoader

import wattune as package
from wattune.errors import InputError

BOARD = """name = "mine"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two good records and several files that are none."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "table.json", PROFILE)
    written(tmp_path, "curve.json", EFFICIENCY)
    cells = [{**PROFILE["cells"][0], "step_s": -1.0}, *PROFILE["cells"][1:]]
    written(tmp_path, "negative.json", {**PROFILE, "cells": cells})
    written(tmp_path, "words.json", {**PROFILE, "cells": "none"})
    (tmp_path / "empty.json").touch()
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "utf16.json").write_text("{}", encoding="utf-16")
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
        ((*PLAN, "--cap", ""), "--cap"),
        ((*PLAN, "--cap", "infW"), "infW"),
        ((*PLAN, "--cap", "9W", "--cap-window", "-1s"), "-1s"),
        ((*PLAN, "--cap", "9W", "--cap-window", "soon"), "soon"),
        ((*PLAN, "--cap", "9W", "--batch-size", "0"), "--batch-size"),
        ((*PLAN, "--cap", "9W", "--batch-size", "many"), "many"),
        ((*PLAN, "--cap", "9W", "--batch-size", "7"), "7"),
        ((*PLAN, "--cap", "9W", "--memory", "-1GB"), "-1GB"),
        ((*PLAN, "--cap", "9W", "--memory", "much"), "much"),
        ((*PLAN, "--cap", "9W", "--goal", "speed"), "speed"),
        ((*PLAN, "--cap", "9W", "--max-slowdown", "-5%"), "-5%"),
        ((*PLAN, "--cap", "caps.csv"), "caps.csv"),
        ((*PLAN, "--cap", "absent.csv"), "absent.csv"),
        (("plan", "negative.json", "curve.json", "--cap", "9W"), "-1"),
        (("plan", "words.json", "curve.json", "--cap", "9W"), "words.json"),
        (("plan", "empty.json", "curve.json", "--cap", "9W"), "empty.json"),
        (("plan", "list.json", "curve.json", "--cap", "9W"), "list.json"),
        (("plan", "deep.json", "curve.json", "--cap", "9W"), "deep.json"),
        (("plan", "utf16.json", "curve.json", "--cap", "9W"), "utf16.json"),
        (("plan", "curve.json", "table.json", "--cap", "9W"), "curve.json"),
        (("plan", ".", "curve.json", "--cap", "9W"), "."),
        (("profile", "--device", "sim:jetson-nanoo"), "jetson-nanoo; allowed: "),
        (("profile", "--device", "sim:"), "sim:"),
        (("profile", "--device", ""), "unknown device"),
        (("profile", "--device", "board.toml"), "board.toml"),
        (("profile", "--device", "replay:absent.csv"), "absent.csv"),
        (("profile", "--device", "sim:jetson-nano", "--steps", "1e3"), "1e3"),
        (("profile", "--device", "sim:jetson-nano", "--strategy", "clever"), "clever"),
        (("profile", "workload.toml", "--device", "sim:jetson-nano"), "workload.toml"),
        (("run", "--device", "sim:jetson-nano", "--cap", "5W", "--seeds", "1.5"), "1.5"),
        (("run", "--output", "absent", "--resume"), "absent"),
        (("train", "table.json", "--device", "sim:jetson-nano"), "table.json"),
        (("report", "absent"), "absent"),
        (("guard", "--device", "sim:jetson-nano", "--cap", "5W"), "guard"),
        (("devices", "nano"), "nano"),
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


def session_of(**options):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Numbered(), batch_size=32)
    return package.capped(
        **{"device": board(), "cap_w": 4.5, "model": model, "optimizer": optimizer, "loader": loader, **options}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cap_w": "4500mA"}, "4500mA"),
        ({"cap_w": []}, "cap_w"),
        ({"cap_w": True}, "cap_w: True"),
        ({"cap_w": "5W", "over": "rack"}, "over: rack"),
        ({"goal": "fun"}, "fun"),
        ({"goal": 3}, "3"),
        ({"device": "sim:absent"}, "absent"),
        ({"device": 7}, "device: 7"),
        ({"device": None}, "device; allowed: a name"),
        ({"batch_sizes": [1.5]}, "1.5"),
        ({"batch_sizes": "32"}, "32"),
        ({"batch_sizes": [True]}, "True"),
        ({"micro_batch_size": 0}, "micro_batch_size: 0"),
        ({"scheduler": [1]}, "int"),
        ({"before_step": 5}, "before_step: 5"),
        ({"scaler": 5}, "scaler: 5"),
        ({"log_to": "absent-tracker"}, "log_to"),
        ({"checkpoint": 5}, "checkpoint: 5"),
        ({"record": 5}, "record: 5"),
        ({"efficiency": 5}, "efficiency: int"),
        ({"profile": 5, "cap_w": lambda s: 5.0}, "profile: int"),
        ({"seed": -1}, "seed: -1"),
        ({"seed": "a"}, "seed: a"),
        ({"keep_recipe": "no"}, "keep_recipe: no"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_argument_of_a_session(options, said):
    with pytest.raises(InputError) as caught:
        session_of(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_cap_in_another_unit_is_refused():
    with pytest.raises(InputError, match=r"^4500 W is \d+ times what this board draws at most; 4500mW\?$"):
        session_of(cap_w=4500)


def test_a_cap_in_another_unit_is_warned_of_on_a_board_that_nothing_is_known_of():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        with session_of(device=RealTimeDevice(), model=model, optimizer=optimizer, cap_w=4500) as session:
            for batch in session.batches():
                session.backward(loss_of(model, batch))

    with pytest.warns(UserWarning, match=r"^4500 W is \d+ times what this board draws at most; 4500mW\?$"):
        train()
