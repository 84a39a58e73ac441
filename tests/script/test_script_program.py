"""The choice of clocks beside the guard of a program, on a live board in virtual time."""

from __future__ import annotations

import time as monotonic
from dataclasses import replace
from statistics import fmean

import pytest
from tests.support.live.tree import LiveTree
from tests.support.live_devices import virtual
from tests.support.virtual_time import VirtualProgram, VirtualTime

from wattune.cap import PowerCap
from wattune.devices.agent import BoardDevice
from wattune.program.rounds import StepPage
from wattune.script.program import ProgramClocks
from wattune_agent.errors import Busy
from wattune_agent.guarded import run_guarded
from wattune_agent.outcome import GuardRequest, in_words

CPU_FILES = "/sys/devices/system/cpu/cpufreq/*"


def made(device: BoardDevice, page: StepPage, cap_w: float = 5.0) -> ProgramClocks:
    names = [knob.name for knob in device.offered]
    return ProgramClocks(device, PowerCap(cap_w).at_sensor(None, 0.0), page, names=names)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_board_that_cannot_be_taken_stays_as_the_guard_held_it(tmp_path, tree, device, page, is_held):
    device.controller.claim()
    held = device.offered[0].values[0] if is_held else None
    if is_held:
        device.controller.pin(held)
    guarded = tree.state()
    tree.writes.clear()
    tree.fault(CPU_FILES, "refused")
    page.stamp(1, 0.0)
    clocks = made(device, page)
    assert not clocks(0.1, 4.0, held, 5.0)
    assert [event["text"].split(":")[0] for event in clocks.take_events()] == ["clocks are not chosen"]
    assert tree.state() == guarded
    highest = max(device.offered[0].values)
    if is_held:
        gpu = [float(text) for _, path, text in tree.writes if path.endswith(("min_freq", "max_freq"))]
        assert highest * 1e6 not in gpu, "not even for a moment"
    with pytest.raises(Busy):
        virtual(LiveTree(tmp_path / "board")).controller.claim()
    clocks.restore()


def test_a_program_of_two_rounds_rises_above_the_clock_that_was_held(tree, device, page):
    lowest, highest = device.offered[0].values[0], device.offered[0].values[-1]
    device.controller.pin(lowest)
    clocks = made(device, page)
    for i in range(1, 1200):
        tree.sleep(0.1)
        page.stamp(2, 0.0)
        assert clocks(i / 10, 2.0, lowest, 5.0)
    assert device.current()[device.offered[0].name] == highest
    clocks.restore()


def test_a_cap_that_another_client_sets_is_kept_by_a_choice_and_not_remembered(tree, device, page):
    tree.board.load = 1.0
    controller = device.controller
    time, read, watts = VirtualTime(passes=tree.sleep), controller.read, []
    begun_s = time.now_s()

    def reading():
        now = read()
        watts.append((time.now_s() - begun_s, now["power_w"]))
        page.stamp(len(watts), monotonic.monotonic())
        return {**now, "set_cap_w": 5.5 if watts[-1][0] > 20 else None}

    controller.read = reading
    clocks = made(device, page, 8.0)
    report = run_guarded(controller, VirtualProgram(time, 40.0), cap_w=8.0, window_s=1.0, choice=clocks)
    assert clocks.choice is not None, "it was choosing"
    means_w = [fmean(w for at_s, w in watts if time_s - 1 < at_s <= time_s) for time_s, _ in watts if time_s > 23]
    assert max(means_w) < 5.6, "over its window: two neighbouring clocks may share it"
    assert report.above_cap_s < 3.0
    assert clocks.state_dict() is None
    assert sum(seconds for _, seconds in report.settings_s) == pytest.approx(report.time_s, abs=1.0)
    request = GuardRequest(["program"], None, 8.0, None, None, 1.0)
    first = in_words(report, request, controller.describe(), "simulated", clocks.choice.in_words())[0]
    assert "the clocks held below the cap" in first


def test_a_meter_that_needs_seconds_is_no_guard_that_stands_still(tree, device, page):
    device.sensor = replace(device.sensor, period_s=1.5)
    clocks = made(device, page)
    for i in range(1, 5):
        tree.sleep(1.5)
        page.stamp(10 * i, monotonic.monotonic())
        assert clocks(1.5 * i, 3.0, None, 5.0)
    clocks.restore()
    assert clocks.choice.rounds == 40


def test_clocks_are_chosen_again_once_the_cap_is_the_programs_own(tree, device, page):
    clocks = made(device, page)
    for i in range(1, 1500):
        tree.sleep(0.1)
        page.stamp(i, monotonic.monotonic())
        clocks(i / 10, 3.0, None, 4.0 if 400 <= i < 800 else 5.0)
        while clocks._controller is not None and not clocks._controller._steps.has_decided():
            monotonic.sleep(0.001)  # a decision takes real time, and the board's is virtual
    told = [event["text"] for event in clocks.take_events() if event["kind"] == "clocks"]
    assert [text.partition(":")[0] for text in told] == [
        "chosen",
        "clocks are not chosen",
        "the cap is 5 W again",
        "chosen",
    ]
    clocks.restore()
    assert clocks.choice.chosen is not None
