"""The one interface of a device: a clock (or another actuator), a power sensor, and time.

The device owns time: a simulated board runs on virtual time, so everything that waits, samples or measures
asks the device and never the operating system.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from wattune.errors import DeviceError, InputError
from wattune.records import ExactFigures, Kind, StepWork

if TYPE_CHECKING:
    from wattune.records import BoardEvent, Supply

Actuator = Literal["clock_mhz", "power_limit_w"]

JOIN_S = 5.0
"""Time that a call under way in another thread is given to come to its end. A sensor's read may never return: nobody
waits for it any longer than that, and what it says or does after it does not count."""


@dataclass(frozen=True)
class Sensor:
    """What is known of the power sensor.

    ``resolution_w``: smallest step between readings; ``period_s``: time between fresh values (0: always fresh);
    ``window_s``: time that one value is averaged over (0: instantaneous); ``lag_s``: age of the end of that window
    when the value can first be read; ``noise_w``: standard deviation of one reading (0: none or unknown);
    ``covers``: what the rail feeds, in words, such as "the module" (empty: the board).
    """

    rail: str
    resolution_w: float = 0.0
    period_s: float = 0.0
    window_s: float = 0.0
    lag_s: float = 0.0
    noise_w: float = 0.0
    covers: str = ""

    @property
    def settle_s(self) -> float:
        """Time after a change of power until a reading holds nothing of what was before."""
        return self.window_s + self.lag_s + self.period_s


@dataclass(frozen=True)
class Conditions:
    """How the board is now; None where it does not tell.

    ``temperature_c``: its hottest zone; ``throttled``: what holds its clocks down at present, empty where nothing
    does; ``over_current``: such events since it booted; ``swapped_bytes``: memory that went to and from the swap
    since it booted. The last two are counts: compare two of them.
    """

    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    over_current: int | None = None
    swapped_bytes: float | None = None


class Setting:
    """The device's actuator inside ``Device.at``: the only way to change it. It may be changed from any thread."""

    def __init__(self, device: Device, value: float | None):
        self._device = device
        self._turn = threading.RLock()
        self._was_left = False
        self.value = value

    def change(self, value: float) -> None:
        """Move to another of the device's settings. Raises: InputError, DeviceError, also once ``at`` was left."""
        self._device.check_setting(value)
        with self._turn:
            if self._was_left:
                raise DeviceError(f"{self._device.name} was left as it was found: it is not set to {value:g} any more")
            self._device._apply(value)
            self.value = value

    def _leave(self) -> None:
        free = self._turn.acquire(timeout=JOIN_S)
        self._was_left = True
        if free:
            self._turn.release()


class Truth(ABC):
    """What a simulated board really used since the truth was asked for."""

    @abstractmethod
    def figures(self) -> ExactFigures:
        """Exact energy, time, and time in which the power, averaged over the sensor's window, was above the cap."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What a later truth needs to go on from here, as JSON values."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``, on a device that has loaded its own state of the same moment."""


class Device(ABC):
    """A device that trains.

    Contract, held by ``tests/devices/contract.py`` for every implementation:
    ``settings`` ascend and hold every value that ``at`` takes; ``at`` leaves the device as it was found, also on an
    exception, and can be nested; ``now_s`` never falls; ``power_w`` is positive or raises SensorError;
    ``step`` raises OutOfDeviceMemory before anything is done where the work does not fit, and InputError for a
    data type that the chip lacks.
    """

    name: str
    mode: str
    kind: Kind
    actuator: Actuator | None
    settings: tuple[float, ...]
    volts: tuple[float, ...] = ()
    """Voltage of the processor at each setting, as published; empty where that is not known."""
    sensor: Sensor
    memory_bytes: float | None
    data_types: frozenset[str]
    executes_steps: bool
    """Whether training code runs on the device itself. Where it does not, ``step`` alone makes time pass."""
    spec: str = ""
    """The text that the device was opened by."""
    trains_on: Literal["cpu", "gpu"] = "cpu"
    """The processor that training code has to run on."""
    shares_memory: bool = False
    """Whether training and the system live in the same memory, so that a step that does not fit endangers both."""
    supply: Supply | None = None
    """What lies between the battery's terminals and the sensor, where that is known."""
    problems: tuple[str, ...] = ()
    """What is not as it should be, one sentence each."""

    # ------------------------------------------------------------------------------------------------ for backends

    @abstractmethod
    def now_s(self) -> float:
        """Time since the device was opened, in seconds."""

    @abstractmethod
    def power_w(self) -> float:
        """The sensor's present reading of the whole board, in watts. Raises: SensorError."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let so much time pass without work."""

    @abstractmethod
    def step(self, work: StepWork) -> Any:
        """A context manager around one step of this work. Raises: OutOfDeviceMemory, InputError."""

    @abstractmethod
    def current(self) -> float | None:
        """The value that the actuator is set to; None without one, or while the board itself chooses."""

    @abstractmethod
    def _apply(self, value: float) -> None:
        """Set the actuator to a checked value and see that it took. Raises: DeviceError."""

    @abstractmethod
    def _snapshot(self) -> object:
        """What ``_restore`` needs to leave the device as it is now."""

    @abstractmethod
    def _restore(self, snapshot: object) -> None:
        """Bring back what ``_snapshot`` saw. Raises: DeviceError."""

    # ---------------------------------------------------------------------------------------- for everybody else

    @property
    def clocks_mhz(self) -> tuple[float, ...]:
        """The clocks, ascending; empty where the device has none or another actuator."""
        return self.settings if self.actuator == "clock_mhz" else ()

    def check_setting(self, value: float) -> None:
        """Raises: InputError where ``value`` is not one of the device's settings."""
        if value not in self.settings:
            raise InputError(
                f"{self.name} has no such {self.actuator or 'clock'}",
                value=value,
                allowed=", ".join(f"{s:g}" for s in self.settings) or "none, it cannot be set",
            )

    @final
    @contextmanager
    def at(self, value: float | None) -> Iterator[Setting]:
        """The device at this clock (or power limit); as it was found afterwards, whatever happens inside.

        None leaves the actuator alone. Raises: InputError for a value that is not in ``settings``.
        """
        if value is None:
            yield Setting(self, None)
            return
        self.check_setting(value)
        snapshot = self._snapshot()
        setting = Setting(self, value)
        try:
            self._apply(value)
            yield setting
        finally:
            setting._leave()
            self._restore(snapshot)

    @contextmanager
    def every(self, period_s: float, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` every ``period_s`` seconds of the device's time while inside.

        Here: from a thread on real time. An exception in ``call`` ends the thread and is raised on leaving. A call that
        does not return is left to itself ``JOIN_S`` after that.
        """
        stop = threading.Event()
        failures: list[BaseException] = []

        def loop() -> None:
            due = self.now_s()
            while not stop.wait(max(0.0, due - self.now_s())):
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
                    failures.append(error)
                    return
                due = max(due + period_s, self.now_s())

        thread = threading.Thread(target=loop, name="wattune-sampling", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(JOIN_S)
        if failures:
            raise failures[0]

    def rails_w(self) -> dict[str, float]:
        """The latest reading of each power rail that the board tells apart; empty where it tells none."""
        return {}

    def conditions(self) -> Conditions:
        """How the board is at this moment. Raises: nothing; what cannot be read is None."""
        return Conditions()

    def events(self) -> tuple[BoardEvent, ...]:
        """What happened on the board since the last call: another writer, a clamp, a stuck sensor."""
        return ()

    def hand_over(self, cap_w: float | None, max_temp_c: float | None = None) -> None:  # noqa: B027 - most cannot
        """Inside ``at``: let the board itself guard these limits as well, until the context is left.

        Where training hangs, or its process is stopped, the board then still keeps them. Raises: DeviceError.
        """

    def truth(self, cap_w: float | None) -> Truth | None:
        """Start exact accounting against ``cap_w``; None where the device is not simulated."""
        return None

    def state_dict(self) -> dict[str, Any] | None:
        """What a later process needs to go on from here, as JSON values; None where there is nothing to keep."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most devices have nothing to load
        """Go on from ``state_dict``."""

    def close(self) -> None:  # noqa: B027 - most devices hold nothing
        """Let go of the device."""
