"""How a power sensor behaves: how often it is fresh, how much it scatters, and how late it shows a change of load."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass

from wattune.devices import Device
from wattune.doctor.finding import Finding
from wattune.doctor.load import Load
from wattune.errors import SensorError
from wattune.reporting import words

REST_S, LOAD_S = 3.0, 5.0
"""How long the sensor is watched at rest and under load."""
POLL_S = 0.004
"""Time between two readings; faster than any sensor that is supported is fresh."""
SLOW_READ_S = 0.005
"""A reading that takes longer than this costs a training that is sampled ten times a second half a per cent or more."""
STEPS_OF_NOISE = 6.0
"""A step of load is seen where it is so many standard deviations of a reading at rest."""


@dataclass(frozen=True)
class Trace:
    """Readings in watts at seconds of the device's time, how long a reading took, and how many failed."""

    times_s: tuple[float, ...]
    powers_w: tuple[float, ...]
    reading_s: float
    failed: tuple[str, ...] = ()

    @property
    def period_s(self) -> float | None:
        """Median time between two changes of the value; None where it changed less than three times."""
        changed = [t for t, a, b in zip(self.times_s[1:], self.powers_w, self.powers_w[1:], strict=False) if a != b]
        gaps = [after - before for before, after in itertools.pairwise(changed)]
        return statistics.median(gaps) if len(gaps) >= 2 else None

    @property
    def resolution_w(self) -> float | None:
        """Smallest difference between two values that were read; None where all were the same."""
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
class Answer:
    """What a sensor showed of a step of load: its height, and when a tenth, half and nine tenths of it were seen."""

    step_w: float
    tenth_s: float
    half_s: float
    most_s: float

    @property
    def window_s(self) -> float:
        """Time over which the sensor seems to average: a mean over a window shows a step as a straight rise."""
        return (self.most_s - self.tenth_s) / 0.8


def watch(device: Device, seconds: float, poll_s: float = POLL_S) -> Trace:
    """Read the sensor every ``poll_s`` for so long. Raises: SensorError where no reading succeeded."""
    times, powers, failed, spent_s = [], [], [], 0.0
    until_s = device.now_s() + seconds
    while device.now_s() < until_s:
        before = time.perf_counter()
        try:
            powers.append(device.power_w())
            times.append(device.now_s())
        except SensorError as error:
            failed.append(str(error))
        spent_s += time.perf_counter() - before
        device.wait(poll_s)
    if not powers:
        raise SensorError(failed[-1] if failed else f"{device.name}: no reading in {seconds:g} s")
    return Trace(tuple(times), tuple(powers), spent_s / (len(powers) + len(failed)), tuple(failed))


def answer(rest: Trace, busy: Trace, begun_s: float) -> Answer | None:
    """How the sensor showed a load that began at ``begun_s``; None where the step is lost in the noise."""
    before_w = statistics.median(rest.powers_w)
    after_w = statistics.median(busy.powers_w[len(busy.powers_w) // 2 :])
    step_w = after_w - before_w
    if step_w <= STEPS_OF_NOISE * rest.noise_w or step_w <= 2 * (rest.resolution_w or 0.0) or step_w < 0.01 * before_w:
        return None

    def reached_s(share: float) -> float:
        level_w = before_w + share * step_w
        return next(t for t, p in zip(busy.times_s, busy.powers_w, strict=True) if p >= level_w) - begun_s

    return Answer(step_w, reached_s(0.1), reached_s(0.5), reached_s(0.9))


def check_sensing(device: Device, load: Load | None) -> tuple[list[Finding], dict[str, float]]:
    """The sensor at rest and under a step of load: findings, and the figures that they are of."""
    try:
        rest = watch(device, REST_S)
        begun_s = device.now_s()
        if load is not None:
            load.begin()
            try:
                busy: Trace | None = watch(device, LOAD_S)
            finally:
                load.end()
        else:
            busy = None
    except SensorError as error:
        return [Finding("sensor", "fail", str(error), "see that the board's power sensor can be read")], {}
    found = [_sensor(device, rest), _rate(device, rest, busy), _noise(rest)]
    figures = {"rest_w": rest.mean_w, "noise_w": rest.noise_w, "reading_s": rest.reading_s}
    if busy is not None and load is not None:
        seen = answer(rest, busy, begun_s)
        found.append(_lag(device, rest, load, seen, _period_s(rest, busy)))
        figures["busy_w"] = busy.mean_w
        if seen is not None:
            figures |= {"step_w": seen.step_w, "tenth_s": seen.tenth_s, "half_s": seen.half_s, "most_s": seen.most_s}
    for name, value in (("period_s", _period_s(rest, busy)), ("resolution_w", rest.resolution_w)):
        if value is not None:
            figures[name] = value
    return found, {name: round(value, 6) for name, value in figures.items()}


def _sensor(device: Device, rest: Trace) -> Finding:
    text = f"{device.sensor.rail}: {rest.mean_w:.3f} W at rest"
    if rest.failed:
        total = len(rest.failed) + len(rest.powers_w)
        return Finding(
            "sensor",
            "warn",
            f"{text}, but {len(rest.failed)} of {total} readings failed: {rest.failed[-1]}",
            "look for another program that uses the same bus, and at the kernel's log (dmesg)",
        )
    return Finding("sensor", "ok", text)


def _period_s(rest: Trace, busy: Trace | None) -> float | None:
    # At rest a value may stay the same over several refreshes; under load it changes with each.
    periods = [t.period_s for t in (rest, busy) if t is not None and t.period_s is not None]
    return min(periods, default=None)


def _rate(device: Device, rest: Trace, busy: Trace | None) -> Finding:
    took = f"a reading takes {1e3 * rest.reading_s:.2g} ms"
    period_s = _period_s(rest, busy)
    if period_s is None:
        return Finding(
            "rate",
            "warn",
            f"{took}; the value hardly ever changed, so how often it is fresh is not known",
            "run this again while the board is busy; a sensor that shows the same under load is stuck",
        )
    text = f"{took}; a fresh value every {words.seconds(period_s)} or more often"
    if rest.reading_s > SLOW_READ_S:
        return Finding(
            "rate", "warn", text, "readings this slow cost training time; something else may use the same bus"
        )
    if period_s > 1.5 * max(device.sensor.period_s, POLL_S) + 2 * POLL_S and busy is not None:
        return Finding(
            "rate",
            "warn",
            f"{text}, less often than the {1e3 * device.sensor.period_s:g} ms that wattune takes it for",
            "send a record (wattune doctor --submit FILE), so that the next version knows",
        )
    return Finding("rate", "ok", text)


def _noise(rest: Trace) -> Finding:
    steps = "" if rest.resolution_w is None else f", in steps of {1e3 * rest.resolution_w:.3g} mW"
    text = f"readings at rest scatter by {1e3 * rest.noise_w:.3g} mW{steps}"
    if rest.noise_w > 0.1 * rest.mean_w:
        return Finding("noise", "warn", text, "end what else runs on the board: figures would not be of the training")
    return Finding("noise", "ok", text)


def _lag(device: Device, rest: Trace, load: Load, seen: Answer | None, period_s: float | None) -> Finding:
    if seen is None:
        return Finding(
            "lag",
            "warn",
            f"{load.words} made no step above the noise of {1e3 * rest.noise_w:.3g} mW, so how late readings are is "
            "not known",
            "end what else runs on the board and try again; a sensor that shows the same under load is stuck",
        )
    assumed_s = device.sensor.settle_s
    text = (
        f"{load.words}: a step of {seen.step_w:.3g} W, half of it seen after {seen.half_s:.2f} s and nine tenths after "
        f"{seen.most_s:.2f} s; peaks shorter than about {max(seen.window_s, period_s or POLL_S):.2g} s may be missed"
    )
    # The load itself needs a moment: processes wake up, governors raise clocks.
    if seen.most_s > 1.5 * assumed_s + 0.5:
        return Finding(
            "lag",
            "warn",
            f"{text}; wattune takes readings for settled after {assumed_s:.2g} s",
            "send a record (wattune doctor --submit FILE), so that the next version knows",
        )
    return Finding("lag", "ok", text)
