"""``wattune.meter``: seconds, joules and watts of any block of code."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

from typing_extensions import Self

from wattune.devices import Device, Meter, MeterFigures, open_device
from wattune.errors import InputError, SensorError


class meter:  # in lower case, since it is called like a function
    """Measure seconds, energy and power of a block of code.

        with wattune.meter() as m:
            train()
        print(m.energy_j, m.power_mean_w)

    ``device``: a name as for ``--device``, by default the first usable board of this computer, or an open device. Only
    its sensor is read: no clock is set. A block that is shorter than the time over which the sensor averages has the
    power of the time before it. Figures are of the last block, and up to now while a block runs.

    Raises, when a block begins: DeviceUnavailable or SensorError if the device has no power sensor that answers;
    InputError for the name of a simulated or recorded device, on which no code runs. For each figure: InputError before
    the first block; SensorError if there is no reading yet, or if the sensor was lost on the way.
    """

    def __init__(self, device: str | Device = "auto"):
        self._device = device
        self._stack = ExitStack()
        self._meter: Meter | None = None
        self._about = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._meter = stack.enter_context(Meter(self._opened(stack), on_lost=lambda error: None))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)
        if kind is None and self._meter is not None and self._meter.lost is not None:
            warnings.warn(f"the block was not measured to its end: {self._meter.lost}", stacklevel=2)

    # ------------------------------------------------------------------------------------------------------- figures

    @property
    def seconds(self) -> float:
        """Length of the block, in seconds of the device's time."""
        return self._figures().time_s

    @property
    def energy_j(self) -> float:
        """Energy of the whole device during the block, in joules."""
        return self._figures().energy_j

    @property
    def power_mean_w(self) -> float:
        """Energy over time, in watts; of a block that took no time the mean of the readings."""
        figures = self._figures()
        return figures.energy_j / figures.time_s if figures.time_s > 0 else figures.power_mean_w

    @property
    def power_peak_w(self) -> float:
        """The highest reading of the sensor, in watts."""
        return self._figures().power_peak_w

    @property
    def samples(self) -> int:
        """Number of readings of the sensor."""
        return self._figures().readings

    def __str__(self) -> str:
        return (
            f"{self.seconds:.4g} s, {self.energy_j:.4g} J, {self.power_mean_w:.4g} W on average, "
            f"{self.power_peak_w:.4g} W at most ({self._about})"
        )

    def _figures(self) -> MeterFigures:
        if self._meter is None:
            raise InputError("the meter has not run yet", hint="with wattune.meter() as m: ...")
        if (lost := self._meter.lost) is not None:
            raise SensorError(f"the block was not measured to its end: {lost}") from lost
        return self._meter.figures()

    def _opened(self, stack: ExitStack) -> Device:
        """The device, whose sensor reads; one that is opened here is closed with the block."""
        device = self._device
        if isinstance(device, str):
            device = open_device(device)
            stack.callback(device.close)
            if not device.executes_steps:
                raise InputError(
                    "a device on virtual time, in which a block of code takes none",
                    value=self._device,
                    allowed="a real board, or an open device whose time passes inside the block",
                    hint="device = wattune.open_device(...)",
                )
        if not device.sensor.rail:
            raise SensorError(f"{device.name} has no power sensor")
        device.power_w()
        self._about = f"{device.name}, {device.kind}"
        return device
