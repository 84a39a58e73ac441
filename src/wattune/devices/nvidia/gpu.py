"""NVIDIA GPUs: the power limit or locked graphics clocks, and the GPU's own reading of its power.

The driver does not tell which clock was locked before, so restoring a GPU means: no lock, even if another program
had locked it. The power limit is restored to its former value. Both need root. Memory clocks and modes are
never touched.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from wattune.devices.base import Conditions, Knob, Leftover, Sensor
from wattune.devices.nvidia.cards import check_visible, data_types
from wattune.devices.nvidia.claims import Held, usual_folder
from wattune.devices.nvidia.gpu_power import find_reader
from wattune.devices.nvidia.gpu_restore import bring_back
from wattune.devices.nvidia.nvml import POWER_LIMIT, Gpu, count_gpus
from wattune.devices.real_time import RealDevice
from wattune.devices.spec_options import split_options
from wattune.errors import DeviceError, DeviceUnavailable, InputError, SensorError, WattuneError
from wattune.point import Knobs, knob_text
from wattune_agent.nvml import may_administer
from wattune_agent.settings import grid, thinned
from wattune_agent.signals import call_before_end, forget

SETTLE_S = 2.0
"""Time within which a clock must have come down to the one that it was locked to."""

TOLERANCE_MHZ = 15.0
"""Tolerance of a locked clock: one step of the driver's list, since the driver may round."""

TOLERANCE_W = 0.5

CHECK_S = 1.0
"""Time between checks that the setting is still in place."""

MOST_ANSWERS = 5
"""Most times that a setting is set again after another writer changed it."""

ACTUATORS: dict[str, str | None] = {"clock_mhz": "clock_mhz", "power_limit_w": "power_limit_w", "none": None}
"""Value of the option ``?actuator=`` -> the knob that is set."""


class NvidiaDevice(RealDevice):
    """One GPU, by its index or UUID. ``knob``: the knob that is set, None for none.

    Raises: DeviceUnavailable without a driver; InputError if the GPU or the knob does not exist.
    """

    kind = "measured"
    trains_on = "gpu"

    def __init__(self, which: str, knob: str | None = "clock_mhz", *, state: Path | None = None):
        self._gpu = gpu = Gpu(which)
        try:
            self.name = gpu.name
            self.uuid = gpu.uuid
            self._reader = find_reader(gpu)
            self.sensor = self._reader.sensor if self._reader else Sensor(rail="")
            self.knobs = () if knob is None else (Knob(knob, _values(gpu, knob)),)
            self._knob = knob
            self.data_types = data_types(gpu.capability)
            self.memory_bytes = gpu.free_bytes()
            self.highest_w = max(_limits_w(gpu), default=None)
            modes = gpu.modes()
            if knob != "power_limit_w" and (limit_w := gpu.limit_w()) is not None:
                modes["power limit"] = f"{limit_w:g} W"
            self.mode = ", ".join(f"{name} {value}" for name, value in modes.items())
            self.problems = _problems(gpu, self)
        except BaseException:
            gpu.close()
            raise
        self._held = Held(state or usual_folder(), gpu.uuid)
        self.leftover = Leftover("gpu", str(self._held.path.parent))
        self._present: Knobs | None = None
        self._checked_s = 0.0
        self._answered = 0
        self._changing = threading.RLock()
        super().__init__()

    # --------------------------------------------------------------------------------------------------------- knobs

    def current(self) -> Knobs | None:
        """The clock or limit that was set; None while the driver chooses."""
        return self._present

    def _apply(self, knobs: Knobs) -> None:
        (value,) = knobs.values()
        with self._changing:
            if self._held.parent is not None:
                raise DeviceUnavailable(
                    f"process {self._held.parent} controls {self.name}; a forked child of it cannot"
                )
            self._hold()
            try:
                self._set(value)
            except DeviceUnavailable:
                if self._present is None:
                    self._release()  # it was refused, so nothing has to be restored
                raise
            if self._knob == "clock_mhz":
                self._await_clock(value)
            elif not self._is_set(value):
                raise DeviceError(f"{self.name}: the power limit is {self._gpu.limit_w()} W, and not {value:g} W")
            if knobs != self._present:
                self._stuck.change()
            self._present = knobs

    def _set(self, value: float) -> None:
        if self._knob == "clock_mhz":
            self._gpu.lock_clock(int(value))
        else:
            self._gpu.set_limit(value)

    def _is_set(self, value: float) -> bool:
        if self._knob == "clock_mhz":  # an upper bound only: an idle GPU may well be slower
            now_mhz = self._gpu.clock_mhz()
            return now_mhz is None or now_mhz <= value + TOLERANCE_MHZ
        limit_w = self._gpu.limit_w()
        return limit_w is not None and abs(limit_w - value) <= TOLERANCE_W

    def _snapshot(self) -> object:
        return self._present

    def _restore(self, snapshot: object) -> None:
        if self._held.parent is not None:
            return
        if isinstance(snapshot, Knobs):
            self._apply(snapshot)
            return
        with self._changing:
            kept = self._held.read() if self._held.mine else None
            if kept is not None:
                bring_back(self._gpu, kept)
            self._release()
            self._present = None

    def _hold(self) -> None:
        """Before the first change, claim the GPU, restore what a dead process left, and save the present state."""
        if self._present is not None:
            return
        self._held.claim()
        try:
            left = self._held.read()
            if left is not None:
                self._note("left behind", f"{self.name}: {bring_back(self._gpu, left)}, left by process {left['pid']}")
            limit_w = self._gpu.limit_w() if self._knob == "power_limit_w" else None
            if limit_w is None and self._knob == "power_limit_w":
                raise DeviceError(f"{self.name} does not report its power limit, so it could not be restored")
            self._held.keep({"uuid": self.uuid, "name": self.name, "actuator": self._knob, "limit_w": limit_w})
            call_before_end(self._end)
        except BaseException:
            self._held.let_go()
            raise

    def _release(self) -> None:
        self._held.release()
        forget(self._end)

    def _end(self) -> None:
        """Restore before the process ends, without raising, since a signal may come at any point."""
        try:
            self._restore(None)
        except WattuneError as error:
            sys.stderr.write(f"wattune: {self.name} is not as it was ({error}); `wattune restore` tries it again\n")

    def _await_clock(self, mhz: float) -> None:
        until_s = time.monotonic() + SETTLE_S
        while not self._is_set(mhz):
            if time.monotonic() > until_s:
                raise DeviceError(
                    f"{self.name} runs at {self._gpu.clock_mhz()} MHz {SETTLE_S:g} s after it was locked to {mhz:g} MHz"
                )
            time.sleep(0.01)

    def _check(self) -> None:
        """Check about once a second that the setting is still in place; if not, set it again, a few times."""
        now_s = self.now_s()
        if self._present is None or now_s - self._checked_s < CHECK_S or not self._changing.acquire(blocking=False):
            return  # the thread that holds the lock is changing it
        try:
            self._checked_s = now_s
            if self._present is None:
                return
            ((name, value),) = self._present.items()
            if self._is_set(value):
                return
            again = self._answered < MOST_ANSWERS
            self._answered += 1
            if self._answered > MOST_ANSWERS + 1:
                return
            self._note(
                "another writer",
                f"{self.name} is no longer at {knob_text(name, value)}: "
                + ("set again" if again else f"left so, after {MOST_ANSWERS} times"),
            )
            if again:
                self._set(value)
        finally:
            self._changing.release()

    # -------------------------------------------------------------------------------------------------------- reading

    def _read_w(self) -> float:
        if self._reader is None:
            raise SensorError(f"{self.name} has no power sensor")
        with suppress(DeviceError):
            self._check()
        try:
            return self._reader.read_w()
        except SensorError:
            raise
        except DeviceError as error:
            raise SensorError(str(error)) from error

    def clock_mhz(self) -> float | None:
        """The graphics clock."""
        with suppress(DeviceError):
            return self._gpu.clock_mhz()
        return None

    def versions(self) -> dict[str, str]:
        """The driver's version."""
        return {"driver": self._gpu.driver}

    def conditions(self) -> Conditions:
        """Temperature, what throttles the clock, and if its power limit holds it; None and empty without an answer."""
        try:
            held_back = self._gpu.held_back()
            # A limit that was asked for is not even worth a notice.
            is_noticed = POWER_LIMIT in held_back and self._knob != "power_limit_w"
            return Conditions(
                temperature_c=self._gpu.temperature_c(),
                throttled=tuple(reason for reason in held_back if reason != POWER_LIMIT),
                notices=(POWER_LIMIT,) if is_noticed else (),
            )
        except DeviceError:
            return Conditions()

    def close(self) -> None:
        """Restore the GPU, and release it and the driver. Raises: DeviceError; the snapshot of what could not be
        restored stays on disk."""
        try:
            self._restore(None)
        finally:
            forget(self._end)
            self._held.let_go()
            self._gpu.close()


def open_nvidia(rest: str, *, seed: int = 0) -> NvidiaDevice:
    """Open the GPU "0", "GPU-UUID" or "" (the first); ``?actuator=`` power_limit_w, clock_mhz or none behind it.

    By default the knob is the power limit, which the card keeps by choosing its clocks itself; on a card without one,
    the locked clock.

    Raises: InputError, DeviceUnavailable.
    """
    device = find_nvidia(rest)
    try:
        if device._reader is None:
            raise DeviceUnavailable(device.problems[0])
        check_visible(device.uuid, device._gpu.names())
    except BaseException:
        device.close()
        raise
    return device


def find_nvidia(rest: str) -> NvidiaDevice:
    """Find the GPU of ``open_nvidia``, even one that cannot be used; its ``problems`` say why."""
    which, options = split_options(rest, "?", {"actuator"}, device="nvidia")
    name = options.get("actuator", "clock_mhz")
    if name not in ACTUATORS:
        raise InputError("nvidia: no such actuator", value=name, allowed=", ".join(ACTUATORS))
    device = NvidiaDevice(which or "0", ACTUATORS[name] if options else _default(which or "0"))
    return device


def nvidia_specs() -> list[str]:
    """A name for each GPU of this computer. Raises: DeviceError if the driver fails."""
    return [f"nvidia:{index}" for index in range(count_gpus())]


def _default(which: str) -> str | None:
    gpu = Gpu(which)
    try:
        if len(_limits_w(gpu)) > 1:
            return "power_limit_w"
        return "clock_mhz" if gpu.clocks_mhz() or gpu.highest_mhz() else None
    finally:
        gpu.close()


def _values(gpu: Gpu, knob: str) -> tuple[float, ...]:
    if knob == "clock_mhz":
        highest_mhz = gpu.highest_mhz()
        listed = gpu.clocks_mhz() or (grid(highest_mhz) if highest_mhz is not None else ())
        if not listed:
            raise InputError(f"{gpu.name} has no clocks that can be locked", hint="use ?actuator=power_limit_w or none")
        return tuple(float(mhz) for mhz in thinned(listed))
    whole_w = _limits_w(gpu)
    if not whole_w:
        raise InputError(f"{gpu.name} has no power limit that can be set", hint="use ?actuator=clock_mhz or none")
    return tuple(float(watts) for watts in thinned(whole_w))


def _limits_w(gpu: Gpu) -> range:
    """The power limits that the card takes, in whole watts."""
    lowest_w, highest_w = gpu.limits_w() or (1.0, 0.0)
    return range(math.ceil(lowest_w), math.floor(highest_w) + 1)


def _problems(gpu: Gpu, device: NvidiaDevice) -> tuple[str, ...]:
    problems = []
    if device._reader is None:
        problems.append(
            f"{gpu.name} tells no power (looked for the energy counter, the instantaneous field and the averaged "
            "power); on a Jetson use --device jetson, otherwise a meter of your own by --device external:COMMAND"
        )
    if device.knobs and not may_administer():
        problems.append(
            "clocks and power limits need CAP_SYS_ADMIN: run as root (a container also needs --cap-add SYS_ADMIN), or "
            "leave them alone with ?actuator=none"
        )
    if "clock_mhz" in [knob.name for knob in device.knobs] and not gpu.clocks_mhz():
        problems.append(
            f"the driver lists no clocks of {gpu.name}: the settings are a grid up to its highest one, which was never "
            "tried on such a card"
        )
    if gpu.divided():
        problems.append("the GPU is divided into instances (MIG): its power is that of all of them together")
    return tuple(problems)
