"""The power cap: parsing, validation, and the limit that it sets at the sensor."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.cap import PowerCap, SensorLimit
from wattune.errors import InputError
from wattune.records import Supply


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("4.5W", PowerCap(4.5)),
        ("4500 mW", PowerCap(4.5)),
        ("0.2kW", PowerCap(200.0)),
        ("5A@5V", PowerCap(25.0)),
        ("9A@20V@supply", PowerCap(180.0, "supply")),
        ("10", PowerCap(10.0)),
        ("10W@module", PowerCap(10.0)),
        ("10W@sensor", PowerCap(10.0)),
        (" 12w @ supply ", PowerCap(12.0, "supply")),
        ("none", PowerCap(None)),
    ],
)
def test_a_cap_is_read_from_text(text, cap):
    assert PowerCap.of(text) == cap


NO_CAPS = "|W|none W|none@supply|10W@module@supply|4,5W|@supply|-3W|0W|4.5MW|5A@|10W@roof|10W@|nan|inf|1e999W"


@pytest.mark.parametrize("text", NO_CAPS.split("|"))
def test_a_malformed_cap_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"such as 4\.5W") as refused:
        PowerCap.parse(text, name="--cap")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"limit_w": 0},
        {"limit_w": math.nan},
        {"limit_w": True},
        {"margin_w": -1.0},
        {"side": "x"},
        {"max_temp_c": "hot"},
    ],
)
def test_a_cap_that_cannot_be_is_refused(fields):
    with pytest.raises(InputError, match="allowed"):
        PowerCap(**{"limit_w": 5.0, **fields})


def test_a_cap_at_an_unknown_supply_is_refused():
    with pytest.raises(InputError, match="a meter at the supply"):
        PowerCap(12.0, "supply").at_sensor(None, None)


def test_a_cap_that_the_rest_of_the_board_uses_up_is_refused():
    with pytest.raises(InputError, match=r"more than 2\.5 W"):
        PowerCap(2.5, "supply").at_sensor(Supply(other_w=2.0, efficiency=0.8), None)


def test_a_margin_as_large_as_the_cap_is_refused():
    with pytest.raises(InputError, match="less than the cap of 5 W"):
        PowerCap(5.0, margin_w=5.0).at_sensor(None, None)


@given(watts=st.floats(1, 1e4), efficiency=st.floats(0.1, 1), other=st.floats(0, 5), margin=st.floats(0, 0.05))
def test_a_cap_at_the_supply_is_what_the_terminals_give_at_the_sensors_limit(watts, efficiency, other, margin):
    supply = Supply(other_w=other, efficiency=efficiency)
    cap = PowerCap(watts, "supply", margin_w=margin)
    if supply.at_module(watts) <= margin:
        with pytest.raises(InputError):
            cap.at_sensor(supply, None)
        return
    limit = cap.at_sensor(supply, None)
    assert limit.limit_w is not None
    assert supply.at_supply(limit.limit_w) == pytest.approx(watts)
    assert cap.supply_w == watts
    assert limit.allows(limit.limit_w * 0.999 - margin)
    assert not limit.allows(limit.limit_w * 1.001)


def test_no_cap_allows_everything():
    assert SensorLimit().allows(1e9)
    assert SensorLimit().strict == SensorLimit()
    assert PowerCap.of(None).at_sensor(None, None).allows(1e9)


@pytest.mark.parametrize(
    ("window", "averaging_s", "expected_s"),
    [(None, None, 1.0), (None, 0.1, 1.0), (None, 2.5, 2.5), (0.2, 0.1, 0.2), (5, 0.1, 5), ("peak", 2.5, None)],
)
def test_the_window_of_a_cap_is_a_second_unless_the_sensor_averages_over_longer(window, averaging_s, expected_s):
    assert PowerCap(10.0, window=window).at_sensor(None, averaging_s).window_s == expected_s


@pytest.mark.parametrize("window", [0, -1.0, float("nan"), float("inf"), "1s", "", True])
def test_a_window_that_is_none_is_refused_in_one_line(window):
    with pytest.raises(InputError, match=r'^window: .*; allowed: a positive number of seconds, "peak", or none$'):
        PowerCap(10.0, window=window)
