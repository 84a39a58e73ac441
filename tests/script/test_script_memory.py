"""What a run of a command leaves to its next one, and a choice that fails."""

from __future__ import annotations

import os
import time

import pytest

from wattune.cap import PowerCap
from wattune.cli.choosing import Choosing
from wattune.devices import open_device
from wattune.script.program import Memory, ProgramClocks
from wattune_agent.outcome import Report


def test_an_error_of_the_choice_ends_the_choice_alone(tree, device, page):
    device.controller.claim()
    as_found = tree.state()
    clocks = ProgramClocks(
        device,
        PowerCap(5.0).at_sensor(None, 0.0),
        page,
        names=[knob.name for knob in device.offered],
        expect_s="soon",
        remembered={},
    )
    for tick in range(1, 40):
        page.stamp(tick, time.monotonic())
        tree.sleep(0.1)
        assert clocks(tick / 10, 9.0, None, 5.0), "the limiter holds the board"
    texts = [event["text"] for event in clocks.take_events()]
    assert len([text for text in texts if text.startswith("clocks are not chosen: ")]) == 1
    assert any("down to" in text for text in texts), "and the cap"
    assert clocks.choice.in_words()[0].startswith("no clock was chosen: ")
    assert clocks.state_dict() is None
    clocks.restore()
    assert tree.state() == as_found


@pytest.fixture
def remember(tmp_path, monkeypatch):
    """A function that makes the memory of a command."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    device = open_device("sim:jetson-nano")
    limit = PowerCap(5.0).at_sensor(None, 0.0)
    return lambda: Memory(device, limit, [device.offered[0].name], ["python", "train.py"])


@pytest.mark.parametrize("time_s", ["soon", [5], {}, float("inf"), -1.0, None])
def test_a_remembered_time_that_cannot_be_is_left_out(remember, time_s):
    remember().save({"search": {}}, 500.0)
    assert remember().load() == {"search": {}, "time_s": 500.0}
    remember().save({"search": {}}, time_s if time_s != float("inf") else 1.0)
    path = remember()._path
    path.write_text(path.read_text().replace(": 1.0", ": 1e999"))
    assert remember().load() == {"search": {}, "time_s": None}


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_a_file_of_another_user_is_not_remembered(remember):
    remember().save({"search": {}}, 500.0)
    os.chown(remember()._path, 4321, 4321)
    assert remember().load() is None


def test_the_same_command_in_another_folder_is_another_program(remember, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    remember().save({"search": {}}, 500.0)
    monkeypatch.chdir(tmp_path / "other")
    assert remember().load() is None
    monkeypatch.chdir(tmp_path)
    assert remember().load() is not None


@pytest.mark.parametrize(
    ("ended", "code", "expected_s"),
    [("finished", 0, 700.0), ("finished", 1, 500.0), ("interrupted", 0, 500.0), ("stopped for safety", 5, 500.0)],
)
def test_only_a_run_that_succeeds_says_how_long_the_program_takes(
    tmp_path, tree, device, monkeypatch, ended, code, expected_s
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    device.controller.claim()
    limit = PowerCap(5.0).at_sensor(None, 0.0)
    words = ["python", "train.py"]
    memory = Memory(device, limit, [knob.name for knob in device.offered], words)
    memory.save({"search": {}, "choice": {}}, 500.0)
    chosen = Choosing(device, limit, words, "all", fresh=False, expect_s=None, step_time=None)
    with chosen:
        for tick in range(1, 200):
            chosen._page.stamp(tick, time.monotonic())
            tree.sleep(0.1)
            chosen.clocks(tick / 10, 4.0, None, 5.0)
    chosen.clocks.restore()
    figures = {"energy_j": 1.0, "power_mean_w": 1.0, "power_peak_w": 1.0, "above_cap_s": 0.0, "hottest_c": None}
    report = Report(time_s=700.0, **figures, readings=1, events=[], exit_code=code, ended=ended)
    chosen.keep(report)
    assert memory.load()["choice"], "what was found is kept however it ended"
    assert memory.load()["time_s"] == expected_s
