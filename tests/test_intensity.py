"""Forecasts of carbon and price, from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattune.errors import InputError
from wattune.intensity import Intensity

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
