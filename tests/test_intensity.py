"""Forecasts of carbon and price, from files."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from wattune.errors import InputError
from wattune.intensity import Intensity

HOUR_S = 3600.0
LONDON, BERLIN = "GMT0BST,M3.5.0/1,M10.5.0", "CET-1CEST,M3.5.0,M10.5.0/3"
LOS_ANGELES = "PST8PDT,M3.2.0,M11.1.0"
"""Rules of time zones, in place of names that a small image may not know."""


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
        (
            "ci.csv",
            "Time,Carbon intensity (direct)\n2025-06-01,5\n",
            r"first line of .*: Time,Carbon intensity \(direct\); allowed: seconds or time, and gco2_per_kwh or "
            "co2_lbs_per_mwh, with a comma; rename the two columns$",
        ),
        ("ci.csv", "seconds,price_per_kwh\n0,5\n9,6\n", "seconds,price_per_kwh; allowed: .* gco2_per_kwh or co2_lbs"),
        (
            "ci.json",
            '{"data": [{"point_time": "2025-06-01T08:00Z", "value": 8}, {"point_time": "2025-06-01T09:00Z"}]}',
            "entry 1: .*Electricity Maps has it, or a CSV file of time, and gco2_per_kwh or co2_lbs_per_mwh",
        ),
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


def test_a_tariff_is_no_json(tmp_path):
    path = written(tmp_path, '{"results": []}', "agile.json")
    with pytest.raises(
        InputError, match=r"agile\.json: JSON; allowed: a tariff as a CSV file of time, and price_per_kwh or"
    ):
        Intensity.load(path, "price_per_kwh")


@pytest.fixture
def zone(monkeypatch):
    """Set the machine's time zone."""

    def set_to(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("column", ["Datetime (UTC)", "UTC time", "time_utc (utc)", "time (UTC)"])
def test_a_column_that_says_so_is_utc(tmp_path, zone, column):
    zone(BERLIN)
    text = f"{column},gco2_per_kwh\n2020-03-29 00:30,100\n2020-03-29 01:30,50\n2020-03-29 02:30,60\n"
    if column.startswith("time_utc"):
        with pytest.raises(InputError, match="first line"):
            Intensity.load(written(tmp_path, text), "gco2_per_kwh")
        return
    read = Intensity.load(written(tmp_path, text), "gco2_per_kwh")
    assert (read.times_s, read.note) == ((0, 3600, 7200), None)
    assert read.begin == datetime(2020, 3, 29, 0, 30, tzinfo=timezone.utc)


def test_the_zone_that_was_assumed_is_told(tmp_path, zone):
    zone(BERLIN)
    path = written(tmp_path, "time,gco2_per_kwh\n2024-01-01 00:00,100\n2024-01-01 01:00,50\n")
    read = Intensity.load(path, "gco2_per_kwh")
    assert read.begin == datetime(2023, 12, 31, 23, tzinfo=timezone.utc)
    assert read.note == f"times of {path} have no offset, and are taken as local: CET (UTC+0100) at the first"
    offset = written(tmp_path, "time,gco2_per_kwh\n2024-01-01 00:00+00:00,100\n2024-01-01 01:00Z,50\n")
    assert Intensity.load(offset, "gco2_per_kwh").note is None


@pytest.mark.parametrize(
    ("zone_name", "moment", "what"),
    [
        (
            LONDON,
            "2020-03-29 01:30",
            "local (GMT/BST), where this one does not exist: 2020-03-29 01:30; add +00:00",
        ),
        (
            LONDON,
            "2020-10-25 01:30",
            "local (GMT/BST), where this one exists twice: 2020-10-25 01:30; add +00:00",
        ),
        (LOS_ANGELES, "2020-11-01 01:00", "local (PST/PDT), where this one exists twice"),
    ],
)
def test_a_local_time_that_the_clocks_skip_or_repeat_is_refused(tmp_path, zone, zone_name, moment, what):
    zone(zone_name)
    path = written(tmp_path, f"time,gco2_per_kwh\n2020-01-01 00:00,100\n{moment},50\n")
    with pytest.raises(InputError, match=re.escape(what)):
        Intensity.load(path, "gco2_per_kwh")
    zone("UTC")
    assert len(Intensity.load(path, "gco2_per_kwh").values) == 2
