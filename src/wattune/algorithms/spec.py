"""An algorithm with its options in one text: ``async-fgd:modules=4,perturb=activities``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wattune.errors import InputError


class Option(NamedTuple):
    """How an option's text becomes a value (ValueError where it does not), and what is allowed, in words."""

    parse: Callable[[str], Any]
    allowed: str


def whole(least: int, most: int = 2**31) -> Option:
    """An option that is a whole number."""

    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return Option(parse, f"{least} and up" if most == 2**31 else f"{least} to {most}")


def number(above: float, allowed: str) -> Option:
    """An option that is a finite number above ``above``."""

    def parse(text: str) -> float:
        value = float(text)
        if not above < value < float("inf"):
            raise ValueError(text)
        return value

    return Option(parse, allowed)


def one_of(*names: str) -> Option:
    """An option that is one of these words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return Option(parse, ", ".join(names))


def name_of(spec: str) -> str:
    """The algorithm's name without its options."""
    return spec.partition(":")[0]


def options_of(spec: str, known: Mapping[str, Option]) -> dict[str, Any]:
    """The options of a spec by name. Raises: InputError for one that is not known, not allowed or there twice."""
    name, found, rest = spec.partition(":")
    values: dict[str, Any] = {}
    for part in rest.split(",") if found else ():
        key, equals, text = part.strip().partition("=")
        if key not in known or not equals or key in values:
            allowed = ", ".join(f"{k}=({o.allowed})" for k, o in sorted(known.items())) or "none"
            raise InputError(f"option of the algorithm {name}", value=part, allowed=f"once each: {allowed}")
        try:
            values[key] = known[key].parse(text.strip())
        except ValueError as error:
            raise InputError(f"{key} of the algorithm {name}", value=text, allowed=known[key].allowed) from error
    return values


def written(name: str, values: Mapping[str, Any]) -> str:
    """The one text for a name and options, sorted: what records say."""
    return name + (":" if values else "") + ",".join(f"{k}={v}" for k, v in sorted(values.items()))
