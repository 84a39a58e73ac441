"""Exploration by training steps that a test makes itself."""

from __future__ import annotations

from wattune.cap import SensorLimit
from wattune.devices import SimulatedDevice, builtin_board
from wattune.online.explorer import Explorer
from wattune.online.measurement_window import MeasurementWindow
from wattune.point import BatchShape
from wattune.power.capped_run import CappedRun
from wattune.search.search import Search


def test_evaluations_that_become_a_part_of_a_probe_do_not_end_it():
    """One a second, and no reading in between until they count as a part of what is measured."""
    device, row = SimulatedDevice(builtin_board("jetson-nano")), BatchShape(32, 32)
    with CappedRun(device, SensorLimit(5.0), device.safest) as run:
        limiter = run.limiter
        explorer = Explorer(
            device,
            limiter,
            lambda without: Search([row], device.combinations(), cap_w=5.0, start=row, window_s=device.sensor.window_s),
            row,
            fits=lambda row: True,
            changed=lambda point, reason: None,
        )
        explorer.choose()
        for step in range(200):
            explorer.begin(row, 0.0)
            device.wait(0.1)
            if explorer.mixes_evaluations and limiter(device.now_s(), 3.0):
                explorer.window.reading(device.now_s(), 3.0)
            explorer.end(row, 0.1, device.now_s())
            if step % 10 == 9:
                explorer.begin_evaluation()
                limiter.begin_evaluation()
                limiter.end_evaluation()
    assert explorer.mixes_evaluations
    assert explorer.cells


def test_readings_count_from_settling_on_and_not_in_pauses():
    window = MeasurementWindow(0.0)
    for at_s in range(10):
        window.reading(at_s, float(at_s))
        if at_s == 6:
            window.interrupt(6.0)  # the pause that began after the step before
        elif at_s != 5:
            window.step(at_s, 1.0, settle_s=2.0)
    assert window.readings_w == [3.0, 4.0, 9.0]
    assert window.elapsed_s == 3.0
    assert window.times_s == [1.0] * 3
