"""Numbers with a unit on the command line of the agent."""

import argparse

import pytest

from wattune_agent.quantities import limit


@pytest.mark.parametrize(
    ("text", "watts", "side"),
    [
        ("10W", 10.0, "module"),
        ("10", 10.0, "module"),
        ("4500mW", 4.5, "module"),
        ("0.18kW@supply", 180.0, "supply"),
        ("5A@5V", 25.0, "module"),
        ("5 A @ 5 V", 25.0, "module"),
        ("1.5A@12V@supply", 18.0, "supply"),
        ("12W@Module", 12.0, "module"),
        ("none", None, "module"),
    ],
)
def test_a_limit_and_its_side(text, watts, side):
    assert limit(text) == (pytest.approx(watts) if watts is not None else None, side)


@pytest.mark.parametrize("text", ["5MW", "5A", "5A@5", "5V@5A", "10W@wall", "-3W", "0W", "1e400W", "", "watch:f"])
def test_what_is_no_limit_is_refused_by_its_name(text):
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        limit(text)
    assert len(str(raised.value).splitlines()) <= 1
