"""Exploration by training steps that a test makes itself."""

from __future__ import annotations

from wattune.cap import SensorLimit
from wattune.devices import SimulatedDevice, builtin_board
from wattune.online.explorer import Explorer
from wattune.online.measurement_window import SensorReadings
from wattune.point import BatchShape
from wattune.power.capped_run import CappedRun
from wattune.search.search import Search


def test_evaluations_that_become_a_part_of_a_probe_do_not_end_it():
    """One a second, and no reading in between until they count as a part of what is measured."""
    device, row, readings = SimulatedDevice(builtin_board("jetson-nano")), BatchShape(32, 32), SensorReadings()
    with CappedRun(device, SensorLimit(5.0), device.safest) as run:
        limiter = run.limiter
        explorer = Explorer(
            device,
            limiter,
            readings,
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
                readings.add(device.now_s(), 3.0)
            explorer.end(row, 0.1, device.now_s())
            if step % 10 == 9:
                explorer.begin_evaluation()
                limiter.begin_evaluation()
                limiter.end_evaluation()
    assert explorer.mixes_evaluations
    assert explorer.cells


def test_readings_are_collected_on_demand():
    readings = SensorReadings()
    readings.add(0.0, 1.0)
    readings.collect()
    for watts in (2.0, 3.0, 4.0):
        readings.add(0.1, watts)
    readings.pause()
    readings.add(0.2, 5.0)
    assert readings.first() == [2.0, 3.0, 4.0]
    assert readings.first(1) == [2.0]
    readings.collect()
    readings.clear(after=2)
    readings.add(0.3, 6.0)
    assert readings.first() == [2.0, 3.0]
    assert len(readings) == 2
