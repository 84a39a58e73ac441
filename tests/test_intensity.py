"""Forecasts of carbon and price, from files."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from wattune.errors import InputError
from wattune.intensity import Intensity
from wattune.tables import Layout

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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,watts\n2025-06-01,5\n", r"no column of gco2_per_kwh; allowed: seconds or time, and gco2_per_kwh or"),
        ("seconds,gco2_per_kwh\n0,5\n", "allowed: two values or more"),
        ("seconds,gco2_per_kwh\n0,5\n9,-1\n", "gco2_per_kwh in .*ci.csv: -1.0; allowed: a number, carbon not"),
        ("seconds,gco2_per_kwh\n0,5\n9,much\n", "line 3: much; allowed: a number"),
        ("seconds,gco2_per_kwh\n0,5\n9,nan\n", "line 3: nan"),
        ("seconds,gco2_per_kwh\n0,5\n5,n/e\n9,5\n", "line 3: n/e"),
        ("seconds,gco2_per_kwh\n0,5\n9,6\n9,7\n", "line 4: the time is not after"),
        ("seconds,price_per_kwh\n0,5\n9,6\n", "allowed: .* gco2_per_kwh or co2_lbs_per_mwh; found: seconds, price_per"),
    ],
)
def test_a_malformed_forecast_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as refused:
        Intensity.load(written(tmp_path, text), "gco2_per_kwh")
    assert "\n" not in str(refused.value)


def test_hours_that_are_not_published_are_left_out(tmp_path):
    path = written(tmp_path, "seconds,gco2_per_kwh\n0,50\n900,60\n1800,\n2700,n/e\n")
    read = Intensity.load(path, "gco2_per_kwh")
    assert (read.times_s, read.note) == ((0, 900), f"rows without a value at the end of {path} are left out: 2")


@pytest.mark.parametrize(("grams", "is_told"), [((0.14, 0.31), True), ((140.0, 310.0), False), ((140e3, 310e3), True)])
def test_grams_that_no_grid_has_are_doubted(tmp_path, grams, is_told):
    path = written(tmp_path, f"seconds,gco2_per_kwh\n0,{grams[0]}\n900,{grams[1]}\n")
    note = Intensity.load(path, "gco2_per_kwh").note
    assert note == (f"no grid has {grams[1]:g} g/kWh, the most in {path}: are these g?" if is_told else None)


@pytest.fixture
def zone(monkeypatch):
    """Set the machine's time zone."""

    def set_to(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("column", ["Datetime (UTC)", "UTC time", "time_utc", "HourUTC", "MTU (UTC)"])
def test_a_column_that_says_so_is_utc(tmp_path, zone, column):
    zone(BERLIN)
    text = f"{column},gco2_per_kwh\n2020-03-29 00:30,100\n2020-03-29 01:30,50\n2020-03-29 02:30,60\n"
    read = Intensity.load(written(tmp_path, text), "gco2_per_kwh")
    assert (read.times_s, read.note) == ((0, 3600, 7200), None)
    assert read.begin == datetime(2020, 3, 29, 0, 30, tzinfo=timezone.utc)


def test_the_zone_that_was_assumed_is_told(tmp_path, zone):
    zone(BERLIN)
    path = written(tmp_path, "time,gco2_per_kwh\n2024-01-01 00:00,100\n2024-01-01 01:00,50\n")
    read = Intensity.load(path, "gco2_per_kwh")
    assert read.begin == datetime(2023, 12, 31, 23, tzinfo=timezone.utc)
    assert read.note == (
        f"times of {path} have no offset, and are taken as local: CET (UTC+0100) at the first; "
        "--timezone sets another zone"
    )
    for name, hour in (("UTC", 0), ("America/New_York", 5), ("-03:30", 3.5)):
        there = Intensity.load(path, "gco2_per_kwh", Layout(timezone=name))
        assert (there.begin, there.note) == (datetime(2024, 1, 1, tzinfo=timezone.utc) + timedelta(hours=hour), None)
    with pytest.raises(InputError, match="timezone: Berlin; allowed: such as Europe/Berlin"):
        Intensity.load(path, "gco2_per_kwh", Layout(timezone="Berlin"))
    offset = written(tmp_path, "time,gco2_per_kwh\n2024-01-01 00:00+00:00,100\n2024-01-01 01:00Z,50\n")
    assert Intensity.load(offset, "gco2_per_kwh").note is None


@pytest.mark.parametrize(
    ("zone_name", "moment", "what"),
    [
        (
            LONDON,
            "2020-03-29 01:30",
            "local (GMT/BST), where this one does not exist: 2020-03-29 01:30; add --timezone UTC",
        ),
        (
            LONDON,
            "2020-10-25 01:30",
            "local (GMT/BST), where this one exists twice: 2020-10-25 01:30; add --timezone UTC",
        ),
        (LOS_ANGELES, "2020-11-01 01:00", "local (PST/PDT), where this one exists twice"),
    ],
)
def test_a_local_time_that_the_clocks_skip_or_repeat_is_refused(tmp_path, zone, zone_name, moment, what):
    zone(zone_name)
    path = written(tmp_path, f"time,gco2_per_kwh\n2020-01-01 00:00,100\n{moment},50\n")
    with pytest.raises(InputError, match=re.escape(what)):
        Intensity.load(path, "gco2_per_kwh")
    assert len(Intensity.load(path, "gco2_per_kwh", Layout(timezone="UTC")).values) == 2


def test_a_time_that_the_given_zone_lacks_or_has_twice_is_refused_and_its_clock_changes_count(tmp_path):
    berlin = Layout(timezone="Europe/Berlin")
    rows = "time,gco2_per_kwh\n2024-{0} 00:30,9\n2024-{0} 03:30,9\n2024-{0} 04:30,9\n"
    for day, hours in (("03-31", (0, 2, 3)), ("10-27", (0, 4, 5)), ("06-01", (0, 3, 4))):
        read = Intensity.load(written(tmp_path, rows.format(day)), "gco2_per_kwh", berlin)
        assert read.times_s == tuple(HOUR_S * hour for hour in hours)
    for day, what in (("03-31", "does not exist"), ("10-27", "exists twice")):
        path = written(tmp_path, f"time,gco2_per_kwh\n2024-{day} 00:30,9\n2024-{day} 02:30,9\n")
        with pytest.raises(InputError, match=f"are Europe/Berlin, where this one {what}"):
            Intensity.load(path, "gco2_per_kwh", berlin)
