"""A meter that the user provides: a smart plug, a bench meter, a script. It has no clock to set, so wattune chooses
the batch size alone. ``wattune_agent.meter_sensor`` reads it."""

from __future__ import annotations

from wattune.devices.base import Conditions, Sensor
from wattune.devices.host_memory import free_bytes, swapped_bytes
from wattune.devices.real_time import UncontrolledDevice, mapped, told
from wattune.errors import DeviceUnavailable, SensorError
from wattune.records import Supply
from wattune_agent.meter_sensor import MeterSensor
from wattune_agent.tree import Tree


class ExternalDevice(UncontrolledDevice):
    """This machine, with a meter that is read through a URL or a command."""

    kind = "measured"
    mode = "as it is"
    data_types = frozenset({"fp32", "tf32", "fp16", "bf16"})
    trains_on = "gpu"  # if there is one: the meter knows nothing of processors
    shares_memory = True  # assumed, since the meter cannot tell

    def __init__(self, meter: MeterSensor):
        self.name = f"external:{meter.source}"
        self._meter = meter
        self._tree = Tree()
        self.memory_bytes = told(free_bytes, self._tree)
        self.sensor = Sensor(meter.rail, period_s=meter.period_s, window_s=meter.window_s, covers=meter.covers)
        self.supply = Supply(other_w=0.0, efficiency=1.0)  # the meter is at the supply itself
        super().__init__()

    def _read_w(self) -> float:
        with mapped():
            return self._meter.read()

    def conditions(self) -> Conditions:
        """The swapped memory; a meter knows nothing else."""
        return Conditions(swapped_bytes=told(swapped_bytes, self._tree))


def open_external(rest: str, *, seed: int = 0) -> ExternalDevice:
    """Open the meter at a URL or behind a command, with its options.

    Raises: InputError; DeviceUnavailable if it gives no reading.
    """
    with mapped():
        device = ExternalDevice(MeterSensor(f"external:{rest}"))
    try:
        device.power_w()
    except SensorError as error:
        raise DeviceUnavailable(str(error)) from error
    return device
