"""Checks of a power sensor: its update period, its noise, and its delay after a change of load."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import asdict, dataclass

from wattune.devices import Device
from wattune.doctor.board_checks import Finding
from wattune.doctor.load import Load
from wattune.errors import SensorError
from wattune.reporting import phrases

REST_S, LOAD_S = 3.0, 5.0
"""Time that the sensor is read for, at rest and under load."""
POLL_S = 0.004
"""Time between two readings; shorter than the update period of any supported sensor."""
SLOW_READ_S = 0.005
"""At 10 Hz, a reading that takes longer than this costs at least 5 % of the time of one core."""
MIN_STEP_SDS = 6.0
"""Smallest step of load that counts as seen, in standard deviations of the readings at rest."""


@dataclass(frozen=True)
class Trace:
    """Readings in watts at seconds of the device's time, the mean time of a reading, and the errors of failed ones."""

    times_s: tuple[float, ...]
    powers_w: tuple[float, ...]
    reading_s: float
    failed: tuple[str, ...] = ()

    @property
    def period_s(self) -> float | None:
        """Median time between two changes of the value; None if it changed less than three times."""
        changes = [t for t, a, b in zip(self.times_s[1:], self.powers_w, self.powers_w[1:], strict=False) if a != b]
        gaps = [after - before for before, after in itertools.pairwise(changes)]
        return statistics.median(gaps) if len(gaps) >= 2 else None

    @property
    def resolution_w(self) -> float | None:
        """Smallest difference between two values that were read; None if all were the same."""
        values = sorted(set(self.powers_w))
        return min((b - a for a, b in itertools.pairwise(values)), default=None)

    @property
    def mean_w(self) -> float:
        """Mean of the readings."""
        return statistics.fmean(self.powers_w)

    @property
    def noise_w(self) -> float:
        """Standard deviation of the readings."""
        return statistics.pstdev(self.powers_w)


@dataclass(frozen=True)
class StepResponse:
    """Response of a sensor to a step of load: the step's height in watts, and the seconds to 10, 50 and 90 % of it."""

    step_w: float
    tenth_s: float
    half_s: float
    most_s: float

    @property
    def window_s(self) -> float:
        """Estimated averaging window: a mean over a window turns a step into a linear ramp."""
        return (self.most_s - self.tenth_s) / 0.8


def record_trace(device: Device, seconds: float, poll_s: float = POLL_S) -> Trace:
    """Read the sensor every ``poll_s`` seconds for ``seconds``. Raises: SensorError if no reading succeeded."""
    times, powers, failures, spent_s = [], [], [], 0.0
    end_s = device.now_s() + seconds
    while device.now_s() < end_s:
        before = time.perf_counter()
        try:
            powers.append(device.power_w())
            times.append(device.now_s())
        except SensorError as error:
            failures.append(str(error))
        spent_s += time.perf_counter() - before
        device.wait(poll_s)
    if not powers:
        raise SensorError(failures[-1] if failures else f"{device.name}: no reading in {seconds:g} s")
    return Trace(tuple(times), tuple(powers), spent_s / (len(powers) + len(failures)), tuple(failures))


def step_response(rest: Trace, busy: Trace, begin_s: float) -> StepResponse | None:
    """The sensor's response to a load that began at ``begin_s``; None if the step is lost in the noise."""
    before_w = statistics.median(rest.powers_w)
    after_w = statistics.median(busy.powers_w[len(busy.powers_w) // 2 :])
    step_w = after_w - before_w
    if step_w <= MIN_STEP_SDS * rest.noise_w or step_w <= 2 * (rest.resolution_w or 0.0) or step_w < 0.01 * before_w:
        return None

    def delay_s(share: float) -> float:
        level_w = before_w + share * step_w
        return next(t for t, p in zip(busy.times_s, busy.powers_w, strict=True) if p >= level_w) - begin_s

    return StepResponse(step_w, delay_s(0.1), delay_s(0.5), delay_s(0.9))


def check_sensing(device: Device, load: Load | None) -> tuple[list[Finding], dict[str, float]]:
    """Check the sensor at rest and under a step of load; return the findings and the figures behind them."""
    try:
        rest = record_trace(device, REST_S)
        begin_s = device.now_s()
        if load is not None:
            load.begin()
            try:
                busy: Trace | None = record_trace(device, LOAD_S)
            finally:
                load.end()
        else:
            busy = None
    except SensorError as error:
        return [Finding("sensor", "fail", str(error), "check that the board's power sensor can be read")], {}
    findings = [_sensor(device, rest), _rate(device, rest, busy), _noise(rest)]
    figures = {"rest_w": rest.mean_w, "noise_w": rest.noise_w, "reading_s": rest.reading_s}
    if busy is not None and load is not None:
        response = step_response(rest, busy, begin_s)
        findings.append(_lag(device, rest, load, response, _period_s(rest, busy)))
        figures["busy_w"] = busy.mean_w
        if response is not None:
            figures |= asdict(response)
    for name, value in (("period_s", _period_s(rest, busy)), ("resolution_w", rest.resolution_w)):
        if value is not None:
            figures[name] = value
    return findings, {name: round(value, 6) for name, value in figures.items()}


def _sensor(device: Device, rest: Trace) -> Finding:
    text = f"{device.sensor.rail}: {rest.mean_w:.3f} W at rest"
    if rest.failed:
        total = len(rest.failed) + len(rest.powers_w)
        return Finding(
            "sensor",
            "warn",
            f"{text}, but {len(rest.failed)} of {total} readings failed: {rest.failed[-1]}",
            "look for another program that uses the same bus, and check the kernel log (dmesg)",
        )
    return Finding("sensor", "ok", text)


def _period_s(rest: Trace, busy: Trace | None) -> float | None:
    # At rest a value may stay the same over several updates; under load it changes with each.
    periods = [t.period_s for t in (rest, busy) if t is not None and t.period_s is not None]
    return min(periods, default=None)


def _rate(device: Device, rest: Trace, busy: Trace | None) -> Finding:
    cost = f"a reading takes {1e3 * rest.reading_s:.2g} ms"
    period_s = _period_s(rest, busy)
    if period_s is None:
        return Finding(
            "rate",
            "warn",
            f"{cost}; the value hardly ever changed, so its update period is unknown",
            "run this again while the board is busy; a sensor that does not change under load is stuck",
        )
    text = f"{cost}; a new value at least every {phrases.seconds(period_s)}"
    if rest.reading_s > SLOW_READ_S:
        return Finding(
            "rate", "warn", text, "slow readings cost training time; another program may be using the same bus"
        )
    if period_s > 1.5 * max(device.sensor.period_s, POLL_S) + 2 * POLL_S and busy is not None:
        return Finding(
            "rate",
            "warn",
            f"{text}, less often than the {1e3 * device.sensor.period_s:g} ms that wattune assumes",
            "share a board record (wattune doctor --submit FILE), so that the next version knows",
        )
    return Finding("rate", "ok", text)


def _noise(rest: Trace) -> Finding:
    steps = "" if rest.resolution_w is None else f", in steps of {1e3 * rest.resolution_w:.3g} mW"
    text = f"readings at rest scatter by {1e3 * rest.noise_w:.3g} mW{steps}"
    if rest.noise_w > 0.1 * rest.mean_w:
        return Finding("noise", "warn", text, "end other programs on the board: their power would be measured as well")
    return Finding("noise", "ok", text)


def _lag(device: Device, rest: Trace, load: Load, response: StepResponse | None, period_s: float | None) -> Finding:
    if response is None:
        return Finding(
            "lag",
            "warn",
            f"{load.words}: no step above the noise of {1e3 * rest.noise_w:.3g} mW, so the sensor's delay is unknown",
            "end other programs on the board and try again; a sensor that does not change under load is stuck",
        )
    assumed_s = device.sensor.settle_s
    text = (
        f"{load.words}: a step of {response.step_w:.3g} W, 50% of it after {response.half_s:.2f} s and 90% after "
        f"{response.most_s:.2f} s; peaks shorter than about {max(response.window_s, period_s or POLL_S):.2g} s may be "
        "missed"
    )
    # The load itself needs a moment: processes wake up, clock governors raise clocks.
    if response.most_s > 1.5 * assumed_s + 0.5:
        return Finding(
            "lag",
            "warn",
            f"{text}; wattune assumes that readings settle within {assumed_s:.2g} s",
            "share a board record (wattune doctor --submit FILE), so that the next version knows",
        )
    return Finding("lag", "ok", text)
