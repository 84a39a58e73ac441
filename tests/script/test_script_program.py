"""The choice of clocks beside the guard of a program, on a live board in virtual time."""

from __future__ import annotations

import pytest
from tests.support.live.tree import LiveTree
from tests.support.live_devices import virtual

from wattune.cap import PowerCap
from wattune.devices.agent import BoardDevice
from wattune.script.program import ProgramClocks
from wattune.script.rounds import StepPage
from wattune_agent.errors import Busy

CPU_FILES = "/sys/devices/system/cpu/cpufreq/*"


@pytest.fixture
def page():
    with StepPage() as page:
        yield page


def made(device: BoardDevice, page: StepPage, cap_w: float = 5.0) -> ProgramClocks:
    names = [knob.name for knob in device.offered]
    return ProgramClocks(device, PowerCap(cap_w).at_sensor(None, 0.0), page, names=names)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_board_that_cannot_be_taken_stays_as_the_guard_held_it(tmp_path, page, is_held):
    tree = LiveTree(tmp_path / "board")
    device = virtual(tree)
    device.controller.claim()
    held = device.offered[0].values[0] if is_held else None
    if is_held:
        device.controller.pin(held)
    guarded = tree.state()
    tree.writes.clear()
    tree.fault(CPU_FILES, "refused")
    page.stamp(1, 0.0)
    clocks = made(device, page)
    assert not clocks(0.1, 4.0, held)
    assert [event["text"].split(":")[0] for event in clocks.take_events()] == ["clocks are not chosen"]
    assert tree.state() == guarded
    highest = max(device.offered[0].values)
    if is_held:
        gpu = [float(text) for _, path, text in tree.writes if path.endswith(("min_freq", "max_freq"))]
        assert highest * 1e6 not in gpu, "not even for a moment"
    with pytest.raises(Busy):
        virtual(LiveTree(tmp_path / "board")).controller.claim()
    clocks.restore()
    device.close()


def test_a_program_of_two_rounds_rises_above_the_clock_that_was_held(tmp_path, page):
    tree = LiveTree(tmp_path / "board")
    device = virtual(tree)
    lowest, highest = device.offered[0].values[0], device.offered[0].values[-1]
    device.controller.pin(lowest)
    clocks = made(device, page)
    for i in range(1, 1200):
        tree.sleep(0.1)
        page.stamp(2, 0.0)
        assert clocks(i / 10, 2.0, lowest)
    assert device.current()[device.offered[0].name] == highest
    clocks.restore()
    device.close()
