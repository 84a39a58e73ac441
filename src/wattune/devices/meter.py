"""Sample a device's power sensor while something runs: joules, mean, peak, and the time above a cap."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from typing_extensions import Self

from wattune.cap import NO_LIMIT, SensorLimit
from wattune.devices.base import Device, Sensor
from wattune.devices.cap_window import CapWindow, highest_mean
from wattune.errors import DeviceError, SensorError

GONE_AFTER_S = 2.0
"""Time without a reading after which a sensor counts as lost; until then it is read again after each failure."""

ANSWER_WITHIN_S = 1.0
"""Longest wait, in seconds of the operating system, for a reading in progress before it counts as missing: if training
kept this process busy, it may have arrived already."""

RATE_HZ = 10.0
"""Readings a second."""

TRACE_LENGTH = 2000
"""Most entries that a trace holds; beyond that it is thinned out."""


@dataclass(frozen=True)
class MeterFigures:
    """Figures of a metered stretch of time.

    ``energy_j`` is integrated over ``time_s``; mean, standard deviation and peak are those of the readings, each of
    which is the sensor's own mean over its window. ``above_cap_s``: time during which the guarded power
    (``Device.guarded_w``) was above the cap, by the cap's rule; ``readings_above_cap``: readings of ``readings`` at
    which it was. ``power_window_w``: the highest mean of the guarded power over the cap's window, or the mean over a
    shorter stretch; None without one.
    """

    time_s: float
    energy_j: float
    power_mean_w: float
    power_std_w: float
    power_peak_w: float
    above_cap_s: float
    readings: int
    readings_above_cap: int
    power_window_w: float | None = None


class Meter:
    """A context in which the device's sensor is read ``rate_hz`` times a second of the device's time.

    A reading tells the power of a while ago: the sensor averages over its window, shows the result after its lag, and
    holds it until the next refresh. On average it is ``lag + (window + period) / 2`` late, so the readings of that
    much time at the beginning belong to the time before the meter and are left out of the energy, and the last
    reading is used for that much time at the end. The energy is therefore exact except for changes of power within
    one such delay of either end.

    ``on_reading`` is called with each reading as (seconds since the meter began, watts), on virtual time at that
    instant and on real time from the sampling thread.

    A sensor that fails is read again at the next instant; meanwhile the last reading counts. After more than
    ``GONE_AFTER_S`` seconds without a reading it is lost, and ``lost`` is its last error. Then ``on_lost`` is called
    once, and the figures remain those up to that time; without ``on_lost``, the error is raised by ``figures``, and
    on leaving the context unless something else was raised there.
    """

    def __init__(
        self,
        device: Device,
        *,
        rate_hz: float = RATE_HZ,
        limit: SensorLimit = NO_LIMIT,
        on_reading: Callable[[float, float], None] | None = None,
        on_lost: Callable[[DeviceError], None] | None = None,
    ):
        sensor = device.sensor
        self._device = device
        self._period_s = 1.0 / rate_hz
        self._window = sensor_window(device.guarded_sensor, limit)
        self._on_reading = on_reading
        self._on_lost = on_lost
        self._delay_s = sensor.lag_s + (sensor.window_s + sensor.period_s) / 2
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._sampling: AbstractContextManager[None] | None = None
        self._seen_s = 0.0  # time of the last reading
        self._is_answered = False  # on_reading is handling a reading at this moment
        self._stretch = 0  # counts how often the context was entered and left
        self._missed: DeviceError | None = None  # the sensor's error since then
        self._failure: DeviceError | None = None
        self._begin_s: float | None = None
        self._end_s: float | None = None
        self._sums = _Sums()

    # -------------------------------------------------------------------------------------------------------- context

    def __enter__(self) -> Self:
        now_s = self._device.now_s()
        went_on = self._begin_s is not None and abs(now_s - self._begin_s - self._sums.elapsed_s) < 1e-6
        if not went_on:  # a new meter, or a resumed one on a device whose time began again
            self._begin_s = now_s - self._sums.elapsed_s
        self._end_s = None
        self._seen_s = self._sums.elapsed_s
        self._stretch += 1
        self._sampling = self._device.every(self._period_s, partial(self._sample, self._stretch))
        self._sampling.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        assert self._sampling is not None
        try:
            # An exception of on_reading on real time is raised here, by the base class's `every`.
            self._sampling.__exit__(kind, error, trace)
        finally:
            # Shorter than a sampling period: take a single reading. A sensor that hangs is not read again.
            if self._sums.readings == 0 and self.lost is None:
                self._sample(self._stretch)
                if self._missed is not None:
                    self._give_up(self._missed)
            with self._lock:
                self._stretch += 1
                self._end_s = self._device.now_s()
                self._sums.elapsed_s = self._end_s - self._started_s
        if kind is None and self._failure is not None and self._on_lost is None:
            raise self._failure

    # ------------------------------------------------------------------------------------------------------- figures

    def figures(self) -> MeterFigures:
        """Figures up to now; also usable while the meter runs.

        Raises: SensorError if the sensor was lost and ``on_lost`` does not handle that, or if there is no reading yet.
        """
        lost = self.lost
        with self._lock:
            sums = self._sums
            if lost is not None and (self._on_lost is None or sums.readings == 0):
                raise lost
            if sums.readings == 0:
                raise SensorError(f"{self._device.name}: no reading of {self._device.sensor.rail} yet")
            time_s = self._elapsed_s()
            # The latest reading counts until now, and for the delay at the end as well.
            energy_j = sums.energy_j + sums.last_w * _overlap(sums.last_s, time_s, self._delay_s)
            energy_j += sums.last_w * min(self._delay_s, time_s)
            above_s = sums.above_s + (max(0.0, time_s - sums.last_s) if sums.is_above else 0.0)
            return MeterFigures(
                time_s=time_s,
                energy_j=energy_j,
                power_mean_w=sums.mean_w,
                power_std_w=math.sqrt(sums.squares / sums.readings),
                power_peak_w=sums.peak_w,
                above_cap_s=above_s,
                readings=sums.readings,
                readings_above_cap=sums.readings_above,
                power_window_w=None if self._window.window_s is None else sums.window_w or self._window.mean_w,
            )

    def move_cap(self, limit_w: float | None) -> None:
        """Count the time above this limit from now on."""
        with self._lock:
            self._window.cap_w = limit_w

    @property
    def elapsed_s(self) -> float:
        """Seconds since the meter began."""
        with self._lock:
            return self._elapsed_s()

    @property
    def lost(self) -> DeviceError | None:
        """The sensor's last error if it was lost; None if it was not."""
        with self._answered:
            silent = self._is_silent() and not self._answered.wait(ANSWER_WITHIN_S)
        if silent:
            self._give_up(SensorError(f"{self._device.name}: {self._device.sensor.rail} does not answer"))
        return self._failure

    @property
    def trace(self) -> list[tuple[float, float]]:
        """Readings as (seconds, watts); of more than 2000, the highest of each group of consecutive ones."""
        with self._lock:
            return [*self._sums.trace, *([self._sums.bucket] if self._sums.bucket else [])]

    # --------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State from which a later meter continues, as JSON values; also while the meter runs."""
        with self._lock:
            if self._begin_s is not None:
                self._sums.elapsed_s = self._elapsed_s()
            sums = {**vars(self._sums), "trace": [list(e) for e in self._sums.trace]}
            return {"begin_s": self._begin_s, **sums, "window": self._window.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``; call it before entering the context, after the device has loaded its state."""
        fields = {key: value for key, value in state.items() if key not in ("begin_s", "window")}
        if "window" in state:  # not in states of before caps had one
            self._window.load_state_dict(state["window"])
        fields["trace"] = [(time_s, power_w) for time_s, power_w in state["trace"]]
        fields["bucket"] = tuple(state["bucket"]) if state["bucket"] else None
        self._sums = _Sums(**fields)
        self._begin_s = state["begin_s"]
        self._end_s = None if self._begin_s is None else self._begin_s + self._sums.elapsed_s

    # ------------------------------------------------------------------------------------------------------- sampling

    def _sample(self, stretch: int) -> None:
        if self._failure is not None:
            return
        power_w, missed = 0.0, None
        try:
            power_w = self._device.power_w()
        except DeviceError as error:
            missed = error
        with self._answered:
            if stretch != self._stretch:
                return  # it took so long that the context was left without it
            time_s, self._missed = self._elapsed_s(), missed
            if missed is None:
                self._window.add(time_s, self._device.guarded_w(power_w))
                self._sums.add(time_s, power_w, self._window, self._delay_s)
                self._seen_s = time_s
            self._answered.notify_all()
        if missed is not None:
            if time_s - self._seen_s > GONE_AFTER_S:
                self._give_up(missed)
        elif self._on_reading is not None and self._failure is None:
            self._is_answered = True
            try:
                self._on_reading(time_s, power_w)
            finally:
                self._is_answered = False

    def _is_silent(self) -> bool:
        # On real time the sampling thread may have ended, or hang in a read. (Sampling itself counts failures.)
        if self._begin_s is None or self._end_s is not None or self._failure is not None or self._is_answered:
            return False
        return self._elapsed_s() - self._seen_s > GONE_AFTER_S + self._period_s

    def _give_up(self, error: DeviceError) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        if self._on_lost is not None:
            self._on_lost(error)

    @property
    def _started_s(self) -> float:
        assert self._begin_s is not None
        return self._begin_s

    def _elapsed_s(self) -> float:
        return (self._device.now_s() if self._end_s is None else self._end_s) - self._started_s


@dataclass
class _Sums:
    """State of a meter, in plain values; ``squares``: sum of squared deviations from the mean."""

    elapsed_s: float = 0.0
    last_s: float = 0.0
    last_w: float = 0.0
    energy_j: float = 0.0
    above_s: float = 0.0
    readings: int = 0
    readings_above: int = 0
    mean_w: float = 0.0
    squares: float = 0.0
    peak_w: float = 0.0
    window_w: float = 0.0
    is_above: bool = False
    stride: int = 1
    in_bucket: int = 0
    bucket: tuple[float, float] | None = None
    trace: list[tuple[float, float]] = field(default_factory=list)

    def add(self, time_s: float, power_w: float, window: CapWindow, delay_s: float) -> None:
        """Add one reading, which ``window`` has too: it holds until the next one, the first one since the beginning."""
        held_w = self.last_w if self.readings else power_w
        self.energy_j += held_w * _overlap(self.last_s, time_s, delay_s)
        if self.is_above:
            self.above_s += time_s - self.last_s
        self.is_above = window.is_above
        if window.is_full:
            self.window_w = max(self.window_w, window.mean_w)
        self.last_s, self.last_w = time_s, power_w
        self.readings += 1
        self.readings_above += self.is_above
        self.peak_w = max(self.peak_w, power_w)
        # Welford, Technometrics 4(3), 1962.
        deviation = power_w - self.mean_w
        self.mean_w += deviation / self.readings
        self.squares += deviation * (power_w - self.mean_w)
        self._trace(time_s, power_w)

    def _trace(self, time_s: float, power_w: float) -> None:
        if self.bucket is None or power_w > self.bucket[1]:
            self.bucket = (time_s, power_w)
        self.in_bucket += 1
        if self.in_bucket < self.stride:
            return
        self.trace.append(self.bucket)
        self.bucket, self.in_bucket = None, 0
        if len(self.trace) >= TRACE_LENGTH:
            # Keep the higher one of each pair, so that no excursion disappears from the plot.
            pairs = zip(self.trace[::2], self.trace[1::2], strict=True)
            self.trace = [max(pair, key=lambda entry: entry[1]) for pair in pairs]
            self.stride *= 2


def sensor_window(sensor: Sensor, limit: SensorLimit) -> CapWindow:
    """The limit's window, for readings of this sensor."""
    return CapWindow(
        limit.limit_w,
        limit.window_s,
        noise_w=math.hypot(sensor.noise_w, sensor.resolution_w / math.sqrt(12)) if sensor.noise_w else 0.0,
        averaging_s=sensor.window_s,
        period_s=sensor.period_s,
    )


def highest_window(powers_w: Sequence[float], limit: SensorLimit) -> float | None:
    """The highest mean over the limit's window, in watts, of readings taken at ``RATE_HZ``; None without a window."""
    return None if limit.window_s is None else highest_mean(powers_w, max(1, round(limit.window_s * RATE_HZ)))


def _overlap(begin_s: float, end_s: float, from_s: float) -> float:
    """Seconds between ``begin_s`` and ``end_s`` that are not before ``from_s``."""
    return max(0.0, end_s - max(begin_s, from_s))
