"""Intel's discrete GPUs (Arc, Data Center), through the files of the kernel's driver xe: clock and energy counter.

Limits are in MHz. A GPU has one or several tiles, and each of them a unit that computes (the first); some have one for
video too. A limit is accepted between the GPU's lowest and highest clock, in any order.

Sources: kernel ``Documentation/gpu/xe/xe_gt_freq.rst`` and ``drivers/gpu/drm/xe/xe_guc_pc.c`` (range, steps),
``Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon`` and ``drivers/gpu/drm/xe/xe_hwmon.c`` (energy, its labels).
"""

from typing import Dict, List, Optional, Tuple

from wattune_agent.board import Clock, PowerSensor
from wattune_agent.drm import find_parts, hwmon_files
from wattune_agent.errors import AgentError, BadRequest, FileFailed
from wattune_agent.limits import FrequencyLimits, whole
from wattune_agent.rapl import RaplSensor, Zone
from wattune_agent.restoring import restore_all
from wattune_agent.settings import thinned
from wattune_agent.tree import Tree, text

__all__ = ["XeClock", "find_xe"]

FAMILY = "intel"

STEP_MHZ = 50
"""Step between settings. The hardware's is a third of it; a limit that it cannot represent would read back rounded."""

_COVERS = {"card": "the whole card", "pkg": "the GPU's package, not the whole card"}


class XeClock(Clock):
    """The clock of the units that compute: both limits of each at one frequency."""

    unit = "gpu"

    def __init__(self, tree: Tree, folder: str) -> None:
        """``folder``: the card's. Raises: Forbidden, FileFailed, BadRequest if it has no clock."""
        self._tree = tree
        self._suspended = folder + "/power/runtime_status"
        self._units = _computing(tree, folder)
        if not self._units:
            raise BadRequest("no {}/tile*/gt*/freq0".format(folder))
        self.folder = self._units[0]
        self._limits = [FrequencyLimits(tree, unit + "/min_freq", unit + "/max_freq", 1) for unit in self._units]
        low, high = whole(tree, self.folder + "/rpn_freq"), whole(tree, self.folder + "/rp0_freq")
        if not 0 < low <= high:
            raise FileFailed("{} reports a range from {} to {} MHz".format(self.folder, low, high))
        between = range((low // STEP_MHZ + 1) * STEP_MHZ, high, STEP_MHZ)
        limit = text(tree, self._limits[0].high_path)
        listed = thinned(sorted({low, high, *between}), int(limit) if limit.isdigit() else None)
        self._mhz: Dict[float, int] = {float(mhz): mhz for mhz in listed}
        self.settings_mhz = tuple(sorted(self._mhz))

    def files(self) -> List[str]:
        """Both limits of each unit."""
        return [path for limits in self._limits for path in (limits.low_path, limits.high_path)]

    def pin(self, mhz: float) -> Dict[str, str]:
        """Pin both limits of each unit; returns throttled files, as ``FrequencyLimits.pin``.

        Raises: BadRequest, NotTaken, Forbidden, FileFailed.
        """
        if mhz not in self._mhz:
            clocks = ", ".join("{:g}".format(setting) for setting in self.settings_mhz)
            raise BadRequest("the GPU has no {:g} MHz; it has {} MHz".format(mhz, clocks))
        texts: Dict[str, str] = {}
        for limits in self._limits:
            texts.update(limits.pin(self._mhz[mhz]))
        return texts

    def pinned_mhz(self) -> Optional[float]:
        """The setting that every unit's limits are at; None if one allows a range or matches no setting."""
        values = {limits.pinned() for limits in self._limits}
        value = values.pop()
        return float(value) if not values and value in self._mhz.values() and value is not None else None

    def now_mhz(self) -> Optional[float]:
        """The highest current clock of the units; 0 for units without power."""
        return float(max(whole(self._tree, unit + "/act_freq") for unit in self._units))

    def is_suspended(self) -> bool:
        """True if the kernel has suspended the GPU."""
        return text(self._tree, self._suspended) == "suspended"

    def limit_mhz(self, texts: Dict[str, str]) -> Optional[float]:
        """The lowest of the upper limits."""
        highs = [texts.get(limits.high_path, "").strip() for limits in self._limits]
        return min((float(high) for high in highs if high.isdigit()), default=None)

    def restore(self, texts: Dict[str, str]) -> None:
        """Restore the limits. Raises: NotRestored, after restoring as much as possible."""
        restore_all(self._tree, texts)


def find_xe(tree: Tree) -> Tuple[Optional[Clock], Optional[PowerSensor], List[str]]:
    """Clock and sensor of the Intel GPU, and its problems; None for what cannot be used."""
    missing = "no Intel GPU: no /sys/class/drm/card* whose driver is xe (i915 is not supported)"
    return find_parts(tree, FAMILY, missing, XeClock, _find_sensor)


def _computing(tree: Tree, folder: str) -> List[str]:
    """The folder of the clock of each tile's first unit."""
    units: Dict[str, str] = {}
    for path in tree.glob(folder + "/tile[0-9]*/gt[0-9]*/freq0"):
        units.setdefault(path.rsplit("/", 2)[0], path)
    return list(units.values())


def _find_sensor(tree: Tree, folder: str, problems: List[str]) -> Optional[PowerSensor]:
    """The counter of the card if there is one, otherwise that of the package."""
    zones: List[Zone] = []
    for path in hwmon_files(tree, folder, "energy[0-9]_input"):
        label = text(tree, path[: -len("input")] + "label") or "card"  # older kernels: one counter without a label
        zones.append(Zone(label, path, 0.0, not zones, not zones, False))
    if not zones:
        problems.append(
            "no power sensor: looked for energy*_input in {}/hwmon (a GPU that is part of a processor has none); use "
            "external:... with a meter".format(folder)
        )
        return None
    sensor = RaplSensor(tree, zones)
    sensor.covers = _COVERS.get(zones[0].name, "the GPU")
    try:
        sensor.read()
    except AgentError as error:
        problems.append(str(error))
    return sensor
