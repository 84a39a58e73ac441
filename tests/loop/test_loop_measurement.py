"""Measurement of steps at one point: which of them count, and which readings are theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.loop.measurement_window import MeasurementWindow

STEP_S = st.floats(0.001, 10.0)


@given(
    step_s=STEP_S,
    gaps=st.dictionaries(st.integers(5, 60), st.floats(3.0, 200.0), max_size=6),
    per_look=st.integers(1, 3),
)
def test_gaps_are_left_out(step_s, gaps, per_look):
    window, time_s = MeasurementWindow(0.0, 0.0), 0.0
    is_seen = [number for number in range(1, 90) if number % per_look == 0]
    for number in range(1, 90):
        time_s += step_s + (gaps.get(number, 0.0) * per_look * step_s)
        if number in is_seen:
            window.step(time_s, per_look)
    found = window.measured()
    assert found is not None
    assert found.step_s == pytest.approx(step_s)
    assert found.uneven == pytest.approx(0.0, abs=1e-6)
    assert found.seconds == pytest.approx(found.steps * step_s)
    assert found.needed == 0


@given(settle_s=st.floats(0.0, 3.0), begin_s=st.floats(0.0, 100.0))
def test_readings_in_a_gap_and_while_the_sensor_settles_do_not_count(settle_s, begin_s):
    window = MeasurementWindow(begin_s, settle_s)
    gap_s = begin_s + 10.0, begin_s + 30.0
    for tick in range(600):
        now_s = begin_s + tick / 10
        if not gap_s[0] <= now_s < gap_s[1]:
            window.step(now_s)
        is_pure = now_s - settle_s >= begin_s and not gap_s[0] - 0.2 <= now_s <= gap_s[1] + settle_s + 0.1
        window.reading(now_s, 5.0 if is_pure else 50.0 if gap_s[0] <= now_s < gap_s[1] + settle_s else 5.0)
    found = window.measured()
    assert found is not None
    assert set(found.readings_w) == {5.0}
    assert found.step_s == pytest.approx(0.1)


def test_uneven_steps_need_more_rounds():
    window = MeasurementWindow(0.0, 0.0)
    time_s = 0.0
    for number in range(40):
        time_s += 0.5 if number % 2 else 1.0
        window.step(time_s)
    found = window.measured()
    assert found is not None
    assert found.uneven == pytest.approx(1 / 3, rel=0.03)
    assert 200 < found.needed < 320


def test_a_gap_is_one_while_it_lasts():
    window = MeasurementWindow(0.0, 0.0)
    for number in range(5):
        window.step(0.1 * number)
    assert not window.is_gap(0.5)
    assert window.is_gap(1.0)


def test_readings_count_from_settling_on_and_not_in_pauses():
    window = MeasurementWindow(0.0, 2.0)
    for at_s in range(10):
        window.reading(at_s, float(at_s))
        if at_s == 6:
            window.interrupt(6.0)  # the pause that began after the step before
        elif at_s != 5:
            window.step(at_s, 1, 1.0)
    found = window.measured()
    assert found is not None
    assert found.readings_w == [2.0, 3.0, 4.0, 8.0, 9.0]
    assert (found.seconds, found.steps, found.step_s) == (3.0, 3, 1.0)


def test_a_step_after_very_many_pauses_looks_at_none_of_them():
    class NotReadThrough(list):
        def __iter__(self):
            raise AssertionError

    window, time_s = MeasurementWindow(0.0, 0.0), 0.0
    for _ in range(50):
        for _ in range(3):
            time_s += 1.0
            window.step(time_s)
        time_s += 100.0
        window.interrupt(time_s)
    window._before = NotReadThrough(window._before)
    assert window.elapsed_s == pytest.approx(100.0)
    window.step(time_s + 1.0)
    window.step(time_s + 2.0)
    assert window.elapsed_s == pytest.approx(101.0)
