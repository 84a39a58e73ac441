"""Forecasts of carbon and price, and the cheapest times, against linear programming."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from wattune.errors import InputError
from wattune.intensity import GRAIN_S, Intensity, cheapest

HOUR_S = 3600.0


def hourly(*values, **fields):
    return Intensity(tuple(HOUR_S * hour for hour in range(len(values))), tuple(map(float, values)), **fields)


def written(folder: Path, text: str, name: str = "ci.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_each_value_holds_until_the_next_and_the_last_for_good():
    one = hourly(100, 300, 200)
    assert one.integral(0, 2 * HOUR_S) == pytest.approx(400 * HOUR_S)
    assert one.integral(1800, 5400) == pytest.approx(200 * HOUR_S)
    assert one.integral(2 * HOUR_S, 10 * HOUR_S) == pytest.approx(1600 * HOUR_S)
    assert one.end_s == 3 * HOUR_S


def test_files_are_read_in_their_units(tmp_path):
    grams = "Zone,datetime,gco2_per_kwh\nDE,2025-06-01T00:00Z,100\nDE,2025-06-01T01:00Z,50\n"
    assert Intensity.load(written(tmp_path, grams), "gco2_per_kwh").values == (100, 50)
    pounds = "datetime,co2_lbs_per_mwh\n2025-06-01 00:00:00+00:00,1000\n2025-06-01 00:05:00+00:00,500\n"
    assert Intensity.load(written(tmp_path, pounds), "gco2_per_kwh").values == pytest.approx((453.59237, 226.796185))
    price = Intensity.load(written(tmp_path, "seconds,price_per_mwh\n0,80\n900,-20\n"), "price_per_kwh")
    assert (price.times_s, price.values, price.begin) == ((0, 900), pytest.approx((0.08, -0.02)), None)
    entries = [{"carbonIntensity": 300 + hour, "datetime": f"2025-06-01T0{hour}:00:00.000Z"} for hour in range(3)]
    for content in ({"zone": "DE", "forecast": entries}, {"history": entries}, entries):
        read = Intensity.load(written(tmp_path, json.dumps(content), "ci.json"), "gco2_per_kwh")
        assert (read.times_s, read.values) == ((0, 3600, 7200), (300, 301, 302))
        assert read.begin.isoformat() == "2025-06-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ci.csv", "time,watts\n2025-06-01,5\n", "first line .* allowed: seconds or time, and gco2_per_kwh or"),
        ("ci.csv", "seconds,gco2_per_kwh\n0,5\n", "allowed: two values or more"),
        (
            "ci.csv",
            "seconds,gco2_per_kwh\n0,5\n9,-1\n",
            "gco2_per_kwh in .*ci.csv: -1.0; allowed: a number, carbon not",
        ),
        ("ci.csv", "seconds,gco2_per_kwh\n0,5\n9,much\n", "line 3: much; allowed: a number"),
        ("ci.csv", "seconds,gco2_per_kwh\n0,5\n9,nan\n", "line 3: nan"),
        ("ci.csv", "seconds,gco2_per_kwh\n0,5\n9,6\n9,7\n", "line 4: the time is not after"),
        ("ci.csv", "seconds,price_per_kwh\n0,5\n9,6\n", "price_per_kwh; allowed: a file of gco2_per_kwh"),
        ("ci.json", "{}", "no carbon intensities"),
        ("ci.json", "{", "is not JSON"),
        (
            "ci.json",
            '[{"carbonIntensity": "5", "datetime": "2025-06-01"}, 3]',
            "entry 1: .* allowed: a list of objects",
        ),
        (
            "ci.json",
            '[{"carbonIntensity": 5, "datetime": "2025-06-01"}, {"carbonIntensity": 5, "datetime": "2025-05-01"}]',
            "entry 2: the time is not after",
        ),
    ],
)
def test_a_malformed_forecast_is_refused_in_one_line(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message) as refused:
        Intensity.load(written(tmp_path, text, name), "gco2_per_kwh")
    assert "\n" not in str(refused.value)


def test_the_cheapest_hours_are_chosen_and_the_rest_beside_them():
    forecast = hourly(300, 100, 200, 400, 120, 500)
    assert cheapest(forecast, 2 * HOUR_S, 0.0, 6 * HOUR_S) == ((3600, 7200), (14400, 18000))
    assert cheapest(forecast, 2.5 * HOUR_S, 0.0, 6 * HOUR_S) == ((3600, 9000), (14400, 18000))
    assert cheapest(forecast, 6 * HOUR_S, 0.0, 6 * HOUR_S) == ((0, 21600),)
    assert cheapest(forecast, 600, 0.0, 6 * HOUR_S) == ((3600, 4200),)


@given(
    st.lists(st.floats(0, 500), min_size=2, max_size=10),
    st.floats(0.05, 1.2),
    st.floats(0, 3000),
    st.sampled_from([GRAIN_S, 2 * GRAIN_S, HOUR_S]),
    st.sampled_from([0.0, 0.2, 0.7, 1.0]),
)
def test_no_other_times_are_cheaper(values, share, from_s, spacing_s, waiting):
    forecast = Intensity(tuple(spacing_s * index for index in range(len(values))), tuple(values))
    from_s = min(from_s, forecast.end_s / 2)
    until_s = forecast.end_s
    need_s = share * (until_s - from_s)
    stretches = cheapest(forecast, need_s, from_s, until_s, waiting=waiting)
    assert sum(one.length_s for one in stretches) == pytest.approx(need_s)
    assert stretches[0].from_s >= from_s
    assert all(before.until_s < after.from_s for before, after in itertools.pairwise(stretches))
    at_once = forecast.integral(from_s, from_s + need_s)
    account = forecast.account(stretches, from_s, waiting)
    assert account <= at_once * (1 + 1e-9) + 1e-6
    if share >= 1:
        return
    assert stretches[-1].until_s <= until_s + 1e-6
    # The grains begin at `from_s`, so one of them may be of two values.
    slack = 0 if from_s == 0 else len(values) * GRAIN_S * (max(values) - min(values)) + GRAIN_S * max(values)
    pieces = list(forecast.pieces(from_s, until_s))
    for count in range(1, len(pieces) + 1):  # the end of training is that of each value in turn
        lengths_s = [stretch.length_s for stretch, _ in pieces[:count]]
        if sum(lengths_s) < need_s:
            continue
        least = linprog(
            [value for _, value in pieces[:count]],
            A_eq=[np.ones(count)],
            b_eq=[need_s],
            bounds=[(0, length_s) for length_s in lengths_s],
        ).fun
        waited = forecast.integral(from_s, pieces[count - 1][0].until_s) - least
        assert account <= least + waiting * waited + slack + 1e-3
    if not waiting:
        assert math.isclose(least, account, rel_tol=1e-6, abs_tol=1e-3 + slack)


def test_of_times_that_take_the_same_the_earliest_is_chosen():
    forecast = Intensity((0.0, 30.0, 60.0, 90.0, 120.0), (420.0, 400.0, 90.0, 250.0, 400.0))
    for need_s in (0.8317074, 1 / 3, 7.1):
        assert cheapest(forecast, need_s, 0.0, 119.0) == ((60.0, 60.0 + need_s),)


def test_what_waits_takes_power_too():
    forecast = hourly(300, 290, 200, 100)
    assert cheapest(forecast, HOUR_S, 0.0, 4 * HOUR_S, waiting=0.1) == ((3 * HOUR_S, 4 * HOUR_S),)
    # It would wait with 790 at half the power, to save 200.
    assert cheapest(forecast, HOUR_S, 0.0, 4 * HOUR_S, waiting=0.5) == ((0.0, HOUR_S),)


def test_a_forecast_of_each_second_of_a_day_is_planned_by():
    rows = 86400  # at a cost that is quadratic, this takes hours
    values = tuple(100.0 + (second // 60 * 7919) % 300 for second in range(rows))
    forecast = Intensity(tuple(map(float, range(rows))), values)
    stretches = cheapest(forecast, 8 * HOUR_S, 0.0, 24 * HOUR_S, waiting=0.05)
    assert sum(one.length_s for one in stretches) == pytest.approx(8 * HOUR_S)
