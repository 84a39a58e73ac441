"""AMD's GPUs, through the files of the kernel's driver amdgpu: the shader clock and the power of the chip.

The clock is pinned by the one way that every card has: performance level "manual", and then a single level of
``pp_dpm_sclk``. Which levels are selected cannot be read, but any other performance level selects all again, so that
the performance level is all that has to be restored. One that is "manual" already is refused for this reason.

Since RDNA, and on APUs, the clock moves freely between a lowest and a highest value. The list then has only these two
as levels, and between them the clock of the moment. Others could be set by ``pp_od_clk_voltage``, which needs
overclocking to be switched on for the whole driver: it is not used.

Sources: kernel ``Documentation/gpu/amdgpu/thermal.rst`` and ``drivers/gpu/drm/amd/pm/amdgpu_pm.c`` (files, units,
levels), and under ``swsmu/`` ``smu11/navi10_ppt.c``, ``smu13/smu_v13_0_7_ppt.c``, ``smu12/renoir_ppt.c`` (lists of two
and three lines).
"""

import re
from typing import Dict, List, Optional, Tuple

from wattune_agent.board import Clock, PowerSensor
from wattune_agent.drm import find_parts, hwmon_files
from wattune_agent.errors import AgentError, BadRequest, NotTaken
from wattune_agent.rails import Rail, RailSensor
from wattune_agent.restoring import restore_all
from wattune_agent.tree import Tree, text

__all__ = ["AmdClock", "find_amd"]

FAMILY = "amd"

AVERAGE_S = 1.0
"""Averaging time of ``power1_average``: the driver does not document it; a longer one hides no excess over a cap."""

STEP_W = 1.0
"""Resolution: the firmware of most cards reports whole watts."""

_LEVEL = re.compile(r"^\s*([0-9]+):\s*([0-9]+)\s*mhz", re.IGNORECASE | re.MULTILINE)  # "1: 1250Mhz *"; not "S: 19Mhz *"
_NOW = re.compile(r":\s*([0-9]+)\s*mhz\s*\*", re.IGNORECASE)


class AmdClock(Clock):
    """The shader clock: one level of the driver's list."""

    unit = "gpu"

    def __init__(self, tree: Tree, folder: str) -> None:
        """``folder``: the card's. Raises: Forbidden, FileFailed, BadRequest if it lists no level."""
        self.folder = folder
        self._tree = tree
        self._levels = folder + "/pp_dpm_sclk"
        self._switch = folder + "/power_dpm_force_performance_level"
        listed = [(int(level), float(mhz)) for level, mhz in _LEVEL.findall(tree.read(self._levels))]
        if len(listed) == 3:
            del listed[1]  # the clock of the moment
        self._level: Dict[float, int] = {mhz: level for level, mhz in reversed(listed)}
        if not self._level:
            raise BadRequest("{} lists no level".format(self._levels))
        tree.read(self._switch)
        self.settings_mhz = tuple(sorted(self._level))
        self._monitor = next(iter(hwmon_files(tree, folder, "freq1_input")), "")
        self._pinned_mhz: Optional[float] = None

    def files(self) -> List[str]:
        """The performance level. The selected levels are not among them: no program can read them."""
        return [self._switch]

    def pin(self, mhz: float) -> Dict[str, str]:
        """Select the level alone; returns no throttled files, since the driver does not show any.

        Raises: BadRequest, NotTaken, Forbidden, FileFailed.
        """
        if mhz not in self._level:
            clocks = ", ".join("{:g}".format(setting) for setting in self.settings_mhz)
            raise BadRequest("the GPU has no {:g} MHz; it has {} MHz".format(mhz, clocks))
        self._tree.check_writable(self._levels)
        if self._tree.read(self._switch) != "manual":
            self._pinned_mhz = None
            self._tree.write(self._switch, "manual")
            now = self._tree.read(self._switch)
            if now != "manual":
                raise NotTaken("{} was written manual, but reads {}".format(self._switch, now[:40]))
        self._tree.write(self._levels, str(self._level[mhz]))
        self._pinned_mhz = mhz
        return {}

    def pinned_mhz(self) -> Optional[float]:
        """The level that this object selected, or the one of a performance level that allows only one."""
        level = self._tree.read(self._switch)
        return self._pinned_mhz if level == "manual" else self._only_mhz(level)

    def now_mhz(self) -> Optional[float]:
        """The current clock, as the monitor reports it, otherwise the list; None if the GPU sleeps."""
        if self.is_suspended():
            return None  # a read would wake it, or be refused
        if self._monitor:
            return self._tree.read_number(self._monitor) * 1e-6
        now = _NOW.search(self._tree.read(self._levels))
        return float(now.group(1)) if now is not None else None

    def is_suspended(self) -> bool:
        """True if the kernel has suspended the GPU."""
        return text(self._tree, self.folder + "/power/runtime_status") == "suspended"

    def limit_mhz(self, texts: Dict[str, str]) -> Optional[float]:
        """The lowest clock if the performance level allows no other, otherwise the highest."""
        level = texts.get(self._switch, "").strip()
        return (self._only_mhz(level) or self.settings_mhz[-1]) if level else None

    def restore(self, texts: Dict[str, str]) -> None:
        """Restore the performance level, which selects all levels again. Raises: NotRestored."""
        restore_all(self._tree, texts)

    def _only_mhz(self, level: str) -> Optional[float]:
        if level in ("low", "profile_min_sclk"):
            return self.settings_mhz[0]
        return self.settings_mhz[-1] if level == "high" else None


def find_amd(tree: Tree) -> Tuple[Optional[Clock], Optional[PowerSensor], List[str]]:
    """Clock and sensor of the AMD GPU with the most memory, and its problems; None for what cannot be used."""
    missing = "no AMD GPU: no /sys/class/drm/card* whose driver is amdgpu"
    return find_parts(tree, FAMILY, missing, AmdClock, _find_sensor)


def _find_sensor(tree: Tree, folder: str, problems: List[str]) -> Optional[PowerSensor]:
    """The average, otherwise the value of the moment: most cards have one of the two."""
    failure = ""
    for name, window_s in (("power1_average", AVERAGE_S), ("power1_input", 0.0)):
        for path in hwmon_files(tree, folder, name):
            rail = Rail(name, [path], 1e-6, resolution_w=STEP_W, window_s=window_s)  # microwatts
            sensor = RailSensor(tree, [rail], rail)
            sensor.covers = "the GPU's chip; if it is part of a processor, the processor"
            try:
                sensor.read()
            except AgentError as error:
                failure = failure or str(error)
                continue
            return sensor
    problems.append(
        "no power sensor: {}; use external:... with a meter".format(
            failure or "looked for power1_average and power1_input in {}/hwmon".format(folder)
        )
    )
    return None
