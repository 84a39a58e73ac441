"""Tables of other programs: forms of files, known headers and units, and what a refusal says."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from wattune.errors import InputError, RecordError
from wattune.intensity import Intensity
from wattune.tables import Layout, parse_columns, read_table

BEGIN = datetime(2024, 10, 26, 22, tzinfo=timezone.utc)
CARBON, PRICE = "gco2_per_kwh", "price_per_kwh"

PROVIDERS = {
    "Electricity Maps, CSV": (
        CARBON,
        "Datetime (UTC),Zone id,Carbon intensity gCO₂eq/kWh (direct),Carbon intensity gCO₂eq/kWh (Life cycle)\n"
        "2024-10-26 22:00:00,DE,150.5,190.25\n2024-10-26 23:00:00,DE,120.5,160.5\n",
        (190.25, 160.5),
    ),
    "Electricity Maps, API": (
        CARBON,
        '{"zone": "DE", "history": [{"carbonIntensity": 310, "datetime": "2024-10-26T22:00:00.000Z", "updatedAt": ""},'
        ' {"carbonIntensity": 305, "datetime": "2024-10-26T23:00:00.000Z", "updatedAt": ""}]}',
        (310, 305),
    ),
    "carbonintensity.org.uk": (
        CARBON,
        '{"data": [{"from": "2024-10-26T22:00Z", "to": "2024-10-26T23:00Z", "intensity": {"forecast": 131,'
        ' "actual": null, "index": "low"}}, {"from": "2024-10-26T23:00Z", "to": "2024-10-27T00:00Z",'
        ' "intensity": {"forecast": 128, "actual": null, "index": "low"}}]}',
        (131, 128),
    ),
    "WattTime v3": (
        CARBON,
        '{"data": [{"point_time": "2024-10-26T22:00:00+00:00", "value": 1000.0}, {"point_time":'
        ' "2024-10-26T23:00:00+00:00", "value": 500.0}], "meta": {"units": "lbs_co2_per_mwh", "region": "X"}}',
        (453.59237, 226.796185),
    ),
    "CarbonCast": (
        CARBON,
        "Unnamed: 0,UTC time,creation_time (UTC),version,carbon_intensity,coal\n"
        "7,2024-10-26 22:00:00,2025-01-01 00:00:00,3.1,201.5,4.0\n"
        "8,2024-10-26 23:00:00,2025-01-01 00:00:00,3.1,188.0,4.0\n",
        (201.5, 188),
    ),
    "EIA": (
        CARBON,
        "UTC time,CO2 Emissions Intensity for Consumed Electricity (lbs per MWh)\n"
        "2024-10-26T22,1000\n2024-10-26T23,500\n",
        (453.59237, 226.796185),
    ),
    "Octopus Agile, newest first": (
        PRICE,
        '{"count": 2, "next": null, "results": [{"value_exc_vat": 11, "value_inc_vat": 12.6, "valid_from":'
        ' "2024-10-26T23:00:00Z"}, {"value_exc_vat": -2, "value_inc_vat": -2.1, "valid_from":'
        ' "2024-10-26T22:00:00Z"}]}',
        (-0.021, 0.126),
    ),
    "ENTSO-E until 2024": (
        PRICE,
        '"MTU (CET/CEST)","Day-ahead Price [EUR/MWh]","Currency","BZN|DE-LU"\n'
        '"27.10.2024 00:00 - 27.10.2024 01:00","61.2","EUR",""\n'
        '"27.10.2024 01:00 - 27.10.2024 02:00","-3.9","EUR",""\n"27.10.2024 04:00 - 27.10.2024 05:00","n/e","EUR",""\n',
        (0.0612, -0.0039),
    ),
    "ENTSO-E since 2024": (
        PRICE,
        "MTU (CET/CEST),Area,Day-ahead Price (EUR/MWh),Intraday Period (CET/CEST),Intraday Price (EUR/MWh)\n"
        "27/10/2024 00:00:00 - 27/10/2024 01:00:00,BZN|DE-LU,61.2,,\n"
        "27/10/2024 01:00:00 - 27/10/2024 02:00:00,BZN|DE-LU,50,,\n"
        "27/10/2024 02:00:00 (CEST) - 27/10/2024 02:00:00 (CET),BZN|DE-LU,40,,\n"
        "27/10/2024 02:00:00 (CET) - 27/10/2024 03:00:00 (CET),BZN|DE-LU,30,,\n",
        (0.0612, 0.05, 0.04, 0.03),
    ),
    "energy-charts.info": (
        PRICE,
        '{"license_info": "", "unix_seconds": [1729980000, 1729983600], "price": [2.5, -0.5], "unit": "EUR / MWh"}',
        (0.0025, -0.0005),
    ),
    "aWATTar": (
        PRICE,
        '{"object": "list", "data": [{"start_timestamp": 1729980000000, "marketprice": 42.5, "unit": "Eur/MWh"},'
        ' {"start_timestamp": 1729983600000, "marketprice": 40, "unit": "Eur/MWh"}]}',
        (0.0425, 0.04),
    ),
    "JSON lines": (
        PRICE,
        '{"time": "2024-10-26T22:00Z", "price_per_kwh": 0.2}\n{"time": "2024-10-26T23:00Z", "price_per_kwh": 0.1}\n',
        (0.2, 0.1),
    ),
    "EIA, its unit in a column": (
        CARBON,
        "utc,respondent,value,value-units\n2024-10-26T22,CISO,1000,lb/MWh\n2024-10-26T23,CISO,500,lb/MWh\n",
        (453.59237, 226.796185),
    ),
    "days with slashes, the year first": (
        PRICE,
        "time (UTC),RRP $/MWh\n2024/10/26 22:00:00,65\n2024/10/26 23:00:00,66\n",
        (0.065, 0.066),
    ),
    "semicolons and decimal commas": (
        PRICE,
        "Start;Preis [€/MWh]\n2024-10-26T22:00Z;1.160,50\n2024-10-26T23:00Z;-2,5\n",
        (1.1605, -0.0025),
    ),
}
"""Forms of providers' files, with other values."""


@pytest.mark.parametrize("provider", PROVIDERS)
def test_files_of_providers_are_read(tmp_path, provider):
    unit, text, values = PROVIDERS[provider]
    path = tmp_path / "file"
    path.write_text(text)
    read = Intensity.load(path, unit)
    assert read.begin == BEGIN
    assert read.times_s == tuple(3600.0 * hour for hour in range(len(values)))
    assert read.values == pytest.approx(values)
    assert (read.note is None) == (provider == "JSON lines")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "datetime,forecast\n2024-01-01T00:00Z,1\n",
            "found: datetime, forecast; may be meant: gco2_per_kwh or .*=forecast;",
        ),
        (
            "point_time,value\n2024-01-01T00:00Z,1\n",
            "may be meant: gco2_per_kwh or co2_lbs_per_mwh=value; name them with",
        ),
        (
            "Minutes5UTC,Emission zone,CO2Emission\n2024,DK1,80\n",
            "may be meant: time=Minutes5UTC, gco2.*=CO2Emission; name",
        ),
        ("SETTLEMENTDATE,TOTALPOWER,carbonzone\n2024,7,a\n", "may be meant: time=SETTLEMENTDATE; name them"),
        (
            "Datum von,gCO2/kWh\n1.1.24,1\n",
            "no column of time; .* may be meant: time=Datum von; name them with --columns",
        ),
        (
            "time,a g/kWh,b g/kWh\n2024,1,2\n",
            "several columns of gco2_per_kwh: a g/kWh, b g/kWh; choose one with --columns gco2_per_kwh=HEADER",
        ),
        ("time,a lbs/MWh,b lbs/MWh\n2024,1,2\n", "choose one with --columns co2_lbs_per_mwh=HEADER"),
        ("time,a kg/kWh,b kg/kWh\n2024,1,2\n", "choose one with --columns value=HEADER"),
        (
            '{"data": {"homes": [{"today": [{"total": 1, "startsAt": "2025-01-01"}]}]}}',
            "has no table; allowed: a list of",
        ),
        ('{"a": [{"time": 1}], "b": [{"time": 1}]}', "has several tables: a, b"),
        ('[{"time": "2024-01-01", "gco2_per_kwh": 5}, 3]', "has no table"),
        ("{}", "has no table"),
        ('{"record": "profile", "cells": [{"batch_size": 8}]}', "is a record of wattune, not a table: profile"),
        ("{", "is not valid JSON"),
        ('[{"time": "\\ud800"}]', "is not valid JSON"),
        ("time,gco2_per_kwh\n2024-01-01\n", "line 2 has the wrong number of cells: 1; allowed: 2"),
        ("time,gco2_per_kwh\n01/02/2024 00:00,5\n", "line 2: time: 01/02/2024 00:00; allowed: ISO 8601"),
        ('time,gco2_per_kwh\n"2024,5\n', "not a CSV file"),
        ("time,gco2_per_kwh\n", "has no rows"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line_with_what_may_be_meant(tmp_path, text, message):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(RecordError, match=message) as refused:
        Intensity.load(path, CARBON)
    assert "\n" not in str(refused.value)


def test_files_that_are_no_text_are_refused_in_one_line(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary.csv", tmp_path, tmp_path / "none.csv"):
        with pytest.raises(RecordError, match=r"cannot read|UTF-8") as caught:
            read_table(path)
        assert "\n" not in str(caught.value)


def test_columns_that_are_named_are_read(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("Start,Preis,Preis (EUR/MWh),SpotPriceEUR\n2024-10-27 00:00,1,80,90\n2024-10-27 01:00,2,40,50\n")
    for columns, first in (
        ("time=Start,value=Preis", 1),
        ("time=start, price_per_kwh=Preis", 1),
        ('time=Start,"value=Preis (EUR/MWh)"', 0.08),
        ("time=Start,price_per_mwh=SpotPriceEUR", 0.09),
    ):
        read = Intensity.load(path, PRICE, Layout(parse_columns(columns), "Europe/Berlin"))
        assert (read.begin, read.values[0]) == (BEGIN, pytest.approx(first))
    path.write_text("t_s,W\n0,1\n60,2\n")
    assert Intensity.load(path, PRICE, Layout(parse_columns("seconds=t_s,value=W"))).times_s == (0, 60)
    path.write_text("Start,Preis\n2024-10-27 00:00,1\n")
    with pytest.raises(
        RecordError, match=r"file\.csv has no column: Pries; allowed: Start, Preis; did you mean Preis\?"
    ):
        Intensity.load(path, PRICE, Layout(parse_columns("time=Start,value=Pries")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead=x", r"columns: sead=x; allowed: NAME=HEADER.*; did you mean seed\?"),
        ("time", "columns: time=; allowed"),
        ("time=a,time=b", "allowed: each column once"),
        ("time=a\nvalue=b", "columns: time=a value=b; allowed: NAME=HEADER,... in one line"),
    ],
)
def test_malformed_columns_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_columns(text)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("2024-01-01 00:30+0530", 5.5),
        ("2024-01-01T00:30:00.1234567-02", -2),
        ("2024-01-01 00:30 UTC", 0),
        ("2024-01-01T00:30:00Z", 0),
        ("01.01.2024 00:30 (CET) - 01.01.2024 01:30", 1),
    ],
)
def test_moments_in_the_forms_of_providers(tmp_path, text, offset):
    path = tmp_path / "file.csv"
    path.write_text(f"time,gco2_per_kwh\n{text},100\n2024-01-02T00:30Z,100\n")
    moment = datetime(2024, 1, 1, 0, 30, tzinfo=timezone.utc) - timedelta(hours=offset)
    begin = Intensity.load(path, CARBON).begin
    assert abs(begin - moment) < timedelta(seconds=1)


@pytest.mark.parametrize(
    ("headers", "offset"),
    [
        ("time (GMT+01:00)", 1),
        ("Datetime (UTC-5)", -5),
        ("Time (UTC −3:30)", -3.5),
        ("Time (+0530)", 5.5),
        ("MTU (EET/EEST)", 2),
        ("Time (local),Time (UTC)", 0),
        ("Local time,UTC time", 0),
        ("Time (UTC+1),Time (UTC)", 0),
    ],
)
def test_the_header_of_times_tells_their_offset(tmp_path, headers, offset):
    path = tmp_path / "file.csv"
    first = "2024-01-01 07:00," * headers.count(",")
    path.write_text(f"{headers},gco2_per_kwh\n{first}2024-01-01 00:30,1\n{first}2024-01-01 01:30,1\n")
    begin = Intensity.load(path, CARBON, Layout(timezone="Asia/Tokyo")).begin
    assert begin == datetime(2024, 1, 1, 0, 30, tzinfo=timezone.utc) - timedelta(hours=offset)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("Time (UTC+5.5)", r"offset in the header of times: time \(utc\+5.5\); allowed: such as UTC\+1 or UTC-03:30"),
        ("Time (Etc/GMT+5)", "offset in the header of times"),
        ("Time (CET)", r"without an offset in .*: Time \(CET\); add --timezone \+01:00 for CET all year, or Europe/Br"),
    ],
)
def test_a_header_of_times_whose_offset_is_unclear_is_refused(tmp_path, header, message):
    path = tmp_path / "file.csv"
    path.write_text(f"{header},gco2_per_kwh\n2024-07-01 00:30,1\n2024-07-01 01:30,1\n")
    with pytest.raises(InputError, match=message):
        Intensity.load(path, CARBON)


def test_a_header_of_an_unclear_zone_is_read_with_a_zone_or_offsets(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("Time (CET),gco2_per_kwh\n2024-07-01 00:30,1\n2024-07-01 01:30,1\n")
    begin = Intensity.load(path, CARBON, Layout(timezone="Europe/Brussels")).begin
    assert begin == datetime(2024, 6, 30, 22, 30, tzinfo=timezone.utc)
    path.write_text("Time (CET),gco2_per_kwh\n2024-07-01 00:30 CEST,1\n2024-07-01 02:30 EEST,1\n")
    read = Intensity.load(path, CARBON)
    assert (read.begin, read.times_s) == (begin, (0, 3600))


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("1.410", "2,5"), (1410, 2.5)),
        (("1.234,50", "-1.410"), (1234.5, -1410)),
        (("1.410", "2.5"), (1.41, 2.5)),
        (("1.410", "0.500"), (1.41, 0.5)),
        (("1,410", "2"), (1.41, 2)),
        (("1.5", "2,5"), (1.5, 2.5)),
    ],
)
def test_dots_between_semicolons_are_of_thousands_beside_decimal_commas(tmp_path, cells, values):
    path = tmp_path / "file.csv"
    path.write_text(f"seconds;note;price_per_kwh\n0;1.410;{cells[0]}\n60;2.125;{cells[1]}\n")
    assert Intensity.load(path, PRICE).values == pytest.approx(values)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0;1.410\n60;2\n", r"file\.csv, price_per_kwh: a dot of thousands or a decimal point: 1\.410; write thous"),
        ("0;1.410\n60;2,5\n120;2.5\n", "price_per_kwh: a dot of thousands or a decimal point: 1.410"),
        ("0;1\n1.800;2,5\n", "seconds: a dot of thousands or a decimal point: 1.800"),
    ],
)
def test_dots_between_semicolons_that_may_be_either_are_refused(tmp_path, rows, message):
    path = tmp_path / "file.csv"
    path.write_text("seconds;price_per_kwh\n" + rows)
    with pytest.raises(RecordError, match=message):
        Intensity.load(path, PRICE)


@pytest.mark.parametrize("zone", [None, "America/Los_Angeles", "Asia/Tokyo", "UTC", "-12:00", "+12:00"])
@pytest.mark.parametrize("moment", ["9999-12-31 23:59", "0001-01-01 00:00", "9999-12-31T23:59-14:00"])
def test_moments_that_no_calendar_has_are_refused_in_one_line(tmp_path, zone, moment):
    path = tmp_path / "file.csv"
    path.write_text(f"time,price_per_kwh\n{moment},1\n{moment},2\n")
    with pytest.raises(RecordError, match=r"line [23]: "):
        Intensity.load(path, PRICE, Layout(timezone=zone))


def test_a_header_of_times_that_the_table_lacks_is_refused_or_told(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("time,Begin of it,price_per_kwh\n2024-07-01Z,2023-07-01Z,1\n2024-07-02Z,2023-07-02Z,2\n")
    layout = Layout(parse_columns("time=Begin of if"))
    for one in (layout, layout._replace(is_shared=True)):
        with pytest.raises(RecordError, match=r"no column: Begin of if; allowed: .*; did you mean Begin of it\?"):
            Intensity.load(path, PRICE, one)
    for columns in ("time=Zeit", "seconds=Zeit"):
        read = Intensity.load(path, PRICE, Layout(parse_columns(columns), is_shared=True))
        assert (read.begin.year, read.note) == (2024, f"{path} has no column 'Zeit', and its times are 'time'")
        with pytest.raises(RecordError, match="no column: Zeit"):
            Intensity.load(path, PRICE, Layout(parse_columns(columns)))


def test_hours_of_tibber_are_read(tmp_path):
    path = tmp_path / "file.json"
    path.write_text('[{"total": 0.2, "startsAt": "2024-10-27T00:00+02:00"}, {"total": 1, "startsAt": "2024-10-28Z"}]')
    assert Intensity.load(path, PRICE, Layout({"value": "total"})).begin == BEGIN
