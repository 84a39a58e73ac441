"""The spec of an algorithm in one text, ``async-fgd@2:modules=4,perturb=activities``: name, revision and options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from wattune.errors import InputError


class SpecOption(NamedTuple):
    """The parser of an option (it raises ValueError), and a description of the allowed values."""

    parse: Callable[[str], Any]
    allowed: str


def whole(least: int, most: int = 2**31) -> SpecOption:
    """An option that is a whole number."""
    return SpecOption(partial(_parse, int, least, most), f"{least} or more" if most == 2**31 else f"{least} to {most}")


def number(least: float, allowed: str, *, most: float = sys.float_info.max) -> SpecOption:
    """An option that is a number from ``least`` to ``most``."""
    return SpecOption(partial(_parse, float, least, most), allowed)


def _parse(kind: type[float], least: float, most: float, text: str) -> float:
    value = kind(text)
    if not least <= value <= most:
        raise ValueError(text)
    return value


def one_of(*names: str) -> SpecOption:
    """An option that is one of these words."""
    return SpecOption(lambda text: names[names.index(text)], ", ".join(names))


def _ascending(text: str) -> str:
    places = [int(place) for place in text.split("/")]
    if places[0] < 1 or places != sorted(set(places)):
        raise ValueError(text)
    return "/".join(map(str, places))


def part_numbers(of: str) -> SpecOption:
    """An option that names parts of the model by their numbers from 1. ``of``: what they are to it."""
    return SpecOption(_ascending, f"numbers of the parts that {of}, ascending, as in 3/6/10")


def parse_options(spec: str, options: Mapping[str, SpecOption]) -> dict[str, Any]:
    """Parse the options of a spec by name. Raises: InputError for an unknown, invalid or repeated option."""
    name, colon, rest = spec.partition(":")
    values: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        key, equals, text = part.strip().partition("=")
        if key not in options or not equals or key in values:
            allowed = ", ".join(f"{k}=({o.allowed})" for k, o in sorted(options.items())) or "none"
            raise InputError(f"option of the algorithm {name}", value=part, allowed=f"once each: {allowed}")
        try:
            values[key] = options[key].parse(text.strip())
        except ValueError as error:
            raise InputError(f"{key} of the algorithm {name}", value=text, allowed=options[key].allowed) from error
    return values


def format_spec(name: str, values: Mapping[str, Any]) -> str:
    """Write a name and options in canonical form, sorted, as in records."""
    return name + (":" if values else "") + ",".join(f"{k}={v}" for k, v in sorted(values.items()))
