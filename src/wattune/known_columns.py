"""Known columns of the tables that other programs write: their headers, and the units behind numbers.

Headers are compared in the form of ``tables.plain``: lower case, with blanks for underscores and "/" for "per".
Sources: API references and exports of Electricity Maps, carbonintensity.org.uk, WattTime (v3), CarbonCast, the ENTSO-E
transparency platform, Octopus Energy, energy-charts.info, aWATTar, EIA, Optuna, Weights & Biases, MLflow and Ray
Tune.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Quantity(NamedTuple):
    """Quantity of a column.

    ``names``: our names of its column, and factors to its unit; ``headers``: headers of others, best first, likewise.
    ``unit``: pattern of a unit in a header or beside the table; ``factors``: a factor for each group of the pattern.
    ``words``: words of headers that may mean the quantity.
    """

    names: dict[str, float]
    headers: Mapping[str, float] = MappingProxyType({})
    unit: str | None = None
    factors: Mapping[str, float] = MappingProxyType({})
    words: frozenset[str] = frozenset()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUANTITIES: Final[dict[str, Quantity]] = {
    "watts": Quantity({"watts": 1.0, "milliwatts": 1e-3}, words=_words("w watt watts mw power cap limit")),
    "gco2_per_kwh": Quantity(
        {"gco2_per_kwh": 1.0, "co2_lbs_per_mwh": 0.45359237},
        {
            "carbonintensity": 1.0,  # Electricity Maps' API, with life cycle emissions
            "carbon intensity gco2eq/kwh (life cycle)": 1.0,
            "carbon intensity gco2eq/kwh (direct)": 1.0,
            "carbon intensity": 1.0,  # CarbonCast
            "intensity.forecast": 1.0,  # carbonintensity.org.uk
            "intensity.actual": 1.0,
        },
        r"(?<![a-z0-9])(?:co2(?:eq|e)? ?)?(kg|g|lbs?|t) ?(?:co2[ -]?(?:eq|e)?)?/(kwh|mwh)",
        {"kg": 1e3, "lb": 453.59237, "lbs": 453.59237, "t": 1e6, "mwh": 1e-3},
        _words("carbon co2 co2eq intensity moer emission value forecast actual"),
    ),
    "price_per_kwh": Quantity(
        {"price_per_kwh": 1.0, "price_per_mwh": 1e-3},
        {"value inc vat": 0.01, "value exc vat": 0.01},  # Octopus Energy, in pence
        r"(?<![a-z0-9])(eur|€|gbp|£|usd|\$|chf|sek|nok|dkk|pln|czk|huf|ron|aud|nzd|cad|p|pence|ct|cents?) ?/(kwh|mwh)",
        {"p": 0.01, "pence": 0.01, "ct": 0.01, "cent": 0.01, "cents": 0.01, "mwh": 1e-3},
        _words("price tariff cost value rate total"),
    ),
    "batch_size": Quantity({"batch_size": 1.0}, words=_words("batch batchsize bs")),
    "step_s": Quantity({"step_s": 1.0, "step_ms": 1e-3}, words=_words("step time elapsed duration")),
    "step_std_s": Quantity({"step_std_s": 1.0, "step_std_ms": 1e-3}),
    "power_w": Quantity({"power_w": 1.0, "power_mw": 1e-3}, words=_words("power watts watt")),
    "power_std_w": Quantity({"power_std_w": 1.0, "power_std_mw": 1e-3}),
    "power_limit_w": Quantity({"power_limit_w": 1.0, "power_limit_mw": 1e-3}),
    "clock_mhz": Quantity({"clock_mhz": 1.0}, words=_words("clock freq frequency")),
    "seed": Quantity({"seed": 1.0}, words=_words("seed number")),
    "samples_to_target": Quantity({"samples_to_target": 1.0}, words=_words("samples examples")),
    "reached": Quantity({"reached": 1.0}, {"state": 1.0, "status": 1.0, "done": 1.0}, words=_words("state status")),
    **{
        name: Quantity({name: 1.0})
        for name in (
            *("micro_batch_size", "memory_clock_mhz", "cpu_clock_mhz", "cpu_cores", "workload", "samples_budget"),
            *("target_accuracy", "target_quantile", "learning_rate_at_32"),
        )
    },
}
"""Quantity, named by its unit -> how its column may be called."""

NEVER_MEANT: Final = _words("start end epoch datetime compile verification benchmark strategy framework energy")
"""Words of headers that are another quantity than the word beside them says, such as the time of an epoch."""

TELL_NO_UNIT: Final = ("value", "price", "marketprice")
"""Headers that are a quantity if the unit beside the table is, as in WattTime's meta.units."""

PREFIXES: Final = ("params ", "user attrs ", "config.", "config/", "summary.", "params.", "metrics.")
"""Prefixes of Optuna, Weights & Biases and MLflow before a name of ours."""

FINISHED: Final = _words("finished complete completed")
UNFINISHED: Final = _words("crashed failed fail killed pruned running waiting pending preempted preempting scheduled")
"""States of a run by Optuna, Weights & Biases and MLflow."""

TIME_WORDS: Final = re.compile("time|date|hour|utc|begin|start|from|datum|von|period")
"""Parts of headers that may mean a time."""

TIMES: Final = (
    *("seconds", "time", "datetime", "point time", "timestamp", "from", "valid from", "start", "starts at", "hour"),
    "startsat",  # Tibber
    *("start time", "time start", "start timestamp", "unix seconds", "period start", "interval start", "mtu", "date"),
    "utc",
)
"""Headers of times, best first, without the zone that they may have in brackets."""

ZONES: Final = {
    **{"utc": "UTC", "gmt": "UTC"},
    **{"wet/west": "Europe/Lisbon", "cet/cest": "Europe/Brussels", "eet/eest": "Europe/Athens"},
}
"""Zone in the header of a time -> its name."""

OFFSET: Final = re.compile(r"(?:utc|gmt) ?([+-]) ?(\d[\d:.,]*)|[(\[]([+-])(\d\d:?\d\d)[)\]]")
"""Sign and digits of an offset in the header of a time, such as "time (UTC+1)"."""

UNCLEAR_ZONE: Final = re.compile("(?<![a-z])[ce]es?t(?![a-z])")
"""Zone in the header of a time that may be meant all year, or by the date."""

OFFSETS: Final = {
    **{"UTC": "+00:00", "GMT": "+00:00", "WET": "+00:00", "WEST": "+01:00"},
    **{"CET": "+01:00", "CEST": "+02:00", "EET": "+02:00", "EEST": "+03:00"},
}
"""Abbreviation behind a time -> its offset."""

NO_VALUE: Final = ("", "n/e", "n/a", "-")
"""Cells of hours whose value is not published."""
