"""Exploration by training steps that a test makes itself."""

from __future__ import annotations

from wattune.online.measurement_window import MeasurementWindow


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
