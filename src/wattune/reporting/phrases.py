"""Wording of figures and origins in reports: one way of writing each quantity."""

from __future__ import annotations

from collections.abc import Mapping

from wattune.point import Knobs, OperatingPoint
from wattune.records import (
    Baseline,
    ComparisonRow,
    ProfileCell,
)

FIXED_CLOCK_RULE = "largest batch, fixed clock"
"""The baseline of the method's paper, which headlines compare with, as planning and comparison name it."""


OWN_CLOCK_RULE = "best batch, then clock"
"""The strongest rule that needs no joint choice, which headlines compare with as well."""


OWN_RULE = "wattune"
"""The name of wattune's own pick in a comparison."""


FIXED_CLOCK = "the largest batch at the fixed clock"


OWN_CLOCK = "the best batch at its own clock"
"""The same rules in a sentence."""


UNKNOWN = "origin unknown"


def seconds(value: float | None) -> str:
    """Write a duration in ms, s, min or h; "-" for None."""
    if value is None:
        return "-"
    if 0 < value < 0.0995:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
    if value < 7200:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(value / 60), 60)
    return f"{hours} h {rest:02d} min"


def joules(value: float | None) -> str:
    """Write an energy in J, kJ or MJ; "-" for None."""
    if value is None:
        return "-"
    for factor, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if value >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value)} J"


def watts(value: float | None) -> str:
    """Write a power in W, finer than a sensor's usual resolution; "-" for None."""
    return "-" if value is None else f"{value:.2f} W" if value < 100 else f"{value:.1f} W"


def memory(value_bytes: float | None) -> str:
    """Write an amount of memory in KB, MB or GB; "-" for None."""
    if value_bytes is None:
        return "-"
    factor, unit = (1e9, "GB") if value_bytes >= 999.5e6 else (1e6, "MB") if value_bytes >= 999.5e3 else (1e3, "KB")
    return f"{_digits(value_bytes / factor)} {unit}"


def times(value: float | None) -> str:
    """Write a ratio such as a speed-up; "-" for None."""
    return "-" if value is None else f"{value:.2f}x"


def count(value: float | None) -> str:
    """Write a number of samples; "-" for None."""
    return "-" if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """Write a fraction as per cent; "-" for None."""
    if share is None:
        return "-"
    return f"{share * 100:.0f} %" if abs(share) >= 0.0995 or share == 0 else f"{share * 100:.2g} %"


def multiple(share: float) -> str:
    """Write a share before "the time of": "12 % of" or, from 2 on, "14.6 times"."""
    return f"{percent(share)} of" if share < 2 else f"{share:.1f} times"


def cap(value: float | None) -> str:
    """Write a power cap as it was set."""
    return "no cap" if value is None else f"{value:g} W"


def under(cap_w: float | None, supply_cap_w: float | None = None) -> str:
    """Write a power cap in a sentence; ``supply_cap_w``: the cap if it was set at the supply."""
    if supply_cap_w is not None:
        return f"under a cap of {cap(supply_cap_w)} at the supply"
    return "without a power cap" if cap_w is None else f"under a cap of {cap(cap_w)}"


def carbon(grams: float) -> str:
    """Write an amount of CO2."""
    for factor, unit in ((1e3, "kg"), (1.0, "g")):
        if grams >= factor:
            return f"{_digits(grams / factor)} {unit} of CO2"
    return f"{_digits(grams * 1000)} mg of CO2"


def capped_power(window_s: float | None) -> str:
    """Name of the power that a cap with this window is compared with."""
    return "peak power" if window_s is None else f"mean power over {seconds(window_s)}"


def strain(cell: ProfileCell) -> str:
    """Throttling, over-current events and swapping during a measured cell; empty without any."""
    parts = []
    if cell.throttled:
        parts.append(f"throttled by {', '.join(cell.throttled)}")
    if cell.over_current:
        parts.append(f"{cell.over_current} over-current {'events' if cell.over_current > 1 else 'event'}")
    if cell.swapped_bytes:
        parts.append(f"{cell.swapped_bytes / 2**20:.1f} MiB swapped")
    return ", ".join(parts)


def remark(row: ComparisonRow | Baseline) -> str:
    """The reason for a rule without a speed-up; empty if it has one."""
    if row.speed_up is not None:
        return ""
    if row.why_not is None and isinstance(row, ComparisonRow) and row.censored:
        return f"{row.censored} of {row.runs} runs did not reach the target"
    return row.why_not or ""


def batch(point: OperatingPoint) -> str:
    """The batch size, and the micro-batch size if it is another: "32" or "32 in 8s"."""
    size, micro = point.shape
    return f"{size}" if micro == size else f"{size} in {micro}s"


def setting(point: OperatingPoint) -> str:
    """The knobs of a point, such as "768 MHz"; "-" if none is set."""
    return str(point.knobs) or "-"


KNOBS = {
    "clock_mhz": "clock (MHz)",
    "memory_clock_mhz": "memory clock (MHz)",
    "cpu_clock_mhz": "CPU clock (MHz)",
    "cpu_cores": "CPU cores",
    "power_limit_w": "power limit (W)",
}
"""Title of each knob's axis."""


def knob_titles(knobs: Knobs) -> str:
    """The title of an axis over these knobs: "clock (MHz)", "clock (MHz) / memory clock (MHz)"."""
    return " / ".join(KNOBS[name] for name in knobs)


def knob_values(knobs: Knobs) -> str:
    """Label on an axis of settings: "768", "768 / 1600"."""
    return " / ".join(f"{value:g}" for value in knobs.values())


def origin(**kinds: str | None) -> str:
    """Write the origin of figures, so that nothing simulated passes for measured.

    One word if all parts agree ("simulated"), otherwise part by part: "step times simulated, samples measured". The
    keywords name the parts, with underscores for spaces; their values are ``Provenance.kind``.
    """
    distinct = set(kinds.values())
    if len(distinct) <= 1:
        return next(iter(distinct), None) or UNKNOWN
    return ", ".join(f"{part.replace('_', ' ')} {kind or 'of unknown origin'}" for part, kind in kinds.items())


def grouped(kinds: Mapping[str, str | None]) -> str:
    """Write the origin of records: "simulated: profile, plan; measured: efficiency", or one word if all agree."""
    groups: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(kind or UNKNOWN, []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items())


def gain(speed_up: float) -> str:
    """Write a speed-up: "1.83 times as fast as" or "as fast as"."""
    if abs(speed_up - 1) < 0.005:
        return "as fast as"
    return f"{speed_up:.2f} times as fast as"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def metric(name: str | None) -> str:
    """Write the metric as the title of an axis; "metric" for None."""
    return "metric" if name is None else name.replace("_", " ")
