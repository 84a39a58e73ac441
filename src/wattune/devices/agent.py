"""Real boards: a Jetson or a CPU, controlled by the agent's code in this process or by an agent that runs as root."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from wattune.devices.base import BoardController, Conditions, Knob, Sensor
from wattune.devices.real_time import RealDevice, mapped, told
from wattune.devices.spec_options import split_options, with_options
from wattune.errors import DeviceError, DeviceUnavailable, InputError, SensorError
from wattune.point import Knobs
from wattune.records import Supply
from wattune_agent.board import Board
from wattune_agent.client import AgentClient
from wattune_agent.conditions import free_bytes, swapped_bytes
from wattune_agent.controller import Controller
from wattune_agent.discovery import families, find_board
from wattune_agent.errors import AgentError
from wattune_agent.mode import mode
from wattune_agent.protocol import SOCKET
from wattune_agent.supply import load_supply
from wattune_agent.tree import Tree

CHECK_S = 1.0
"""Time between checks for another writer that changed our limits."""

FRESH_S = 1.0
"""Age up to which a reading's temperature and throttling count as current."""

DATA_TYPES = {
    r"orin|thor": frozenset({"fp32", "tf32", "fp16", "bf16"}),  # Ampere and newer
    r"": frozenset({"fp32", "fp16"}),  # Maxwell, Pascal, Volta
}
"""Data types that a Jetson's GPU computes in: pattern of the board's name -> types, the first match counts."""

CPU_DATA_TYPES = frozenset({"fp32", "bf16"})


class BoardDevice(RealDevice):
    """A board that training runs on. ``tree``: its files; None if an agent reads them.

    ``loosen`` restores the clock alone; it is called in place of the controller's ``restore`` if the power mode was
    switched, which stays switched until ``close``.
    """

    controller: BoardController
    shares_memory = True

    def __init__(self, controller: BoardController, tree: Tree | None, *, loosen: Callable[[], None] | None = None):
        self.controller = controller
        self._loosen = loosen
        self._tree = tree or Tree()
        with mapped():
            board = controller.describe()
        self.name = str(board["name"])
        self.mode = ", ".join(f"{key} {value}" for key, value in board["mode"].items()) or "as it is"
        self.kind = "measured" if board["real"] else "simulated"
        clocks_mhz = tuple(float(mhz) for mhz in board["settings_mhz"])
        self.knobs = (Knob("clock_mhz", clocks_mhz),) if clocks_mhz else ()
        self.trains_on = "gpu" if board["family"] == "jetson" else "cpu"
        self.data_types = _data_types(self.name) if self.trains_on == "gpu" else CPU_DATA_TYPES
        self.sensor = _sensor(board)
        self.problems = tuple(board["problems"])
        self.memory_bytes = told(free_bytes, self._tree)
        try:
            found = load_supply(self._tree, self.name)
            self.supply = Supply(other_w=found[0], efficiency=found[1]) if found else None
        except AgentError as error:
            self.problems += (str(error),)
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

    def current(self) -> Knobs | None:
        """The clock that is pinned; None while the board itself chooses."""
        return self._pinned

    def _apply(self, knobs: Knobs) -> None:
        with self._changing:
            with mapped():
                try:
                    self.controller.pin(
                        float(knobs["clock_mhz"])
                    )  # a failed call leaves the clock as it was found, or pinned
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
                if self._loosen is not None:
                    self._loosen()  # the controller still watches the pin: it is not called until the next one
                    return
                self.controller.restore()
            self._collect()

    def arm_guard(self, cap_w: float | None, max_temp_c: float | None = None) -> None:
        """Arm the agent's guard with these limits; do nothing without an agent or a clock.

        Raises: DeviceError.
        """
        if isinstance(self.controller, AgentClient) and self.knobs:
            with mapped():
                self.controller.guard(cap_w, max_temp_c)

    # -------------------------------------------------------------------------------------------------------- reading

    def _read_w(self) -> float:
        self._check()
        try:
            with mapped(), self._asking:
                reading = self.controller.read()
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
            for event in self.controller.check():
                self._note(str(event["kind"]), str(event["text"]))
        except AgentError as error:
            self._note("unreadable", str(error))

    def rails_w(self) -> dict[str, float]:
        """The rails of the latest reading."""
        return dict(self._reading[1]["rails_w"]) if self._reading else {}

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
            return self.controller.read()
        except AgentError:
            return None
        finally:
            self._asking.release()

    def close(self) -> None:
        """Restore the board and its mode, and release it. Raises: DeviceError."""
        self._pinned = None
        with mapped():
            self.controller.close()


# ------------------------------------------------------------------------------------------------------------- openers


def open_jetson(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open the Jetson that this computer is; ``?root=`` names a folder with its files instead, ``&mode=`` a power mode.

    Raises: DeviceUnavailable if there is none, or it has no power sensor.
    """
    return _usable(find_local("jetson", rest))


def open_cpu(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open this computer's CPU; options as for ``open_jetson``. Raises: DeviceUnavailable."""
    return _usable(find_local("cpu", rest))


def open_agent(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open the board of the agent at the socket ``rest``, by default the system's. Raises: DeviceUnavailable."""
    return _usable(find_agent(rest))


def find_local(family: str, rest: str) -> BoardDevice:
    """Find the board of ``open_jetson`` or ``open_cpu``, even without a sensor; its ``problems`` name what is missing.

    Raises: DeviceUnavailable, InputError.
    """
    before, options = split_options(rest, "?", {"root", "mode"}, device=family)
    if before:
        raise InputError(f"{family}: nothing can stand behind the name", value=before, hint=f"use --device {family}")
    tree = Tree(options.get("root", "/"))
    if not tree.exists("/"):
        raise InputError(
            "there is no such folder", value=options["root"], hint="--sysfs-root needs one with sys/ in it"
        )
    with mapped():
        board = find_board(tree, family)
        board.problems += _not_ours(board)
        controller = Controller(board)
        if "mode" not in options:
            return BoardDevice(controller, tree)
        try:
            return BoardDevice(controller, tree, loosen=_switched(controller, tree, options["mode"]))
        except BaseException:
            controller.close()
            raise


def find_agent(rest: str) -> BoardDevice:
    """Find the board of ``open_agent``, even without a sensor. Raises: DeviceUnavailable, InputError."""
    path, options = split_options(rest, "?", (), device="agent")
    assert not options
    with mapped():
        client = AgentClient(path or SOCKET)
        try:
            return BoardDevice(client, None)
        except BaseException:
            client.close()
            raise


def local_specs(root: str | None = None) -> list[str]:
    """A name for each board whose files are below ``root``, by default for this computer."""
    with mapped():
        return [with_options(family, root=root) for family in families(Tree(root or "/"))]


def agent_specs() -> list[str]:
    """A name for the system's agent; empty if none runs."""
    return ["agent"] if Tree().exists(SOCKET) else []


# ------------------------------------------------------------------------------------------------------------- private


def _usable(device: BoardDevice) -> BoardDevice:
    """The device if its sensor reads. Raises: DeviceUnavailable."""
    try:
        if not device.sensor.rail:
            raise DeviceUnavailable(_why_no_sensor(device))
        try:
            device.power_w()
        except SensorError as error:
            raise DeviceUnavailable(str(error)) from error
    except BaseException:
        with suppress(DeviceError):
            device.close()
        raise
    return device


def _not_ours(board: Board) -> list[str]:
    """The problem of a clock that this user may not set, as a sentence; empty if the clock can be set."""
    for path in board.clock.files() if board.clock is not None else []:
        if not board.tree.writable(path):
            return [
                f"the clock can be read but not set: {path} may not be written by this user; use --device agent with "
                "an agent that runs as root, or install wattune's udev rule"
            ]
    return []


def _switched(controller: Controller, tree: Tree, wanted: str) -> Callable[[], None]:
    """Switch the power mode; return a call that restores the clock's limits to those of the new mode."""
    if not wanted.isdecimal():
        raise InputError("not a power mode", value=wanted, allowed="nvpmodel's number of it, such as 0")
    controller.switch_mode(int(wanted))
    board = controller.board
    board.mode = mode(tree, board.family)
    clock = board.clock
    if clock is None:
        return lambda: None
    limits = {path: tree.read(path) for path in clock.files()}
    return lambda: clock.restore(limits)


def _why_no_sensor(device: BoardDevice) -> str:
    said = [problem for problem in device.problems if re.search(r"sensor|power", problem)]
    return f"{device.name}: " + (said or ["no power sensor was found; a meter of your own: external:COMMAND"])[0]


def _sensor(board: Mapping[str, Any]) -> Sensor:
    if not board["rail"]:
        return Sensor(rail="")
    return Sensor(
        rail=str(board["rail"]),
        resolution_w=float(board["resolution_w"]),
        period_s=float(board["period_s"]),
        window_s=float(board["window_s"]),
        lag_s=float(board["lag_s"]),
        covers=str(board["covers"]),
    )


def _data_types(name: str) -> frozenset[str]:
    return next(types for pattern, types in DATA_TYPES.items() if re.search(pattern, name, re.IGNORECASE))
