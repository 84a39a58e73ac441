"""Real boards: Jetsons, CPUs and cards, by the agent's code in this process or by an agent that root runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices.base import Conditions, Knob, Sensor
from wattune.devices.cards import check_visible, data_types
from wattune.devices.host_memory import free_bytes, swapped_bytes
from wattune.devices.real_time import RealDevice, mapped, told
from wattune.devices.spec_options import split_options, with_options
from wattune.errors import DeviceError, DeviceUnavailable, InputError, SensorError
from wattune.point import Knobs
from wattune.records import Supply
from wattune_agent.board import Board
from wattune_agent.client import AgentClient
from wattune_agent.controller import FIGURES, Controller
from wattune_agent.discovery import compatible, families, find_board
from wattune_agent.errors import AgentError
from wattune_agent.meter_sensor import PREFIX, MeterSensor, read_by
from wattune_agent.nvidia import BEST, FAMILY, find_card
from wattune_agent.protocol import SOCKET
from wattune_agent.tree import Tree

CHECK_S = 1.0
"""Time between checks for another writer that changed our limits."""

FRESH_S = 1.0
"""Age up to which a reading's temperature and throttling count as current."""

JETSON_DATA_TYPES = {
    r"tegra234|tegra264|orin|thor": frozenset({"fp32", "tf32", "fp16", "bf16"}),  # Ampere and newer
    r"": frozenset({"fp32", "fp16"}),  # Maxwell, Pascal, Volta
}
"""Data types that a Jetson's GPU computes in: pattern of the chip's name or of the board's -> types, the first
match counts. A carrier board's maker may give the board any name."""

KNOB_WORDS = {"memory_clock_mhz": "memory", "cpu_clock_mhz": "cpu"}
"""Words in ``knobs=`` for the clocks beside the first, whose word is its unit: "gpu", or "cpu" of a board without."""

CPU_DATA_TYPES = frozenset({"fp32", "bf16"})

EXTERNAL = "external"
"""Family of a machine of which no more is known than a meter: it may have any GPU, or none."""

ANY_DATA_TYPES = frozenset({"fp32", "tf32", "fp16", "bf16"})

ACTUATORS = {"clock_mhz": "clock_mhz", "power_limit_w": "power_limit_w", "none": ""}
"""Value of the option ``?actuator=`` -> the knob that is set."""


class BoardDevice(RealDevice):
    """A board that training runs on. ``tree``: its files; None if an agent reads them. ``chosen``: the knobs that it
    offers, by their words in ``KNOB_WORDS``; without them it offers all, and begins with the first.
    """

    def __init__(self, controller: Controller | AgentClient, tree: Tree | None, *, chosen: str | None = None):
        self._board = controller
        self._tree = tree or Tree()
        with mapped():
            board = controller.describe()
        self.name = str(board["name"])
        self.mode = ", ".join(f"{key} {value}" for key, value in board["mode"].items()) or "as it is"
        self._offered = _knobs(board, chosen)
        self.knobs = self._offered if chosen is not None else self._offered[:1]
        self._main = self._offered[0].name if self._offered else "clock_mhz"
        if self._main == "clock_mhz":  # a guard compares its settings with the clock of each reading
            self.controller = controller
        # An agent restores its own board.
        self.leftover = None if tree is None or not self._offered else tree.root
        family = str(board["family"])
        self.kind = "measured" if board["real"] or family == EXTERNAL else "simulated"
        self.card: Mapping[str, Any] | None = board["card"]
        self.trains_on = "cpu" if family == "cpu" else "gpu"
        card = self.card
        self.shares_memory = card is None or bool(card["shares_memory"])
        self.data_types = (
            _data_types(family, self._tree, self.name) if card is None else data_types(tuple(card["capability"]))
        )
        self.sensor = Sensor(**{name: board[name] for name in FIGURES})
        self.problems = tuple(board["problems"])
        self.highest_w = None if card is None else card["highest_w"]
        if card is None or self.shares_memory:
            self.memory_bytes = told(free_bytes, self._tree)
        else:
            self.memory_bytes = card["memory_bytes"]
        if board["covers"] == MeterSensor.covers:  # which is at the supply itself
            self.supply = Supply(other_w=0.0, efficiency=1.0)
        self._pinned: Knobs | None = None
        self._changing = threading.RLock()
        self._asking = threading.Lock()
        self._checked_s = 0.0
        self._reading: tuple[float, Mapping[str, Any]] | None = None
        super().__init__()

    # ----------------------------------------------------------------------------------------------------------- time

    def _clock_s(self) -> float:
        return self._tree.now_s()

    def wait(self, seconds: float) -> None:
        """Sleep, in the board's time. Raises: InputError for a negative time."""
        if not 0 <= seconds < float("inf"):
            raise InputError("cannot wait for", value=seconds, allowed="0 seconds or more")
        self._tree.sleep(seconds)

    # --------------------------------------------------------------------------------------------------------- knobs

    @property
    def offered(self) -> tuple[Knob, ...]:
        """The clocks that this user may set, or those chosen among them when the device was opened."""
        return self._offered

    def select(self, names: Iterable[str]) -> None:
        """Make these the device's knobs. The first one is always among them: the guard lowers it."""
        wanted = set(names)
        if self._offered and self._offered[0].name in wanted and wanted <= {knob.name for knob in self._offered}:
            self.knobs = tuple(knob for knob in self._offered if knob.name in wanted)

    def current(self) -> Knobs | None:
        """The clocks that are pinned; None while the board itself chooses."""
        return self._pinned

    def _apply(self, knobs: Knobs) -> None:
        with self._changing:
            with mapped():
                others = {name: float(value) for name, value in knobs.items() if name != self._main}
                try:
                    # A failed call leaves the clocks as they were found, or pinned.
                    self._board.pin(float(knobs[self._main]), others or None)
                finally:
                    self._collect()
            if knobs != self._pinned:
                self._stuck.change()
            self._pinned = knobs

    def _snapshot(self) -> object:
        return self._pinned

    def _restore(self, snapshot: object) -> None:
        if isinstance(snapshot, Knobs):
            self._apply(snapshot)
            return
        with self._changing:
            self._pinned = None
            with mapped():
                self._board.restore()
            self._collect()

    def adopt(self, knobs: Knobs) -> None:
        """Note that ``controller`` has pinned these: ``at`` brings them back, also where it fails."""
        with self._changing:
            self._pinned = knobs

    def arm_guard(self, limit: SensorLimit) -> None:
        """Arm the agent's guard with this limit; do nothing without an agent or a clock.

        Raises: DeviceError.
        """
        if isinstance(self._board, AgentClient) and self.knobs:
            with mapped():
                self._board.guard(limit.limit_w, limit.max_temp_c, limit.window_s)

    @property
    def set_cap_w(self) -> float | None:
        """The cap that another client of the agent set, as of the latest reading; None without one."""
        return None if self._reading is None else self._reading[1].get("set_cap_w")

    # -------------------------------------------------------------------------------------------------------- reading

    def _read_w(self) -> float:
        self._check()
        try:
            with mapped(), self._asking:
                reading = self._board.read()
        except SensorError:
            raise
        except DeviceError as error:  # a file that vanished or an agent that exited: no reading either way
            raise SensorError(str(error)) from error
        self._reading = (self.now_s(), reading)
        return float(reading["power_w"])

    def _check(self) -> None:
        """Check about once a second, while pinned, for another writer that changed our limits."""
        now_s = self.now_s()
        if self._pinned is None or now_s - self._checked_s < CHECK_S or not self._changing.acquire(blocking=False):
            return  # the thread that holds the lock is changing them right now
        try:
            self._checked_s = now_s
            if self._pinned is not None:
                self._collect()
        finally:
            self._changing.release()

    def _collect(self) -> None:
        """Collect the events that the controller noticed."""
        try:
            for event in self._board.check():
                self._note(str(event["kind"]), str(event["text"]))
        except AgentError as error:
            self._note("unreadable", str(error))

    def clock_mhz(self) -> float | None:
        """The clock of the latest reading."""
        reading = self._recent()
        return None if reading is None else reading["clock_mhz"]

    def conditions(self) -> Conditions:
        """Temperature, throttling and over-current of the latest reading, and what was swapped."""
        swapped = told(swapped_bytes, self._tree)
        reading = self._recent()
        if reading is None:
            return Conditions(swapped_bytes=swapped)
        return Conditions(
            temperature_c=reading["temperature_c"],
            throttled=tuple(reading["throttled"]),
            over_current=reading["over_current"],
            swapped_bytes=swapped,
            notices=tuple(reading["notices"]),
        )

    def _recent(self) -> Mapping[str, Any] | None:
        """The latest reading, or a new one if that is old; None if there is none."""
        # An extra reading would shorten the time that a counter's next one averages over, and if another thread's
        # reading hangs, this one would hang too.
        if not self._asking.acquire(timeout=FRESH_S):
            return None
        try:
            latest = self._reading
            if latest is not None and self.now_s() - latest[0] < FRESH_S:
                return latest[1]
            return self._board.read()
        except AgentError:
            return None
        finally:
            self._asking.release()

    def close(self) -> None:
        """Restore the board, and release it. Raises: DeviceError."""
        self._pinned = None
        with mapped():
            self._board.close()


# ------------------------------------------------------------------------------------------------------------- openers


def open_jetson(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open the Jetson that this computer is; ``?root=`` names a folder with its files instead,
    ``&knobs=gpu,memory,cpu`` the clocks to set (by default the first, or all in a guided profile).

    Raises: DeviceUnavailable if there is none, or it has no power sensor.
    """
    return usable(find_local("jetson", rest))


def open_cpu(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open this computer's CPU; options as for ``open_jetson``. Raises: DeviceUnavailable."""
    return usable(find_local("cpu", rest))


def open_agent(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open the board of the agent at the socket ``rest``, by default the system's; ``?knobs=`` as for ``open_jetson``.

    Raises: DeviceUnavailable.
    """
    return usable(find_agent(rest))


def open_external(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open this machine with the meter at a URL or behind a command, with its options. No clock can be set.

    Raises: InputError; DeviceUnavailable if the meter gives no reading.
    """
    with mapped():
        tree, meter = Tree(), MeterSensor(PREFIX + rest)
        board = Board(tree, family=EXTERNAL, name=PREFIX + meter.source, clock=None, sensor=meter, problems=[])
        return usable(BoardDevice(Controller(board), tree))


def open_nvidia(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open the card "0", "GPU-UUID" or "" (the first); ``?actuator=`` power_limit_w, clock_mhz or none behind it.

    By default the knob is the power limit, which the card keeps by choosing its clocks itself; on a card whose limit
    cannot be set, the locked clock.

    Raises: InputError, DeviceUnavailable.
    """
    return usable(find_nvidia(rest))


def usable(device: BoardDevice) -> BoardDevice:
    """The device if its sensor reads, and training would run on its card. Raises: DeviceUnavailable."""
    try:
        if not device.sensor.rail:
            raise DeviceUnavailable(_why_no_sensor(device))
        try:
            device.power_w()
        except SensorError as error:
            raise DeviceUnavailable(str(error)) from error
        if device.card is not None:
            check_visible(device.card["uuid"], device.card["names"])
    except BaseException:
        with suppress(DeviceError):
            device.close()
        raise
    return device


def find_local(family: str, rest: str) -> BoardDevice:
    """Find the board of ``open_jetson`` or ``open_cpu``, even without a sensor; its ``problems`` name what is missing.

    Raises: DeviceUnavailable, InputError.
    """
    before, options = split_options(rest, "?", {"root", "knobs", "meter"}, device=family)
    if before:
        raise InputError(f"{family}: nothing can stand behind the name", value=before, hint=f"use --device {family}")
    tree = Tree(options.get("root", "/"))
    if not tree.exists("/"):
        raise InputError(
            "there is no such folder", value=options["root"], hint="--sysfs-root needs one with sys/ in it"
        )
    with mapped():
        board = find_board(tree, family)
        read_by(board, options.get("meter"))
        board.problems += _not_ours(board)
        return BoardDevice(Controller(board), tree, chosen=options.get("knobs"))


def find_agent(rest: str) -> BoardDevice:
    """Find the board of ``open_agent``, even without a sensor. Raises: DeviceUnavailable, InputError."""
    path, options = split_options(rest, "?", {"knobs"}, device="agent")
    with mapped():
        client = AgentClient(path or SOCKET)
        try:
            return BoardDevice(client, None, chosen=options.get("knobs"))
        except BaseException:
            client.close()
            raise


def find_nvidia(rest: str) -> BoardDevice:
    """Find the card of ``open_nvidia``, even if the card cannot be used: its ``problems`` say why."""
    which, options = split_options(rest, "?", {"actuator"}, device=FAMILY)
    actuator = options.get("actuator", BEST)
    if actuator not in (BEST, *ACTUATORS):
        raise InputError("nvidia: no such actuator", value=actuator, allowed=", ".join(ACTUATORS))
    tree = Tree()
    with mapped():
        board = find_card(tree, f"{FAMILY}:{which or 0}", ACTUATORS.get(actuator, BEST))
        if board.clock is None and ACTUATORS.get(actuator):
            others = " or ".join(name for name in ACTUATORS if name != actuator)
            raise InputError(next(text for text in board.problems if "set" in text), hint=f"use ?actuator={others}")
        return BoardDevice(Controller(board), tree)


def local_specs(root: str | None = None) -> list[str]:
    """A name for each board whose files are below ``root``, by default for this computer."""
    with mapped():
        return [with_options(family, root=root) for family in families(Tree(root or "/"))]


def agent_specs() -> list[str]:
    """A name for the system's agent; empty if none runs."""
    return ["agent"] if Tree().exists(SOCKET) else []


def nvidia_specs() -> list[str]:
    """A name for each card of this computer; if the driver fails, one name, with which finding a card says why."""
    try:
        with mapped():
            return [f"{FAMILY}:{index}" for index in range(Tree().cards().count())]
    except DeviceUnavailable:  # without a driver
        return []
    except DeviceError:
        return [f"{FAMILY}:0"]


# ------------------------------------------------------------------------------------------------------------- private


def _not_ours(board: Board) -> list[str]:
    """The problem of a clock that this user may not set, as a sentence; empty if the clock can be set."""
    for path in board.clock.files() if board.clock is not None else []:
        if not board.tree.writable(path):
            return [
                f"the clock can be read but not set: {path} may not be written by this user; use --device agent with "
                "an agent that runs as root"
            ]
    return []


def _why_no_sensor(device: BoardDevice) -> str:
    said = [problem for problem in device.problems if re.search(r"sensor|power", problem)]
    return f"{device.name}: " + (said or ["no power sensor was found; a meter of your own: external:COMMAND"])[0]


def _knobs(board: Mapping[str, Any], chosen: str | None) -> tuple[Knob, ...]:
    """The knobs that the board has, or those chosen among them. Raises: InputError."""
    settings = {board["knob"] or "clock_mhz": board["settings_mhz"], **board["others_mhz"]}
    knobs = {name: Knob(name, tuple(map(float, values))) for name, values in settings.items() if values}
    words = {KNOB_WORDS.get(name, str(board["unit"])): name for name in knobs}
    if chosen is None:
        return tuple(knobs.values())
    wanted = chosen.split(",")
    first = next(iter(words), "")
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(words) or first not in wanted:
        raise InputError(
            f"the knobs of {board['name']}",
            value=chosen,
            allowed=f"{first}, and beside it {', '.join(list(words)[1:]) or 'none'}" if first else "none to set",
            hint="root may set more: use --device agent",
        )
    return tuple(knob for word, name in words.items() if word in wanted for knob in [knobs[name]])


def _data_types(family: str, tree: Tree, name: str) -> frozenset[str]:
    if family == "cpu":
        return CPU_DATA_TYPES
    if family == EXTERNAL:
        return ANY_DATA_TYPES
    chip = f"{compatible(tree)} {name}"
    return next(types for pattern, types in JETSON_DATA_TYPES.items() if re.search(pattern, chip, re.IGNORECASE))
