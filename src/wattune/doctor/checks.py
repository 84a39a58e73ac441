"""What an open device says of itself: its power, clock, mode and how it is. None of these changes anything."""

from __future__ import annotations

from wattune.devices import Device
from wattune.doctor.finding import Finding
from wattune.errors import WattuneError

HOT_C = 85.0
"""A board as hot as this before any work will be throttled under load."""


def check_device(device: Device) -> list[Finding]:
    """What it is, and each thing that is not as it should be."""
    origin = "" if device.kind == "measured" else f", {device.kind}"
    problems = [Finding("device", "warn", problem) for problem in device.problems]
    return [Finding("device", "ok", f"{device.name}{origin}"), *problems]


def check_rails(device: Device) -> Finding:
    """One reading: what is taken for the whole, and every rail."""
    sensor = device.sensor
    try:
        power_w, rails_w = device.power_w(), device.rails_w()
    except WattuneError as error:
        return Finding("rails", "fail", str(error), "see that the sensor can be read")
    text = f"{sensor.rail} {power_w:.3f} W" + (f", {sensor.covers}" if sensor.covers else "")
    others = ", ".join(f"{name} {value_w:.3f} W" for name, value_w in rails_w.items() if name != sensor.rail)
    return Finding("rails", "ok", f"{text}; beside it {others}" if others else text)


def check_clock(device: Device) -> Finding:
    """What can be set."""
    if device.actuator is None:
        return Finding("clock", "warn", "no clock can be set: profiling and planning go over batch sizes alone")
    unit = "W" if device.actuator == "power_limit_w" else "MHz"
    text = f"{len(device.settings)} settings from {device.settings[0]:g} to {device.settings[-1]:g} {unit}"
    return Finding("clock", "ok", text)


def check_mode(device: Device) -> Finding:
    """The board's mode, which is part of what a profile belongs to."""
    return Finding("mode", "ok", device.mode or "the board tells none")


def check_conditions(device: Device) -> Finding:
    """Heat, throttling and over-current."""
    now = device.conditions()
    parts = [] if now.temperature_c is None else [f"hottest zone {now.temperature_c:.1f} °C"]
    if now.over_current:
        parts.append(f"{now.over_current} over-current events since the board was started")
    text = ", ".join(parts) or "the board tells nothing of heat"
    if now.throttled:
        by = ", ".join(now.throttled)
        return Finding("conditions", "fail", f"held back now by {by}; {text}", "cool the board and try again")
    if now.over_current:
        return Finding("conditions", "warn", text, "use a stronger power supply: under load the board may reset")
    if now.temperature_c is not None and now.temperature_c > HOT_C:
        return Finding("conditions", "warn", text, "cool the board: under load it will be held back")
    return Finding("conditions", "ok", text)


def check_supply(device: Device) -> Finding:
    """Whether a cap at the supply's terminals can be turned into one at the sensor."""
    if device.supply is None:
        return Finding(
            "supply",
            "ok",
            "what lies between supply and sensor is not known: caps are those of the sensor (@module)",
            "for caps at the supply's terminals: wattune doctor --calibrate external:...",
        )
    return Finding(
        "supply",
        "ok",
        f"beside the module {device.supply.other_w:.3g} W, converter efficiency {device.supply.efficiency:.1%}",
    )
