"""The first writes to a board: its lowest, a middle and its highest setting, each pinned, read back and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from wattune.devices import Device, Knob, Meter
from wattune.devices.real_time import mapped
from wattune.doctor.interpreter import own_interpreter
from wattune.doctor.load import BusyProcess, cores
from wattune.errors import DeviceError, InputError, WattuneError
from wattune.point import BatchShape, Knobs
from wattune.records import Operation, PhaseWork, StepWork
from wattune_agent.controller import Controller
from wattune_agent.errors import AgentError
from wattune_agent.slicing import measure_switch, save_switch

TRY_S = 2.0
"""Time at each setting."""
CLOCK_TOLERANCE = 0.03
"""Share by which the clock that is read may differ from the one that was pinned."""
SHAPE = BatchShape(32, 32)


@dataclass(frozen=True)
class TriedSetting:
    """One setting: the clock that was read while it was pinned, and the power; None for what could not be read.

    ``events``: kinds of what happened meanwhile. ``failure``: the reason if it could not be pinned or metered.
    """

    knobs: Knobs
    clock_mhz: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    failure: str = ""

    @property
    def is_suspended(self) -> bool:
        """True if the processor slept, as an idle GPU does: its clock then says nothing."""
        return self.clock_mhz == 0

    @property
    def is_pinned(self) -> bool:
        """False if the clock that was read is another one."""
        wanted_mhz = self.knobs.get("clock_mhz")
        if wanted_mhz is None or self.clock_mhz is None:
            return True
        return abs(self.clock_mhz - wanted_mhz) <= CLOCK_TOLERANCE * wanted_mhz

    def fields(self) -> dict[str, Any]:
        """The fields in JSON: the setting, what was read, what happened."""
        read = {key: value for key, value in vars(self).items() if key not in ("knobs", "clock_mhz", "failure")}
        return {**self.knobs, "clock_read_mhz": self.clock_mhz, **read, "failed": bool(self.failure)}


def settings_to_try(device: Device) -> tuple[Knobs, ...]:
    """The lowest, a middle and the highest setting; fewer if some are the same. Raises: InputError without a knob."""
    if not device.knobs:
        raise InputError("nothing to try: this device has no clock that can be set", value=device.name)
    shares = (0.0, 0.5, 1.0)
    return tuple(dict.fromkeys(Knobs({knob.name: _value(knob, share) for knob in device.knobs}) for share in shares))


def try_settings(device: Device, say: Callable[[str], None] = lambda text: None) -> tuple[TriedSetting, ...]:
    """Pin each of ``settings_to_try`` for ``TRY_S`` under load, read clock and power, and restore the device.

    A setting that cannot be pinned is reported in its row. Raises: DeviceError if the device cannot be restored.
    """
    settings = settings_to_try(device)
    rows: list[TriedSetting] = []
    with _load(device, settings, say) as work:
        device.events()
        for knobs in settings:
            say(f"{knobs}, {TRY_S:g} s")
            rows.append(_tried(device, knobs, work))
    return tuple(rows)


def try_switch(device: Device, say: Callable[[str], None] = lambda text: None) -> str:
    """Measure under load how quickly the clock switches between its two highest settings, save that for ``guard``, and
    restore the device. Returns: the result in words, empty if the clock is not one that guards slice.

    Raises: DeviceError if the board cannot be restored.
    """
    controller = device.controller
    if not isinstance(controller, Controller) or controller.board.is_card:
        return ""
    with mapped(), _load(device, settings_to_try(device), say):
        try:
            switch_s = measure_switch(controller, controller.board.tree.now_s)
            if switch_s is None:
                return "a switch between two clocks did not show in the clock: guards use one clock at a time"
            path = save_switch(controller.board.tree, controller.board.name, *switch_s)
        except AgentError as error:
            return f"a switch between two clocks could not be measured: {error}"
        finally:
            controller.restore()
    shows_s, takes_s = switch_s
    return (
        f"a switch between two clocks shows within {1000 * shows_s:.1f} ms and takes {1000 * takes_s:.1f} ms ({path})"
    )


def _value(knob: Knob, share: float) -> float:
    return knob.by_power[round(share * (len(knob.values) - 1))]


def _tried(device: Device, knobs: Knobs, work: Callable[[float], None]) -> TriedSetting:
    row = TriedSetting(knobs)
    was_pinned = False
    try:
        with device.at(knobs):
            was_pinned = True
            row = _measured(device, knobs, work)
    except DeviceError as error:
        if was_pinned:
            raise  # the board could not be restored
        row = TriedSetting(knobs, failure=str(error))
    return row


def _measured(device: Device, knobs: Knobs, work: Callable[[float], None]) -> TriedSetting:
    settle_s = min(device.sensor.settle_s, TRY_S / 2)
    failure = ""
    figures = None
    try:
        work(settle_s)
        with Meter(device) as meter:
            work(TRY_S - settle_s)
        figures = meter.figures()
    except DeviceError as error:
        failure = str(error)
    now = device.conditions()
    return TriedSetting(
        knobs,
        clock_mhz=device.clock_mhz(),
        power_mean_w=None if figures is None else round(figures.power_mean_w, 6),
        power_peak_w=None if figures is None else round(figures.power_peak_w, 6),
        temperature_c=now.temperature_c,
        throttled=now.throttled,
        notices=now.notices,
        events=tuple(dict.fromkeys(event.kind for event in device.events())),
        failure=failure,
    )


@contextmanager
def _load(device: Device, settings: tuple[Knobs, ...], say: Callable[[str], None]) -> Iterator[Callable[[float], None]]:
    """A call that keeps the device busy for a number of seconds of its time; a folder of files is left at rest."""
    if not device.executes_steps:
        step = _step(device, settings)

        def work(seconds: float) -> None:
            end_s = device.now_s() + seconds
            while device.now_s() < end_s:
                with device.step(step):
                    pass

        yield work
        return
    with ExitStack() as stack:
        if device.kind == "measured":
            on_gpu = device.trains_on == "gpu" and own_interpreter().gpu is not None
            try:
                load = stack.enter_context(BusyProcess(cores(), on_gpu=on_gpu))
                load.begin()
                say(f"trying with {load.words}")
            except (WattuneError, OSError) as error:
                say(f"trying at rest: {error}")
        yield device.wait


def _step(device: Device, settings: tuple[Knobs, ...]) -> StepWork:
    """A step for a device that only times it: one that a replayed table has at these settings, if it can."""
    shape, data_type = SHAPE, "fp32" if "fp32" in device.data_types else min(device.data_types)
    if (table := device.replayed_table) is not None:
        at = [{cell.shape for cell in table.measured if cell.knobs == knobs} for knobs in settings]
        shape = max(set.intersection(*at) or {cell.shape for cell in table.measured})
    work = Operation(kind="matmul", flops=4e9, bytes=4e7, kernels=50)
    return StepWork(
        samples=shape.batch,
        micro_batch_size=shape.micro,
        data_type=data_type,
        phases=(PhaseWork(phase="forward", operations=(work,)), PhaseWork(phase="backward", operations=(work,))),
        peak_memory_bytes=0,
    )
