"""The power monitors of a Jetson: INA3221 chips (three rails each), behind NVIDIA's iio driver up to JetPack 4 and the
kernel's hwmon driver since JetPack 5; and the single-rail INA chips of carrier boards (INA238 on the AGX Thor kit).

Sources: L4T driver drivers/iio/meter/ina3221.c, kernel Documentation/hwmon/ina3221.rst and ina238.rst,
rbonghi/jetson_stats jtop/core/power.py, energymon/energymon jetson/JetsonPowerRails.md.
"""

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from wattune_agent.board import PowerSensor
from wattune_agent.errors import AgentError
from wattune_agent.rails import Rail, RailSensor, whole_of
from wattune_agent.tree import Tree, first_text, real, text
from wattune_agent.tree import number as number_in

SHUNT_STEP_V = 40e-6
"""One step of the shunt's converter (datasheet of the INA3221)."""

USUAL_SHUNT_OHM = 0.005
"""The shunt if the driver does not report it: on the Jetson Nano, power moves in steps of 40 mW at 5 V."""

USUAL_V = 5.0

CONTINUOUS_S = 0.422
"""The iio driver's continuous mode: 64 averages of three channels of 1.1 ms for each of two voltages."""

TRIGGERED_S = 0.001
"""... and its triggered mode: one conversion of 140 us for each voltage on each reading."""

HWMON_S = 0.0066
"""The hwmon driver if it does not report its interval: one sample, three channels of 1.1 ms for each voltage."""

SINGLE_S = 0.0505
"""The INA238's driver, which does not report it: 16 averages of 1.052 ms for each of its three channels."""

_I2C_ID = re.compile(r"^\d+-00[0-9a-f]{2}$")
_SINGLE = re.compile(r"^ina2(?:09|19|20|26|28|30|31|37|38|60)$")
_LOOKED = "/sys/class/hwmon, /sys/bus/iio/devices"

_IIO = ("power", "voltage", "current")


class _Channel(NamedTuple):
    """Files whose product, multiplied by ``to_w``, is the power; the file of the voltage, empty for a chip whose
    resolution is not known; files that may hold the label."""

    number: int
    files: List[str]
    to_w: float
    volts: str
    labels: List[str]


def find_rails(tree: Tree) -> Tuple[Optional[PowerSensor], List[str]]:
    """The board's rails as one sensor, and its problems; without a rail that is known to be the whole module, what was
    looked for and what would help."""
    rails: Dict[str, Rail] = {}
    folders = sorted(_folders(tree).items())
    for chip, folder in folders:
        for rail in _rails(tree, chip, folder):
            if rail.name in rails:
                rail.name = "{} ({})".format(rail.name, chip)
            rails[rail.name] = rail
    if not rails:
        return None, [_missing(bool(folders))]
    whole = whole_of(list(rails.values()))
    if whole is None:
        return None, [
            "no power sensor: none of the rails that can be read carries the whole module ({}), and its parts do not "
            "stand for it; use --meter external:... with a meter".format(", ".join(rails))
        ]
    sensor = RailSensor(tree, list(rails.values()), *whole)
    problems = sensor.check()
    try:
        sensor.read()
    except AgentError as error:
        problems.append(str(error))
    return sensor, problems


def _missing(has_chip: bool) -> str:
    if has_chip:
        return (
            "an INA power monitor is there, but none of its channels can be read: the driver's files are missing or "
            "every channel is marked as not connected; use --meter external:... instead"
        )
    return (
        "no power sensor: looked for an INA3221 in {}; load its driver (modprobe ina3221), give the container /sys, or "
        "use --meter external:... with a meter (a Jetson Nano 2GB and some carrier boards have none)".format(_LOOKED)
    )


# --------------------------------------------------------------------------------------------------------------- chips


def _folders(tree: Tree) -> Dict[str, str]:
    """Chip -> the folder with its channels. If both drivers' files exist, the folder with more channels wins, and iio's
    if they are equal, as it reports power."""
    best: Dict[str, Tuple[int, str]] = {}
    for pattern in ("/sys/class/hwmon/*", "/sys/bus/iio/devices/*"):
        for folder in tree.glob(pattern):
            name = text(tree, folder + "/name").lower()
            if "ina3221" not in name and not _SINGLE.match(name):
                continue
            path = real(tree, folder)
            chip = _i2c_id(path) or _i2c_id(real(tree, folder + "/device")) or os.path.basename(path)
            count = len(list(_channels(tree, path)))
            if count >= best.get(chip, (0, ""))[0]:
                best[chip] = count, path
    return {chip: path for chip, (_, path) in best.items()}


def _i2c_id(path: str) -> str:
    for part in reversed(path.split("/")):
        if _I2C_ID.match(part):
            return part
    return ""


# ------------------------------------------------------------------------------------------------------------ channels


def _channels(tree: Tree, folder: str) -> Iterator[_Channel]:
    """The channels with the files for their power: of the iio driver, of a single-rail chip, of the hwmon driver."""
    places = ["{}/rail_name_{}", "{}/device/of_node/channel@{}/ti,rail-name", "{}/of_node/channel@{}/ti,rail-name"]
    for number in range(4):
        labels = [place.format(folder, number) for place in places]
        power, volts, current = ("{}/in_{}{}_input".format(folder, what, number) for what in _IIO)
        if tree.exists(power):
            yield _Channel(number, [power], 1e-3, volts, labels)
        elif tree.exists(volts) and tree.exists(current):
            yield _Channel(number, [volts, current], 1e-6, volts, labels)
    if _SINGLE.match(text(tree, folder + "/name").lower()):
        labels = [folder + "/in1_label", folder + "/power1_label", folder + "/label"]
        power, volts, current = folder + "/power1_input", folder + "/in1_input", folder + "/curr1_input"
        if tree.exists(power) or tree.exists(current):
            yield _Channel(1, [power] if tree.exists(power) else [volts, current], 1e-6, "", labels)
        return
    # in4 to in6 are shunt voltages, in7 is their sum (Documentation/hwmon/ina3221.rst).
    for number in range(1, 4):
        volts, current = "{}/in{}_input".format(folder, number), "{}/curr{}_input".format(folder, number)
        labels = ["{}/in{}_label".format(folder, number), "{}/curr{}_label".format(folder, number)]
        # The kernel's device tree counts inputs from 0, hwmon counts from 1.
        for node in ("/device/of_node", "/of_node", "/../../of_node"):
            labels.append("{}{}/input@{}/label".format(folder, node, number - 1))
        if tree.exists(volts) and tree.exists(current):
            yield _Channel(number, [volts, current], 1e-6, volts, labels)


def _rails(tree: Tree, chip: str, folder: str) -> Iterator[Rail]:
    window_s = _window_s(tree, folder)
    for number, files, to_w, volts, labels in _channels(tree, folder):
        name = first_text(tree, labels)
        is_off = text(tree, "{}/in{}_enable".format(folder, number)) == "0"  # it answers with an error
        if not is_off and name.upper() not in ("NC", "N/C", "NOT CONNECTED", "NOT_CONNECTED"):
            shunt_ohm = (number_in(tree, "{}/shunt{}_resistor".format(folder, number)) or 0.0) * 1e-6
            now_v = (number_in(tree, volts) or 1e3 * USUAL_V) * 1e-3
            step_w = SHUNT_STEP_V / (shunt_ohm or USUAL_SHUNT_OHM) * now_v if volts else 0.0
            name = name or "{} channel {}".format(chip, number)
            yield Rail(name, files, to_w, resolution_w=step_w, window_s=window_s)


def _window_s(tree: Tree, folder: str) -> float:
    """The chip's averaging time, which is also the period of its values."""
    if "/iio" in folder or tree.exists(folder + "/rail_name_0"):
        return TRIGGERED_S if text(tree, folder + "/running_mode") == "0" else CONTINUOUS_S
    interval_ms = number_in(tree, folder + "/update_interval") or 0.0
    if 0.0 < interval_ms < 60e3:
        return interval_ms * 1e-3
    if text(tree, folder + "/name").lower() == "ina238":
        return SINGLE_S
    return HWMON_S * max(1.0, number_in(tree, folder + "/samples") or 1.0)
