"""The one interface of a device: its knobs (a clock, a power limit, ...), a power sensor, and time.

The device owns time: a simulated board runs on virtual time, so everything that waits, samples or measures
asks the device and never the operating system.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, final

from wattune.cap import SensorLimit
from wattune.errors import DeviceError, InputError
from wattune.point import Knobs
from wattune.records import ExactFigures, Kind, StepWork

if TYPE_CHECKING:
    from wattune.devices.group import DeviceGroup
    from wattune.records import BoardEvent, ProfileTable, Supply
    from wattune_agent.client import AgentClient
    from wattune_agent.controller import Controller

JOIN_S = 5.0
"""Longest wait for a call in another thread to return. A read of a sensor may never return: after this time it is
abandoned, and its result is ignored."""


@dataclass(frozen=True)
class Knob:
    """A knob of a device: its name, which is one of ``wattune.point.KNOBS``, and the values that it takes, ascending.

    ``power_rises``: power rises with the value; otherwise it falls.
    """

    name: str
    values: tuple[float, ...]
    power_rises: bool = True

    @property
    def by_power(self) -> tuple[float, ...]:
        """The values, beginning with the one that draws least."""
        return self.values if self.power_rises else self.values[::-1]

    @property
    def safest(self) -> float:
        """The value that draws least."""
        return self.by_power[0]


def combinations(knobs: Sequence[Knob]) -> tuple[Knobs, ...]:
    """Every setting of these knobs, ascending; one that sets nothing if there are none."""
    names = [knob.name for knob in knobs]
    grid = itertools.product(*(knob.values for knob in knobs))
    return tuple(sorted(Knobs(dict(zip(names, values, strict=True))) for values in grid))


class SearchedSensor(TypedDict):
    """Figures of a sensor by the names that ``wattune.search.Search`` takes."""

    noise_w: float
    resolution_w: float
    window_s: float
    period_s: float
    settle_s: float


@dataclass(frozen=True)
class Sensor:
    """Properties of the power sensor.

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
        """Time after a change of power until a reading contains none of the power before it."""
        return self.window_s + self.lag_s + self.period_s

    @property
    def searched(self) -> SearchedSensor:
        """The figures that a search of operating points takes."""
        return {
            "noise_w": self.noise_w,
            "resolution_w": self.resolution_w,
            "window_s": self.window_s,
            "period_s": self.period_s,
            "settle_s": self.settle_s,
        }


@dataclass(frozen=True)
class Conditions:
    """The board's present state; None for what the board does not tell.

    ``temperature_c``: its hottest zone; ``throttled``: what throttles its clocks at present, empty if nothing does;
    ``over_current``: over-current events since it booted; ``swapped_bytes``: memory that was swapped in or out
    since it booted: both are running totals, so compare two of them. ``notices``: what holds a clock below its setting
    in the board's ordinary state, such as a card's own power limit at its top clocks; no rest changes that.
    """

    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    over_current: int | None = None
    swapped_bytes: float | None = None
    notices: tuple[str, ...] = ()


class Setting:
    """The device's knobs inside ``Device.at``: the only way to change them. They may be changed from any thread."""

    def __init__(self, device: Device, knobs: Knobs):
        self._device = device
        self._turn = threading.RLock()
        self._was_left = False
        self.knobs = knobs

    def change(self, knobs: Knobs) -> None:
        """Set the knobs to other values. Raises: InputError; DeviceError, also after ``at`` was left."""
        self._device.check_knobs(knobs)
        with self._turn:
            if self._was_left:
                raise DeviceError(f"{self._device.name} was left as it was found: it is not set to {knobs} any more")
            self._device._apply(knobs)
            self.knobs = knobs

    def _leave(self) -> None:
        free = self._turn.acquire(timeout=JOIN_S)
        self._was_left = True
        if free:
            self._turn.release()


class ExactStep(NamedTuple):
    """Exact figures of a step that a simulated board repeats without end: its seconds, its mean power, and the highest
    mean power over a window of the sensor."""

    step_s: float
    power_mean_w: float
    power_peak_w: float


class GroundTruth(ABC):
    """Exact accounting of what a simulated board has used since ``Device.ground_truth`` was called."""

    @abstractmethod
    def figures(self) -> ExactFigures:
        """Exact energy, time, and time in which the mean power of the window was above the cap."""

    @abstractmethod
    def move_cap(self, cap_w: float | None) -> None:
        """Count the time above this cap from now on."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """State from which a later ground truth continues, as JSON values."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``, on a device that has loaded its own state of the same moment."""

    @abstractmethod
    def window_mean_w(self) -> float:
        """Exact mean power of the window at the sensor's last refresh."""


class Device(ABC):
    """A device that trains.

    Contract, held by ``tests/devices/contract.py`` for every implementation:
    the values of each knob ascend and are all that ``at`` takes; ``at`` leaves the device as it was found, also on an
    exception, and can be nested; ``now_s`` never decreases; ``power_w`` is positive or raises SensorError;
    ``step`` raises OutOfDeviceMemory before anything is done if the work does not fit, and InputError for a
    data type that the chip lacks.

    No code outside ``wattune.devices`` asks for a device's class. What only some devices can do is a method or an
    attribute here, and the others answer with None, False or an empty result: ``replayed_table`` (a
    replay alone); ``exact_steps``, with one entry for each of ``combinations``, and ``ground_truth`` (a simulated board
    alone); ``controller`` (a board that this computer or an agent controls). What only several devices do together is
    asked of ``group``.
    """

    name: str
    mode: str
    kind: Kind
    knobs: tuple[Knob, ...] = ()
    """The knobs, beginning with the one that is lowered first to save power; empty if nothing can be set. A board that
    offers several (``offered``) begins with the first alone, which every task can set."""
    sensor: Sensor
    memory_bytes: float | None
    data_types: frozenset[str]
    executes_steps: bool
    """True if training code runs on the device itself. Otherwise time passes in ``step`` and ``wait`` only."""
    spec: str = ""
    """The text that named the device when it was opened."""
    trains_on: Literal["cpu", "gpu"] = "cpu"
    """The processor that training code has to run on."""
    shares_memory: bool = False
    """True if training and the system share one memory, so that a step that does not fit endangers both."""
    supply: Supply | None = None
    """Losses and loads between the battery's terminals and the sensor; None if they are not known."""
    highest_w: float | None = None
    """Upper bound of what the board draws, in watts at the sensor; None if unknown."""
    problems: tuple[str, ...] = ()
    """Problems of the device, one sentence each."""
    replayed_table: ProfileTable | None = None
    """The table that steps and readings are drawn from; None for other devices. Only its cells can be measured, and it
    stands for a workload: without one, its own batch sizes are profiled."""
    controller: Controller | AgentClient | None = None
    """Direct access to the board for a guard that runs beside training; None if ``at`` is the only way."""
    group: DeviceGroup | None = None
    """The group that this device is, with its members; None for one device."""
    leftover: str | None = None
    """Root of the board's files, if another process has to restore the board after this one was killed inside ``at``
    (``wattune_agent.leftover``)."""

    # ------------------------------------------------------------------------------------------------ for backends

    @abstractmethod
    def now_s(self) -> float:
        """Time since the device was opened, in seconds."""

    @abstractmethod
    def power_w(self) -> float:
        """The sensor's present reading of the whole board, in watts. Raises: SensorError."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let ``seconds`` pass without work."""

    @abstractmethod
    def step(self, work: StepWork) -> Any:
        """A context manager around one step of this work. Raises: OutOfDeviceMemory, InputError."""

    @abstractmethod
    def current(self) -> Knobs | None:
        """The values that the knobs are set to; None without knobs, or while the board itself chooses."""

    @abstractmethod
    def _apply(self, knobs: Knobs) -> None:
        """Set every knob to its checked value and verify that it took effect. Raises: DeviceError."""

    @abstractmethod
    def _snapshot(self) -> object:
        """State from which ``_restore`` brings the device back to how it is now."""

    @abstractmethod
    def _restore(self, snapshot: object) -> None:
        """Restore the state that ``_snapshot`` returned. Raises: DeviceError."""

    # ---------------------------------------------------------------------------------------- for all callers

    def guarded_w(self, power_w: float) -> float:
        """The watts that a cap is compared with, of this result of ``power_w``: of several devices, those of the
        highest pool that has a cap of its own."""
        return power_w

    @property
    def guarded_sensor(self) -> Sensor:
        """Properties of the sensor that ``guarded_w`` is of."""
        return self.sensor

    @property
    def offered(self) -> tuple[Knob, ...]:
        """The knobs that ``select`` can choose from: more than ``knobs`` on a board that leaves some alone at first."""
        return self.knobs

    def select(self, names: Iterable[str]) -> None:  # noqa: B027 - most devices set all of their knobs, always
        """Make these of the offered knobs the device's; the board itself decides about the others. Not inside ``at``.

        Nothing changes if they cannot be chosen: ``at`` then refuses them.
        """

    @property
    def safest(self) -> Knobs:
        """The setting that draws least; empty for a device without knobs."""
        return Knobs({knob.name: knob.safest for knob in self.knobs})

    def combinations(self) -> tuple[Knobs, ...]:
        """Every setting, ascending; on a device without knobs, one that sets nothing."""
        return combinations(self.knobs)

    def climbs(self) -> tuple[tuple[Knobs, ...], ...]:
        """For each combination of the other knobs, the settings along the first knob; both begin with what draws least.

        On a device without knobs, one climb with one setting that sets nothing.
        """
        if not self.knobs:
            return ((Knobs(),),)
        first, *others = self.knobs
        names = [knob.name for knob in others]
        return tuple(
            tuple(Knobs({first.name: value, **dict(zip(names, values, strict=True))}) for value in first.by_power)
            for values in itertools.product(*(knob.by_power for knob in others))
        )

    def ladder(self, knobs: Knobs) -> tuple[Knobs, ...]:
        """The settings from the safest up to ``knobs``, each drawing no less than the one before; empty for no knobs.

        Downwards, the first knob goes to its safest value before the next one moves.
        """
        if not knobs:
            return ()
        steps = [self.safest]
        for knob in reversed(self.knobs):
            values = knob.by_power
            for value in values[1 : values.index(knobs[knob.name]) + 1]:
                steps.append(steps[-1].replace(**{knob.name: value}))
        return tuple(steps)

    def check_knobs(self, knobs: Knobs) -> None:
        """Check a setting. Raises: InputError unless it has an allowed value for each of the device's knobs."""
        allowed = {knob.name: knob.values for knob in self.knobs}
        for name, value in knobs.items():
            if value not in allowed.get(name, ()):
                raise InputError(
                    f"{self.name} has no such {name}",
                    value=value,
                    allowed=", ".join(f"{v:g}" for v in allowed.get(name, ())) or "none, it cannot be set",
                )
        if missing := [name for name in allowed if name not in knobs]:
            raise InputError(
                f"{self.name} needs a value for each of its knobs",
                value=f"none for {', '.join(missing)}",
                allowed="; ".join(f"{name} {', '.join(f'{v:g}' for v in allowed[name])}" for name in missing),
            )

    def only_knob(self, task: str, *, hint: str) -> Knob | None:
        """The device's one knob, or None, for a task that cannot set several; the first one if the board can be left to
        decide about the others. Raises: InputError for several knobs."""
        if len(self.knobs) > 1:
            self.select([self.knobs[0].name])
        if len(self.knobs) > 1:
            names = ", ".join(knob.name for knob in self.knobs)
            raise InputError(f"{task} cannot set several knobs", value=names, allowed="a device with one", hint=hint)
        return self.knobs[0] if self.knobs else None

    def knobs_from(self, saved: Mapping[str, float] | float | None) -> Knobs:
        """A setting from a saved state: its values by name, or the value of the first knob alone, as states had it
        while there was one knob; None for no knobs."""
        if isinstance(saved, Mapping):
            return Knobs(saved)
        return Knobs() if saved is None else Knobs({self.knobs[0].name: saved})

    @final
    @contextmanager
    def at(self, knobs: Knobs | None) -> Iterator[Setting]:
        """Hold the device at this setting, and restore it afterwards, whatever happens inside.

        None, or no knobs, leaves the device alone. Raises: as ``check_knobs``; DeviceError.
        """
        if not knobs:
            yield Setting(self, Knobs())
            return
        self.check_knobs(knobs)
        snapshot = self._snapshot()
        setting = Setting(self, knobs)
        try:
            self._apply(knobs)
            yield setting
        finally:
            setting._leave()
            self._restore(snapshot)

    @contextmanager
    def every(self, period_s: float, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` every ``period_s`` seconds of the device's time while inside.

        Here: from a thread on real time. An exception in ``call`` ends the thread and is raised on leaving. A call that
        has not returned ``JOIN_S`` after that is abandoned.
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

    def clock_mhz(self) -> float | None:
        """The clock that the processor runs at, in MHz; None if the device does not report it, or cannot now."""
        return None

    def conditions(self) -> Conditions:
        """The board's present state. Raises nothing: a figure that cannot be read is None."""
        return Conditions()

    def events(self) -> tuple[BoardEvent, ...]:
        """Events on the board since the last call: another writer, a clamp, a stuck sensor."""
        return ()

    def adopt(self, knobs: Knobs) -> None:  # noqa: B027 - most have no controller
        """Note that ``controller`` has pinned these: ``at`` brings them back, also where it fails."""

    def arm_guard(self, limit: SensorLimit) -> None:  # noqa: B027 - most cannot
        """Arm the board's own guard, inside ``at`` and until that context is left.

        The board then stays within this limit even if training hangs or its process is stopped. Raises: DeviceError.
        """

    @property
    def set_cap_w(self) -> float | None:
        """The cap that another client of the board's guard set in place of the armed one; None without one."""
        return None

    def ground_truth(self, cap_w: float | None, window_s: float | None = None) -> GroundTruth | None:
        """Start exact accounting against ``cap_w``, a mean over ``window_s`` seconds; None if not simulated.

        Without a window the mean is over the time that the sensor averages over.
        """
        return None

    def exact_steps(self, work: StepWork) -> dict[Knobs, ExactStep]:
        """Setting -> noise-free figures of a step of this work on a simulated board; empty for other devices."""
        return {}

    def as_new(self) -> Device:
        """The same board as at its first use, if it is simulated: figures do not depend on what was measured before."""
        return self

    def state_dict(self) -> dict[str, Any] | None:
        """State from which a later process continues, as JSON values; None if there is nothing to save."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most devices have nothing to load
        """Continue from ``state_dict``."""

    def close(self) -> None:  # noqa: B027 - most devices hold nothing
        """Release the device."""
