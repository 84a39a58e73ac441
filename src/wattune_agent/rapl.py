"""RAPL: energy counters of x86 processors, as power over the time between two reads.

Zones: packages are summed, with the separate memory (dram) zones; core and uncore are inside a package; psys, the
whole platform, counts only if it is not less than the packages (on many laptops it is not wired).

Sources: kernel Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c; since Linux 5.10
energy_uj is readable by root alone (commit 949dd0104c49, CVE-2020-8694).
"""

import threading
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Tuple, Union

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

Zone = NamedTuple("Zone", [("name", str), ("path", str), ("range_uj", float)])
Zone.__doc__ = """One counter. ``range_uj``: the value at which it wraps around; 0 if unknown."""

Whole = NamedTuple("Whole", [("zones", List[Zone]), ("covers", str), ("least", List[Zone])])
Whole.__doc__ = """Zones whose sum is the power. ``least``: zones that draw no more, or the sum is not believed."""

_Values = Dict[str, Union[float, AgentError]]
"""A value for each zone, or why there is none."""


class RaplSensor(PowerSensor):
    """The processor's counters. ``wholes``: what may stand for the whole, best first.

    The first reading decides, permanently, so that rail and coverage fit every reading. A zone that is not part of the
    whole may fail at any time.
    """

    period_s = PERIOD_S
    window_s = WINDOW_S

    def __init__(self, tree: Tree, zones: List[Zone], wholes: List[Whole]) -> None:
        self._tree = tree
        self._zones = zones
        self._wholes = wholes
        self._lock = threading.Lock()
        self._looks: Deque[Tuple[float, _Values]] = deque()
        """Times and counters: the latest read that is old enough for a window, and all after it."""
        self._latest: Optional[Reading] = None
        self._whole: Optional[Whole] = None
        self._name_after(wholes[-1])

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
            powers = self._powers()
            try:
                if self._whole is None:
                    self._whole = self._decided(powers)
                power_w = _sum_w(self._whole, powers)
            except AgentError:
                while len(self._looks) > 1:
                    self._looks.popleft()  # a counter that was reset continues from here
                if any(isinstance(value, AgentError) for value in self._looks[0][1].values()):
                    self._looks.clear()
                raise
            rails_w = {name: value for name, value in powers.items() if not isinstance(value, AgentError)}
            self._latest = Reading(power_w, rails_w)
            return self._latest

    def problems(self) -> List[str]:
        """Problems that a first reading shows, with all closed counters in one text."""
        problems = []
        try:
            self.read()
        except Forbidden:
            pass
        except AgentError as error:
            problems.append(str(error))
        closed = [zone.path for zone in self._zones if isinstance(self._value(zone), Forbidden)]
        if closed:
            problems.append(
                "{} may not be read by this user; run the agent as root (wattune-agent serve) and use --device agent "
                "(the kernel lets only root read it since Linux 5.10)".format(", ".join(closed))
            )
        return problems

    def _decided(self, powers: _Values) -> Whole:
        """The first whole that can be read. Raises: NoReading, Forbidden."""
        for whole in self._wholes[:-1]:
            try:
                power_w = _sum_w(whole, powers)
                if not whole.least or power_w >= _sum_w(whole._replace(zones=whole.least), powers):
                    break
            except AgentError:
                continue
        else:
            whole = self._wholes[-1]
            _sum_w(whole, powers)
        self._name_after(whole)
        return whole

    def _name_after(self, whole: Whole) -> None:
        self.rail = _names(whole.zones)
        self.covers = whole.covers

    def _value(self, zone: Zone) -> Union[float, AgentError]:
        try:
            return self._tree.read_number(zone.path)
        except Forbidden as error:
            return error
        except FileFailed as error:
            return NoReading(str(error))

    def _look(self) -> None:
        values = {zone.name: self._value(zone) for zone in self._zones}
        now_s = self._tree.now_s()
        self._looks.append((now_s, values))
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= EARLY * WINDOW_S:
            self._looks.popleft()

    def _powers(self) -> _Values:
        """The power of each zone over the window."""
        (then_s, then), (now_s, now) = self._looks[0], self._looks[-1]
        powers: _Values = {}
        for zone in self._zones:
            then_uj, now_uj = then[zone.name], now[zone.name]
            if isinstance(now_uj, AgentError):
                powers[zone.name] = now_uj
            elif isinstance(then_uj, AgentError):
                powers[zone.name] = then_uj
            else:
                powers[zone.name] = _power_w(zone, now_uj - then_uj, now_s - then_s)
        return powers


def _power_w(zone: Zone, gone_uj: float, seconds: float) -> Union[float, AgentError]:
    if gone_uj < 0.0:
        gone_uj += zone.range_uj  # the counter wrapped around
    power_w = gone_uj * 1e-6 / seconds if seconds > 0.0 else 0.0
    if 0.0 <= power_w <= HIGHEST_W:
        return power_w
    return NoReading("{} jumped by {:g} J in {:g} s, which is impossible".format(zone.path, gone_uj / 1e6, seconds))


def _sum_w(whole: Whole, powers: _Values) -> float:
    """The power of the whole. Raises: NoReading, Forbidden."""
    power_w = 0.0
    for zone in whole.zones:
        value = powers[zone.name]
        if isinstance(value, AgentError):
            raise value
        power_w += value
    if power_w <= 0.0:
        raise NoReading("{} gives 0 W, which is impossible: its counter does not move".format(_names(whole.zones)))
    return power_w


def _names(zones: List[Zone]) -> str:
    return " + ".join(zone.name for zone in zones)


def find_rapl(tree: Tree) -> Tuple[Optional[RaplSensor], List[str]]:
    """The processor's energy counters, and what is wrong; without any, what was looked for and what would help."""
    zones = _zones(tree)
    packages = [zone for zone in zones if zone.name.startswith("package")]
    memories = [zone for zone in zones if zone.name.startswith("dram")]
    if not packages:
        return None, [
            "no power sensor: looked for package counters in /sys/class/powercap/intel-rapl:*; load the driver "
            "(modprobe intel_rapl_msr), give the container /sys/class/powercap, or use --meter external:... with a "
            "meter (a virtual machine has none)"
        ]
    alone = Whole(packages, "the CPU package, not the whole board", [])
    both = Whole(packages + memories, "the CPU package and the memory, not the whole board", []) if memories else alone
    platforms = [
        Whole([zone], "the platform as its firmware counts it", both.zones)
        for zone in zones
        if zone.name.startswith("psys")
    ]
    sensor = RaplSensor(tree, zones, [*platforms, both, alone])
    return sensor, sensor.problems()


def _zones(tree: Tree) -> List[Zone]:
    zones: Dict[str, Zone] = {}
    for folder in _folders(tree):
        name = text(tree, folder + "/name")
        place = folder.rsplit("/", 1)[-1].split(":")  # "intel-rapl:0", or "intel-rapl:0:2" inside of it
        is_top = len(place) == 2
        if not name or not tree.exists(folder + "/energy_uj") or (not is_top and name.startswith("package")):
            continue
        if name in zones and (is_top or "mmio" in place[0]):
            continue  # the same once more, through the memory-mapped registers
        if name in zones:
            name = "{}-{}".format(name, place[1])  # each of two packages has its own "core"
        highest_uj = number(tree, folder + "/max_energy_range_uj") or 0.0
        zones[name] = Zone(name, folder + "/energy_uj", highest_uj)
    return list(zones.values())


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
