"""The files of power monitors, as small folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.agent_trees import TimedTree, link, put

__all__ = ["TimedTree", "hwmon_chip", "iio_chip", "link", "put"]


def hwmon_chip(
    root: Path,
    rails: Sequence[tuple[str, float, float]],
    *,
    chip: str = "1-0040",
    number: int = 1,
    files: Mapping[str, str] | None = None,
) -> str:
    """An INA3221 as the kernel's hwmon driver shows it; rails are (label, mV, mA). Its folder."""
    device = f"/sys/devices/platform/c240000.i2c/i2c-{chip[0]}/{chip}"
    folder = f"{device}/hwmon/hwmon{number}"
    put(root, f"{device}/name", "ina3221\n")
    put(root, f"{folder}/name", "ina3221\n")
    for channel, (label, millivolts, milliamps) in enumerate(rails, 1):
        if label:
            put(root, f"{folder}/in{channel}_label", f"{label}\n")
        put(root, f"{folder}/in{channel}_input", f"{millivolts:g}\n")
        put(root, f"{folder}/curr{channel}_input", f"{milliamps:g}\n")
        put(root, f"{folder}/in{channel + 3}_input", "40\n")  # the shunt's voltage
    put(root, f"{folder}/in7_label", "sum of shunt voltages\n")
    put(root, f"{folder}/in7_input", "120\n")
    for name, text in (files or {}).items():
        put(root, f"{folder}/{name}", text)
    link(root, f"/sys/bus/i2c/devices/{chip}", device)
    link(root, f"/sys/bus/i2c/drivers/ina3221/{chip}", device)
    link(root, f"/sys/class/hwmon/hwmon{number}", folder)
    link(root, f"{folder}/device", device)
    return folder


def iio_chip(
    root: Path,
    rails: Sequence[tuple[str, float]],
    *,
    chip: str = "6-0040",
    number: int = 0,
    files: Mapping[str, str] | None = None,
) -> str:
    """An INA3221 as NVIDIA's iio driver of JetPack 4 shows it; rails are (name, mW). Its folder."""
    device = f"/sys/devices/7000c400.i2c/i2c-{chip[0]}/{chip}"
    folder = f"{device}/iio:device{number}"
    put(root, f"{device}/name", "ina3221x\n")
    put(root, f"{folder}/name", "ina3221x\n")
    for channel, (name, milliwatts) in enumerate(rails):
        put(root, f"{folder}/rail_name_{channel}", f"{name}\n")
        put(root, f"{folder}/in_power{channel}_input", f"{milliwatts:g}\n")
        put(root, f"{folder}/in_voltage{channel}_input", "5000\n")
        put(root, f"{folder}/in_current{channel}_input", f"{milliwatts / 5:g}\n")
        put(root, f"{folder}/warn_current_limit_{channel}", "32760 ma\n")
    for name, text in (files or {}).items():
        put(root, f"{folder}/{name}", text)
    link(root, f"/sys/bus/i2c/devices/{chip}", device)
    link(root, f"/sys/bus/i2c/drivers/ina3221x/{chip}", device)
    link(root, f"/sys/bus/iio/devices/iio:device{number}", folder)
    return folder
