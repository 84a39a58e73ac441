"""A meter that the user provides, in place of a board's own sensor: a smart plug, a bench meter, a script.

``external:URL`` is fetched, ``external:COMMAND`` is run (without a shell), and the answer is a number or JSON. Options
follow the last ``#``: ``field`` (dots between names and positions), ``unit`` (W, mW, ...), ``period_s``.
"""

import json
import re
import shlex
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple
from urllib.parse import unquote, urlsplit

from wattune_agent.board import Board, PowerSensor
from wattune_agent.errors import BadRequest, NoReading

PREFIX = "external:"

UNITS = {"uW": 1e-6, "mW": 1e-3, "W": 1.0, "kW": 1e3}

OPTIONS = ("field", "period_s", "unit")

PERIOD_S = 1.0
"""Default time between readings: the refresh period of most plugs."""

HIGHEST_W = 1e5
"""Upper bound of a plausible reading: no outlet supplies more to one device."""

TIMEOUT_S = 2.0
"""Time within which a meter has to answer; otherwise there is no reading."""

LONGEST = 1 << 16
"""Most bytes of an answer that are read."""

_NUMBER = re.compile(r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([umk]?W)?", re.ASCII)


class MeterSensor(PowerSensor):
    """The meter of a text such as ``external:http://plug/status#field=power``. Raises: BadRequest for another text."""

    covers = "what is plugged into the meter"

    def __init__(self, text: str, now_s: Callable[[], float] = time.monotonic) -> None:
        if not text.startswith(PREFIX):
            raise BadRequest("{}: not a meter; allowed: external:URL or external:COMMAND".format(text))
        self.source, options = _split(text[len(PREFIX) :])
        self._field = options.get("field", "")
        self._unit = options.get("unit", "W")
        if self._unit not in UNITS:
            raise BadRequest("external: unknown unit: {}; allowed: {}".format(self._unit, ", ".join(UNITS)))
        is_url = self.source.startswith(("http://", "https://"))
        self._ask = _fetcher(self.source) if is_url else _runner(self.source)
        self.rail = "external, " + self._field if self._field else "external"
        # Plugs document little about how they average; most average over their own period.
        self.period_s = self.window_s = _period_s(options.get("period_s"))
        self._now_s = now_s
        self._asking = threading.Lock()
        self._read_s: Optional[float] = None
        self._power_w = 0.0

    def read(self) -> float:
        """Read the meter, which is asked once a period, however often it is read. Raises: NoReading."""
        with self._asking:
            now_s = self._now_s()
            if self._read_s is None or now_s - self._read_s >= self.period_s:
                self._power_w = _power_w(self._ask(), self._field, self._unit)
                self._read_s = now_s
            return self._power_w


def read_by(board: Board, meter: Optional[str]) -> None:
    """Read a board by this meter, if there is one, in place of its own sensor. Raises: BadRequest."""
    if meter is None:
        return
    board.sensor = MeterSensor(meter, board.tree.now_s)
    board.problems = [problem for problem in board.problems if not problem.startswith("no power sensor")]


def _split(text: str) -> Tuple[str, Dict[str, str]]:
    """The source, and the options behind the last #."""
    source, mark, query = text.rpartition("#")
    source = (source if mark else text).strip()
    if not source:
        raise BadRequest("external: needs a URL or a command; hint: such as external:http://plug/status#field=power")
    options: Dict[str, str] = {}
    for part in query.split("&") if mark else ():
        name, _, value = part.partition("=")
        if name not in OPTIONS or not value or name in options:
            raise BadRequest(
                "external: not an option: {}; allowed: once each, with =value: {}".format(part, ", ".join(OPTIONS))
            )
        options[name] = unquote(value)
    return source, options


def _fetcher(url: str) -> Callable[[], str]:
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, build_opener

    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError("it names no host")
    except ValueError as error:
        raise BadRequest("external: not a URL: {}: {}".format(url, error)) from error
    opener = build_opener(ProxyHandler({}))  # a meter is on the local network: no proxy on the way to it

    def fetch() -> str:
        try:
            with opener.open(url, timeout=TIMEOUT_S) as answer:
                return str(answer.read(LONGEST).decode("utf-8", "replace"))
        except HTTPError as error:
            error.close()
            raise NoReading("the meter at {} gave no reading: {}".format(url, error)) from error
        except (OSError, ValueError) as error:
            raise NoReading("the meter at {} gave no reading: {}".format(url, error)) from error

    return fetch


def _runner(command: str) -> Callable[[], str]:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise BadRequest("external: not a command: {}: {}".format(command, error)) from error

    def run() -> str:
        failed = "the meter's command {} ".format(arguments[0])
        try:
            done = subprocess.run(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                universal_newlines=True,
                timeout=TIMEOUT_S,
                start_new_session=True,  # Ctrl-C is for the program
            )
        except subprocess.TimeoutExpired as error:
            raise NoReading(failed + "did not end within {:g} s".format(TIMEOUT_S)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise NoReading(failed + "cannot be run: {}".format(error)) from error
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [""])[-1]
            raise NoReading(failed + "ended with {}: {}".format(done.returncode, said))
        return done.stdout

    return run


def _power_w(answer: str, field: str, unit: str) -> float:
    value = _at(answer, field) if field else answer
    # A unit beside the number comes from the meter, and takes precedence over the option.
    match = None if isinstance(value, bool) else _NUMBER.fullmatch(str(value).strip())
    if match is None:
        where = "the meter's field {}".format(field) if field else "the meter's answer"
        raise NoReading("{} is not a number, but {}{}".format(where, _short(value), _fields_in(answer)))
    power_w = float(match.group(1)) * UNITS[match.group(2) or unit]
    if power_w > HIGHEST_W:
        raise NoReading("the meter says {}, which no meter of one device can read".format(_short(value)))
    if power_w <= 0:
        raise NoReading("the meter reads {:g} W: nothing that runs draws that".format(power_w))
    return power_w


def _at(answer: str, field: str) -> Any:
    try:
        data = value = json.loads(answer)
    except ValueError:
        raise NoReading("the meter's answer is not JSON, but {}".format(_short(answer))) from None
    for part in field.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            told = ", ".join(_numbers(data, "")) or "none"
            text = "the meter's answer has no field {}; its fields with a number: {}"
            raise NoReading(text.format(field, told)) from None
    return value


def _fields_in(answer: str) -> str:
    try:
        found: List[str] = list(_numbers(json.loads(answer), ""))
    except ValueError:
        return ""
    return "; its fields with a number, for #field=: {}".format(", ".join(found)) if found else ""


def _numbers(data: Any, path: str) -> Iterator[str]:
    if isinstance(data, (dict, list)):
        for name, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _numbers(value, "{}.{}".format(path, name) if path else str(name))
    elif isinstance(data, (int, float)) and not isinstance(data, bool) and path:
        yield path


def _period_s(text: Optional[str]) -> float:
    try:
        period_s = PERIOD_S if text is None else float(text)
    except ValueError:
        period_s = -1.0
    if not 0 < period_s <= 60:
        raise BadRequest("external: period_s: {}; allowed: seconds above 0 and at most 60".format(text))
    return period_s


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return repr(text if len(text) <= 60 else text[:57] + "...")
