"""The files of power monitors, as small folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.agent_trees import TimedTree, link, put

__all__ = ["TimedTree", "hwmon_chip", "iio_chip", "link", "put"]


def hwmon_chip(
    root: Path, rails: Sequence[tuple[str, float, float]], *, chip: str = "1-0040", number: int = 1, **files: str
) -> str:
    """An INA3221 as the kernel's hwmon driver shows it; rails are (label, mV, mA). Its folder."""
    device = f"/sys/devices/platform/c240000.i2c/i2c-{chip[0]}/{chip}"
    folder = f"{device}/hwmon/hwmon{number}"
    texts = {"in7_label": "sum of shunt voltages", "in7_input": "120"}
    for channel, (label, millivolts, milliamps) in enumerate(rails, 1):
        texts |= {f"in{channel}_label": label} if label else {}
        texts |= {f"in{channel}_input": f"{millivolts:g}", f"curr{channel}_input": f"{milliamps:g}"}
        texts[f"in{channel + 3}_input"] = "40"  # the shunt's voltage
    _put_chip(root, chip, "ina3221", device, folder, {**texts, **files})
    link(root, f"/sys/class/hwmon/hwmon{number}", folder)
    link(root, f"{folder}/device", device)
    return folder


def iio_chip(
    root: Path, rails: Sequence[tuple[str, float]], *, chip: str = "6-0040", number: int = 0, **files: str
) -> str:
    """An INA3221 as NVIDIA's iio driver of JetPack 4 shows it; rails are (name, mW). Its folder."""
    device = f"/sys/devices/7000c400.i2c/i2c-{chip[0]}/{chip}"
    folder, texts = f"{device}/iio:device{number}", {}
    for channel, (name, milliwatts) in enumerate(rails):
        texts |= {f"rail_name_{channel}": name, f"in_power{channel}_input": f"{milliwatts:g}"}
        texts |= {f"in_voltage{channel}_input": "5000", f"in_current{channel}_input": f"{milliwatts / 5:g}"}
        texts[f"warn_current_limit_{channel}"] = "32760 ma"
    _put_chip(root, chip, "ina3221x", device, folder, {**texts, **files})
    link(root, f"/sys/bus/iio/devices/iio:device{number}", folder)
    return folder


def _put_chip(root: Path, chip: str, driver: str, device: str, folder: str, files: Mapping[str, str]) -> None:
    put(root, f"{device}/name", f"{driver}\n")
    for name, text in {"name": driver, **files}.items():
        put(root, f"{folder}/{name}", f"{text}\n")
    link(root, f"/sys/bus/i2c/devices/{chip}", device)
    link(root, f"/sys/bus/i2c/drivers/{driver}/{chip}", device)
