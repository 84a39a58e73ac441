"""Checks of an open device: power, clock, mode, temperature and supply. None of these changes anything."""

from __future__ import annotations

from wattune.devices import Device
from wattune.doctor.finding import Finding
from wattune.errors import WattuneError
from wattune.point import knob_text

HOT_C = 85.0
"""A board that is hotter than this at rest will be throttled under load."""


def check_device(device: Device) -> list[Finding]:
    """Name the device, and list the problems that it reports."""
    origin = "" if device.kind == "measured" else f", {device.kind}"
    problems = [Finding("device", "warn", problem) for problem in device.problems]
    return [Finding("device", "ok", f"{device.name}{origin}"), *problems]


def check_rails(device: Device) -> Finding:
    """Read the power sensor once: the rail that counts as the device's power, and every other rail."""
    sensor = device.sensor
    try:
        power_w, rails_w = device.power_w(), device.rails_w()
    except WattuneError as error:
        return Finding("rails", "fail", str(error), "check that the sensor can be read")
    text = f"{sensor.rail} {power_w:.3f} W" + (f", {sensor.covers}" if sensor.covers else "")
    others = ", ".join(f"{name} {value_w:.3f} W" for name, value_w in rails_w.items() if name != sensor.rail)
    return Finding("rails", "ok", f"{text}; other rails: {others}" if others else text)


def check_clock(device: Device) -> Finding:
    """Check which clocks or power limits can be set."""
    if not device.knobs:
        return Finding("clock", "warn", "no clock can be set: profiling and planning cover batch sizes only")
    ranges = (
        f"{len(knob.values)} settings from {knob.values[0]:g} to {knob_text(knob.name, knob.values[-1])}"
        for knob in device.knobs
    )
    return Finding("clock", "ok", "; ".join(ranges))


def check_mode(device: Device) -> Finding:
    """Report the board's power mode, which is part of a profile's key."""
    return Finding("mode", "ok", device.mode or "the board reports no power mode")


def check_conditions(device: Device) -> Finding:
    """Check temperature, throttling and over-current events."""
    now = device.conditions()
    parts = [] if now.temperature_c is None else [f"hottest zone {now.temperature_c:.1f} °C"]
    if now.over_current:
        parts.append(f"{now.over_current} over-current events since the board was started")
    text = ", ".join(parts) or "the board reports no temperature"
    if now.throttled:
        by = ", ".join(now.throttled)
        return Finding("conditions", "fail", f"throttled now by {by}; {text}", "cool the board and try again")
    if now.over_current:
        return Finding("conditions", "warn", text, "use a stronger power supply: the board may reset under load")
    if now.temperature_c is not None and now.temperature_c > HOT_C:
        return Finding("conditions", "warn", text, "cool the board: it will be throttled under load")
    return Finding("conditions", "ok", text)


def check_supply(device: Device) -> Finding:
    """Check if a cap at the supply's terminals can be converted to one at the sensor."""
    if device.supply is None:
        return Finding(
            "supply",
            "ok",
            "not calibrated against the power supply: caps apply at the sensor (@module)",
            "to cap the power at the supply's terminals: wattune doctor --calibrate external:...",
        )
    return Finding(
        "supply",
        "ok",
        f"{device.supply.other_w:.3g} W beside the module, converter efficiency {device.supply.efficiency:.1%}",
    )
