"""The sun on a horizontal panel under a clear sky: an upper bound of what a panel gives, known for all time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from wattune.errors import InputError

STC_W_PER_M2: Final = 1000.0
"""Irradiance under which a panel gives its rated power. Source: IEC 61215, standard test conditions."""

_J2000: Final = datetime(2000, 1, 1, 12, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Place:
    """A place on Earth in degrees: ``latitude`` north, ``longitude`` east. Raises: InputError."""

    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        for name, value, most in (("latitude", self.latitude, 90), ("longitude", self.longitude, 180)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not -most <= value <= most:
                raise InputError(name, value=value, allowed=f"degrees from -{most} to {most}")

    @classmethod
    def parse(cls, text: str, *, name: str = "--at") -> Place:
        """A place from "52.5,13.4"; ``name`` is what errors call it. Raises: InputError."""
        try:
            latitude, longitude = (float(word) for word in text.split(","))
            return cls(latitude, longitude)
        except (ValueError, InputError) as error:
            allowed = "degrees north and east, such as 52.52,13.40"
            raise InputError(name, value=text, allowed=allowed) from error

    def __str__(self) -> str:
        return f"{self.latitude!r},{self.longitude!r}"


def sun_elevation(place: Place, moment: datetime) -> float:
    """Height of the sun's centre above the horizon in radians, without refraction; right to about 0.02 degrees.

    Source: The Astronomical Almanac, "Low precision formulas for the Sun", valid from 1950 to 2050.
    """
    days = (moment - _J2000).total_seconds() / 86400
    anomaly = math.radians(357.528 + 0.9856003 * days)
    longitude = math.radians(280.460 + 0.9856474 * days + 1.915 * math.sin(anomaly) + 0.020 * math.sin(2 * anomaly))
    obliquity = math.radians(23.439 - 4e-7 * days)
    declination = math.asin(math.sin(obliquity) * math.sin(longitude))
    ascension = math.atan2(math.cos(obliquity) * math.sin(longitude), math.cos(longitude))
    sidereal = math.radians(280.46062 + 360.98564737 * days + place.longitude)
    latitude = math.radians(place.latitude)
    height = math.sin(latitude) * math.sin(declination)
    height += math.cos(latitude) * math.cos(declination) * math.cos(sidereal - ascension)
    return math.asin(max(-1.0, min(1.0, height)))


def clear_sky_share(place: Place, moment: datetime) -> float:
    """Share of its rated power that a horizontal panel gives under a clear sky, 0 at night.

    Source: B. Haurwitz, "Insolation in relation to cloudiness and cloud density", Journal of Meteorology 2 (1945), with
    the constants of Reno, Hansen and Stein, Global horizontal irradiance clear sky models, SAND2012-2389.
    """
    height = math.sin(sun_elevation(place, moment))
    if height <= 0.01:  # half a degree, below which the exponential leaves nothing
        return 0.0
    return 1098.0 * height * math.exp(-0.057 / height) / STC_W_PER_M2
