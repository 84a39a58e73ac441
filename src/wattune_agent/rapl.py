"""RAPL: energy counters of x86 processors, as power over the time between two reads.

Zones: packages are summed, with the separate memory (dram) zones; core and uncore are inside a package; psys, the whole
platform, counts only if it is not less than the packages (on many laptops it is not wired), which the first reading
decides permanently.

Sources: kernel Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c; since Linux 5.10
energy_uj is readable by root alone (commit 949dd0104c49, CVE-2020-8694).
"""

import threading
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Set, Tuple

from wattune_agent.board import PowerSensor, Reading
from wattune_agent.errors import AgentError, FileFailed, Forbidden, NoReading
from wattune_agent.rails import HIGHEST_W
from wattune_agent.tree import Tree, number, real, text

__all__ = ["RaplSensor", "find_rapl"]

WINDOW_S = 0.1
"""A reading is the mean over at least this time, even with several readers; the first one waits for it."""

EARLY = 0.9
"""Share of the window that is enough, since a reader with a period of 0.1 s is sometimes a little early."""

SHORTEST_S = 0.002
"""Two reads closer than this give the same reading: the counter may not have moved."""

LONGEST_S = 2.5
"""After this long without a read, the mean since then says little about now: a new window begins."""

PERIOD_S = 0.001

Zone = NamedTuple(
    "Zone", [("name", str), ("energy", str), ("range_uj", float), ("package", bool), ("added", bool), ("psys", bool)]
)
Zone.__doc__ = (
    """One counter. ``range_uj``: the value at which it wraps around; 0 if unknown. ``added``: part of the sum."""
)


class RaplSensor(PowerSensor):
    """The processor's packages and, if there is a counter for it, the memory."""

    period_s = PERIOD_S

    def __init__(self, tree: Tree, zones: List[Zone]) -> None:
        self._tree = tree
        self._zones = zones
        self._lock = threading.Lock()
        self._looks: Deque[Tuple[float, Dict[str, float]]] = deque()
        """Times and counters: the latest read that is old enough for a window, and all after it."""
        self._latest: Optional[Reading] = None
        self._whole: Optional[List[Zone]] = None
        """The zones whose sum is the power; None until the first reading decides."""
        self._summed_zones = [zone for zone in zones if zone.added]
        self.rail = " + ".join(zone.name for zone in self._summed_zones)
        self.covers = "the CPU package, not the whole board"
        if any(not zone.package for zone in self._summed_zones):
            self.covers = "the CPU package and the memory, not the whole board"
        self.window_s = WINDOW_S
        self.lag_s = 0.0

    def read(self) -> Reading:
        """The mean power over the window. Raises: NoReading, Forbidden."""
        with self._lock:
            now_s = self._tree.now_s()
            if self._looks and now_s - self._looks[-1][0] > LONGEST_S:
                self._looks.clear()
            if self._latest is not None and self._looks and now_s - self._looks[-1][0] < SHORTEST_S:
                return self._latest
            self._latest = None  # a failed reading must not return the previous one
            if not self._looks:
                self._look()
            missing_s = EARLY * WINDOW_S - (self._tree.now_s() - self._looks[0][0])
            if missing_s > 0.0:
                self._tree.sleep(missing_s + (1.0 - EARLY) * WINDOW_S)
            self._look()
            (then_s, then_uj), (now_s, now_uj) = self._looks[0], self._looks[-1]
            try:
                rails_w = {zone.name: self._power_w(zone, then_uj, now_uj, now_s - then_s) for zone in self._zones}
            except NoReading:
                while len(self._looks) > 1:
                    self._looks.popleft()  # a counter that was reset continues from here
                raise
            power_w = sum(rails_w[zone.name] for zone in self._whole or self._summed_zones)
            if not 0.0 < power_w <= HIGHEST_W * sum(zone.package for zone in self._zones):
                raise NoReading(
                    "{} gives {:g} W, which is impossible: its counter does not move".format(self.rail, power_w)
                )
            if self._whole is None:
                power_w = self._decide(rails_w, power_w)
            self._latest = Reading(power_w, rails_w)
            return self._latest

    def _decide(self, rails_w: Dict[str, float], packages_w: float) -> float:
        """Choose the zones that represent the whole, permanently, so that rail and coverage fit every reading."""
        self._whole = self._summed_zones
        for zone in self._zones:
            if zone.psys and rails_w[zone.name] >= packages_w:
                self._whole, self.rail, self.covers = [zone], zone.name, "the platform as its firmware counts it"
        return sum(rails_w[zone.name] for zone in self._whole)

    def _look(self) -> None:
        energies = {}
        for zone in self._zones:
            try:
                energies[zone.name] = self._tree.read_number(zone.energy)
            except Forbidden:
                raise
            except FileFailed as error:
                raise NoReading(str(error)) from error
        now_s = self._tree.now_s()
        self._looks.append((now_s, energies))
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= EARLY * WINDOW_S:
            self._looks.popleft()

    def _power_w(self, zone: Zone, then_uj: Dict[str, float], now_uj: Dict[str, float], seconds: float) -> float:
        gone_uj = now_uj[zone.name] - then_uj[zone.name]
        if gone_uj < 0.0:
            gone_uj += zone.range_uj  # the counter wrapped around
        power_w = gone_uj * 1e-6 / seconds if seconds > 0.0 else 0.0
        if not 0.0 <= power_w <= HIGHEST_W:
            raise NoReading(
                "{} jumped by {:g} J in {:g} s, which is impossible".format(zone.energy, gone_uj / 1e6, seconds)
            )
        return power_w


def find_rapl(tree: Tree) -> Tuple[Optional[PowerSensor], List[str]]:
    """The processor's energy counters, and what is wrong; without any, what was looked for and what would help."""
    zones = _zones(tree)
    if not any(zone.added for zone in zones):
        return None, [
            "no power sensor: looked for package counters in /sys/class/powercap/intel-rapl:*; load the driver "
            "(modprobe intel_rapl_msr), give the container /sys/class/powercap, or use external:... with a meter (a "
            "virtual machine has none)"
        ]
    sensor = RaplSensor(tree, zones)
    try:
        sensor.read()
    except Forbidden as error:
        return sensor, ["{} (the kernel lets only root read it since Linux 5.10)".format(error)]
    except AgentError as error:
        return sensor, [str(error)]
    return sensor, []


def _zones(tree: Tree) -> List[Zone]:
    zones: List[Zone] = []
    names: Set[str] = set()
    for folder in _folders(tree):
        name = text(tree, folder + "/name")
        place = folder.rsplit("/", 1)[-1].split(":")  # "intel-rapl:0", or "intel-rapl:0:2" inside of it
        top = len(place) == 2
        if not name or not tree.exists(folder + "/energy_uj"):
            continue
        package = top and name.startswith("package")
        if name in names and (top or "mmio" in place[0]):
            continue  # the same once more, through the memory-mapped registers
        label = "{}-{}".format(name, place[1]) if name in names else name  # each of two packages has its own "core"
        names.add(name)
        zones.append(
            Zone(
                name=label,
                energy=folder + "/energy_uj",
                range_uj=number(tree, folder + "/max_energy_range_uj") or 0.0,
                package=package,
                added=package or (not top and name.startswith("dram")),
                psys=name.startswith("psys"),
            )
        )
    return zones


def _folders(tree: Tree) -> List[str]:
    """Folders of zones: those of the processor's own registers before the memory-mapped ones."""
    folders: Dict[str, str] = {}
    for pattern in (
        "/sys/class/powercap/intel-rapl:*",
        "/sys/class/powercap/intel-rapl:*/intel-rapl:*",
        "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:*",
        "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:*/intel-rapl:*",
        "/sys/class/powercap/intel-rapl-mmio:*",
    ):
        for folder in tree.glob(pattern):
            # A zone's name is the kernel's own, the same wherever it shows.
            folders.setdefault(folder.rsplit("/", 1)[-1], real(tree, folder))
    return [folders[name] for name in sorted(folders, key=lambda name: ("mmio" in name, name.count(":"), name))]
