"""Checks of a power sensor: its noise at rest, and whether it shows a load."""

from __future__ import annotations

import statistics

from wattune.devices import Device
from wattune.doctor.board_checks import Finding
from wattune.doctor.load import BusyProcess
from wattune.errors import SensorError

REST_S, LOAD_S = 3.0, 5.0
"""Time that the sensor is read for, at rest and under load."""
POLL_S = 0.1
"""Time between two readings."""
NOISE_SHARE = 0.1
"""Scatter of the readings at rest, as a share of their mean, from which other programs probably run."""
MIN_STEP_SDS = 6.0
"""Smallest step of load that counts as seen, in standard deviations of the readings at rest."""


def check_sensing(device: Device, load: BusyProcess | None) -> list[Finding]:
    """Read the sensor at rest and under a step of load."""
    busy_w: list[float] = []
    failures: list[SensorError] = []
    try:
        rest_w = _readings(device, REST_S, failures)
        if load is not None:
            load.begin()
            try:
                busy_w = _readings(device, LOAD_S, failures)
            finally:
                load.end()
    except SensorError as error:
        return [Finding("sensor", "fail", str(error), "check that the board's power sensor can be read")]
    mean_w, noise_w = statistics.fmean(rest_w), statistics.pstdev(rest_w)
    text = f"{device.sensor.rail}: {mean_w:.3f} W at rest, where readings scatter by {1e3 * noise_w:.3g} mW"
    others = "end other programs on the board: their power would be measured as well"
    if failures:
        total = len(failures) + len(rest_w) + len(busy_w)
        text = f"{text}, but {len(failures)} of {total} readings failed: {failures[-1]}"
        fix = "look for another program that uses the same bus, and check the kernel log (dmesg)"
        findings = [Finding("sensor", "warn", text, fix)]
    elif noise_w > NOISE_SHARE * mean_w:
        findings = [Finding("sensor", "warn", text, others)]
    else:
        findings = [Finding("sensor", "ok", text)]
    if load is not None:
        step_w = statistics.median(busy_w[len(busy_w) // 2 :]) - statistics.median(rest_w)
        text = f"{load.words}: {step_w:+.3g} W"
        if step_w > max(MIN_STEP_SDS * noise_w, 0.01 * mean_w):
            findings.append(Finding("load", "ok", text))
        else:
            fix = "end other programs on the board and try again; a sensor that does not change under load is stuck"
            findings.append(Finding("load", "warn", f"{text}, which is lost in the noise", fix))
    return findings


def _readings(device: Device, seconds: float, failures: list[SensorError]) -> list[float]:
    """Watts that the sensor reads within this time. ``failures`` gets the errors of failed readings.

    Raises: SensorError if no reading succeeded.
    """
    powers_w: list[float] = []
    end_s = device.now_s() + seconds
    while device.now_s() < end_s:
        try:
            powers_w.append(device.power_w())
        except SensorError as error:
            failures.append(error)
        device.wait(POLL_S)
    if not powers_w and failures:
        raise failures[-1]
    return powers_w
