"""The position of the sun against published values, and the clear sky."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.budgets.clear_sky import Place, clear_sky_share, sun_elevation
from wattune.errors import InputError

BERLIN = Place(52.52, 13.405)


def at(*fields):
    return datetime(*fields, tzinfo=timezone.utc)


def test_the_worked_example_of_the_solar_position_algorithm():
    # Reda, Andreas, NREL/TP-560-34302, table A5.1: zenith 50.11162 degrees, with 0.0163 degrees of refraction.
    place = Place(39.742476, -105.1786)
    elevation = math.degrees(sun_elevation(place, at(2003, 10, 17, 19, 30, 30)))
    assert elevation == pytest.approx(90 - 50.11162 - 0.0163, abs=0.03)


@pytest.mark.parametrize("moment", [at(2022, 6, 21, 2, 43), at(2022, 6, 21, 19, 33)])
def test_sunrise_and_sunset_of_a_calendar(moment):
    # Berlin, 21 June 2022; at both the centre of the sun is 0.83 degrees below the horizon. Two minutes are 0.25.
    assert math.degrees(sun_elevation(BERLIN, moment)) == pytest.approx(-0.83, abs=0.25)


def test_the_sun_at_noon_of_the_solstices():
    for month, declination in ((6, 23.44), (12, -23.44)):
        heights = [
            math.degrees(sun_elevation(BERLIN, at(2022, month, 21) + timedelta(minutes=minute)))
            for minute in range(1440)
        ]
        assert max(heights) == pytest.approx(90 - BERLIN.latitude + declination, abs=0.05)


def test_the_clear_sky_of_haurwitz():
    assert 1098 * math.exp(-0.057) == pytest.approx(1037.2, abs=0.1)
    noon = max(clear_sky_share(Place(23.44, 0.0), at(2022, 6, 21, 12) + timedelta(minutes=m)) for m in range(-30, 30))
    assert noon == pytest.approx(1.0372, abs=1e-3)
    assert clear_sky_share(BERLIN, at(2022, 6, 21, 0)) == 0


@given(st.floats(-90, 90), st.floats(-180, 180), st.integers(0, 2 * 365 * 1440))
def test_a_share_is_never_negative_and_never_above_the_zenith(latitude, longitude, minute):
    share = clear_sky_share(Place(latitude, longitude), at(2022, 1, 1) + timedelta(minutes=minute))
    assert 0 <= share <= 1.0373


@pytest.mark.parametrize("text", ["", "52", "52,x", "91,0", "0,181", "1,2,3", "nan,0"])
def test_what_is_not_a_place(text):
    with pytest.raises(InputError, match=r"--at: .*allowed: degrees north and east"):
        Place.parse(text)


def test_a_place_is_read_as_it_is_written():
    assert Place.parse(str(BERLIN)) == BERLIN
