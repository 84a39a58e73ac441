"""A meter that the user provides: a smart plug, a bench meter, a script. It has no clock to set, so wattune chooses
the batch size alone.

``external:URL`` is fetched, ``external:COMMAND`` is run (without a shell), and the answer is a number or JSON. Options
follow the last ``#``: ``field`` (dots between names and positions), ``unit`` (W, mW, ...), ``period_s``.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from wattune import units
from wattune.devices.base import Conditions, Sensor
from wattune.devices.host_memory import free_bytes, swapped_bytes
from wattune.devices.real_time import UncontrolledDevice, told
from wattune.devices.spec_options import split_options
from wattune.errors import DeviceUnavailable, InputError, SensorError
from wattune_agent.tree import Tree

UNITS = ("uW", "mW", "W", "kW")

PERIOD_S = 1.0
"""Default time between readings: the refresh period of most plugs."""

HIGHEST_W = 1e5
"""Upper bound of a plausible reading: no outlet supplies more to one device."""

TIMEOUT_S = 2.0
"""Time within which a meter has to answer; otherwise there is no reading."""


class ExternalDevice(UncontrolledDevice):
    """This machine, with a meter that is read through a URL or a command. ``ask`` returns its answer as text."""

    kind = "measured"
    mode = "as it is"
    data_types = frozenset({"fp32", "tf32", "fp16", "bf16"})
    trains_on = "gpu"  # if there is one: the meter knows nothing of processors
    shares_memory = True  # assumed, since the meter cannot tell

    def __init__(self, name: str, ask: Callable[[], str], *, field: str = "", unit: str = "W", period_s: float):
        self.name = name
        self._ask = ask
        self._field = field
        self._unit = unit
        self._asking = threading.Lock()
        self._read_s: float | None = None
        self._power_w = 0.0
        self._tree = Tree()
        self.memory_bytes = told(free_bytes, self._tree)
        # Plugs document little about how they average; most average over their own period.
        self.sensor = Sensor(
            f"external, {field}" if field else "external",
            period_s=period_s,
            window_s=period_s,
            covers="what is plugged into the meter",
        )
        super().__init__()

    def _read_w(self) -> float:
        with self._asking:  # the meter is asked once a period, however often it is read
            now_s = self._clock_s()
            if self._read_s is None or now_s - self._read_s >= self.sensor.period_s:
                self._power_w = _power_w(self._ask(), self._field, self._unit)
                self._read_s = now_s
            return self._power_w

    def conditions(self) -> Conditions:
        """The swapped memory; a meter knows nothing else."""
        return Conditions(swapped_bytes=told(swapped_bytes, self._tree))


def open_external(rest: str, *, seed: int = 0) -> ExternalDevice:
    """Open the meter at a URL or behind a command, with its options.

    Raises: InputError; DeviceUnavailable if it gives no reading.
    """
    source, options = split_options(rest, "#", {"field", "unit", "period_s"}, device="external")
    source = source.strip()
    if not source:
        raise InputError("external: needs a URL or a command", hint="such as external:http://plug/status#field=power")
    unit = options.get("unit", "W")
    if unit not in UNITS:
        raise InputError("external: unknown unit", value=unit, allowed=", ".join(UNITS))
    ask = _fetcher(source) if source.startswith(("http://", "https://")) else _runner(source)
    device = ExternalDevice(
        f"external:{source}", ask, field=options.get("field", ""), unit=unit, period_s=_period_s(options)
    )
    try:
        device.power_w()
    except SensorError as error:
        raise DeviceUnavailable(str(error)) from error
    return device


def _fetcher(url: str) -> Callable[[], str]:
    try:
        # A meter is on the local network: no proxy on the way to it.
        client = httpx.Client(timeout=TIMEOUT_S, follow_redirects=True, trust_env=False)
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InputError("external: not a URL", value=url, hint=str(error)) from error

    def fetch() -> str:
        try:
            return client.get(url).raise_for_status().text
        except httpx.HTTPError as error:
            raise SensorError(f"the meter at {url} gave no reading: {error or type(error).__name__}") from error

    return fetch


def _runner(command: str) -> Callable[[], str]:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise InputError("external: not a command", value=command, hint=str(error)) from error

    def run() -> str:
        try:
            done = subprocess.run(
                arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip().splitlines() or [""])[-1]
            raise SensorError(f"the meter's command {arguments[0]} ended with {error.returncode}: {said}") from error
        except subprocess.TimeoutExpired as error:
            raise SensorError(f"the meter's command {arguments[0]} did not end within {TIMEOUT_S:g} s") from error
        except (OSError, UnicodeDecodeError) as error:
            raise SensorError(f"the meter's command {arguments[0]} cannot be run: {error}") from error
        return done.stdout

    return run


def _power_w(answer: str, field: str, unit: str) -> float:
    value: Any = answer
    if field:
        try:
            data = json.loads(answer)
        except ValueError:
            raise SensorError(f"the meter's answer is not JSON, but {_short(answer)}") from None
        value = _at(data, field)
    # A unit beside the number comes from the meter, and takes precedence over the option.
    text = "" if isinstance(value, bool) else str(value).strip()
    size = text.removeprefix("-")  # the caller says what is wrong with a power below zero
    size_w = units.read(size + unit, "W")
    if size_w is None:
        size_w = units.read(size, "W")
    if size_w is None:
        where = f"the meter's field {field}" if field else "the meter's answer"
        raise SensorError(f"{where} is not a number, but {_short(value)}{_fields_in(answer)}")
    power_w = size_w if size == text else -size_w
    if power_w > HIGHEST_W:
        raise SensorError(f"the meter says {_short(value)}, which no meter of one device can read")
    return power_w


def _at(data: Any, field: str) -> Any:
    value = data
    for part in field.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            told = ", ".join(_numbers(data, "")) or "none"
            raise SensorError(f"the meter's answer has no field {field}; its fields with a number: {told}") from None
    return value


def _fields_in(answer: str) -> str:
    try:
        found = list(_numbers(json.loads(answer), ""))
    except ValueError:
        return ""
    return f"; its fields with a number, for #field=: {', '.join(found)}" if found else ""


def _numbers(data: Any, path: str) -> Iterator[str]:
    if isinstance(data, (dict, list)):
        for name, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _numbers(value, f"{path}.{name}" if path else str(name))
    elif isinstance(data, (int, float)) and not isinstance(data, bool) and path:
        yield path


def _period_s(options: dict[str, str]) -> float:
    text = options.get("period_s", f"{PERIOD_S:g}")
    try:
        period_s = float(text)
    except ValueError:
        period_s = -1.0
    if not 0 < period_s <= 60:
        raise InputError("external: period_s", value=text, allowed="seconds above 0 and at most 60")
    return period_s


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return repr(text if len(text) <= 60 else text[:57] + "...")
