"""Numbers with units: every suffix, round trips, and what is refused in one line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.errors import InputError
from wattune.units import QUANTITIES, parse, read

SUFFIXES = [(unit, suffix) for unit, quantity in QUANTITIES.items() for suffix in ("", *quantity.factors)]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("4.5W", "W", 4.5),
        ("4.5", "W", 4.5),
        (" 12 w ", "W", 12.0),
        ("3300mW", "W", 3.3),
        ("1.2kW", "W", 1200.0),
        ("250000uW", "W", 0.25),
        ("5A@5V", "W", 25.0),
        ("0.5 A @ 19.5 V", "W", 9.75),
        ("200ms", "s", 0.2),
        ("90s", "s", 90.0),
        ("30min", "s", 1800.0),
        ("8h", "s", 28_800.0),
        ("2d", "s", 172_800.0),
        ("1w", "s", 604_800.0),
        ("900J", "J", 900.0),
        ("200kJ", "J", 2e5),
        ("1.5MJ", "J", 1.5e6),
        ("50Wh", "J", 1.8e5),
        ("1.2kWh", "J", 4.32e6),
        ("612MHz", "MHz", 612.0),
        ("612", "MHz", 612.0),
        ("0.612 GHz", "MHz", 612.0),
        ("612000kHz", "MHz", 612.0),
        ("612e6hz", "MHz", 612.0),
        ("64MB", "B", 64e6),
        ("64m", "B", 64e6),
        ("1.5GB", "B", 1.5e9),
        ("512MiB", "B", 512 * 2.0**20),
        ("2 Ti", "B", 2.0**41),
        ("1000", "B", 1000.0),
        ("80C", "°C", 80.0),
        ("72.5 °c", "°C", 72.5),
        ("80", "°C", 80.0),
        ("5%", "share", 0.05),
        ("0.05", "share", 0.05),
        ("150 %", "share", 1.5),
        ("1", "share", 1.0),
    ],
)
def test_a_number_is_read_in_the_unit_of_the_code(text, unit, value):
    assert read(text, unit) == value
    assert parse(text, unit, name="--it") == value


@given(st.sampled_from(SUFFIXES), st.floats(0, 1e12, allow_subnormal=False), st.sampled_from(["", " "]))
def test_every_suffix_is_its_factor(pair, number, space):
    unit, suffix = pair
    factor = float(QUANTITIES[unit].factors.get(suffix, "1"))
    assert read(f"{number!r}{space}{suffix}", unit) == pytest.approx(number * factor, rel=1e-15)


@given(st.integers(0, 10**9))
def test_what_is_written_in_thousandths_is_the_same_number(thousandths):
    text = f"{thousandths // 1000}.{thousandths % 1000:03}"
    assert read(f"{thousandths}mW", "W") == float(text) == read(f"{text}W", "W")
    assert read(f"{thousandths}ms", "s") == float(text)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_amperes_at_volts_are_watts(amperes, volts):
    assert read(f"{amperes!r}A@{volts!r}V", "W") == pytest.approx(amperes * volts, rel=1e-15, abs=1e-300)


REFUSED = [
    "",
    " ",
    "W",
    "nan",
    "inf",
    "-inf",
    "-1",
    "+1",
    "4,5",
    "1_000",
    "1e999",
    "0x10",
    "٣",
    "５",
    "²",
    "1.2.3",
    "five",
]


@pytest.mark.parametrize("unit", QUANTITIES)
@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("with_suffix", [False, True])
def test_what_is_no_number_is_refused_in_one_line(unit, text, with_suffix):
    text += next(iter(QUANTITIES[unit].factors)) if with_suffix and text.strip() else ""
    assert read(text, unit) is None
    with pytest.raises(InputError) as refused:
        parse(text, unit, name="--it", zero=True)
    assert str(refused.value).startswith("--it: ")
    assert f"allowed: {QUANTITIES[unit].words} of 0 or more such as " in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=12), st.sampled_from(list(QUANTITIES)))
def test_any_text_is_a_number_or_refused(text, unit):
    value = read(text, unit)
    assert value is None or 0 <= value < math.inf


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("5MW", "W"),
        ("5 V", "W"),
        ("5A", "W"),
        ("5V@5A", "W"),
        ("5A@5", "W"),
        ("5A@5V@5V", "W"),
        ("5M", "s"),
        ("8H", "s"),
        ("80F", "°C"),
        ("612W", "MHz"),
        ("5kB%", "share"),
    ],
)
def test_the_suffix_of_something_else_is_refused(text, unit):
    assert read(text, unit) is None


@pytest.mark.parametrize(
    ("text", "unit", "limits", "said"),
    [
        ("0W", "W", {}, "--it: 0W; allowed: watts above zero such as 4.5W, 4500mW or 5A@5V"),
        ("8", "s", {"bare": False}, "--it: 8; allowed: a time above zero such as 200ms, 90s, 30min, 8h or 90d"),
        ("150", "°C", {"below": 150.0}, "--it: 150; allowed: a temperature above zero and below 150 such as 80C"),
        ("no", "s", {"also": "; or peak"}, "30min, 8h or 90d; or peak"),
        ("5", "share", {}, "--it: 5; allowed: 5% or 0.05, since a number above 1 needs the %"),
        ("1.5", "share", {}, "--it: 1.5; allowed: 1.5% or 0.015, since a number above 1 needs the %"),
        ("150", "share", {}, "--it: 150; allowed: 150%, since a number above 1 needs the %"),
    ],
)
def test_errors_name_what_is_allowed(text, unit, limits, said):
    with pytest.raises(InputError) as refused:
        parse(text, unit, name="--it", **limits)
    assert said in str(refused.value)


def test_zero_where_it_may_be():
    assert parse("0", "W", name="--it", zero=True) == parse("0%", "share", name="--it", zero=True) == 0.0
