"""RAPL: energy counters of x86 processors, as power over the time between two reads.

Zones: packages are summed, with the separate memory (dram) zones; core and uncore are inside a package; psys, the
whole platform, counts only if it is not less than the packages (on many laptops it is not wired).

Sources: kernel Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c; since Linux 5.10
energy_uj is readable by root alone (commit 949dd0104c49, CVE-2020-8694).
"""

import threading
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Tuple

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

Counter = NamedTuple("Counter", [("name", str), ("path", str), ("range_uj", float)])
Counter.__doc__ = """One counter. ``range_uj``: the value at which it wraps around; 0 if unknown."""

Whole = NamedTuple("Whole", [("counters", List[Counter]), ("covers", str), ("least", List[Counter])])
Whole.__doc__ = """Counters whose sum is the power. ``least``: they draw no more, or the sum is not believed."""


class RaplSensor(PowerSensor):
    """The processor's counters. ``wholes``: what may stand for the whole, best first.

    The first reading decides, permanently, so that rail and coverage fit every reading. A counter that is not part of
    the whole may fail at any time.
    """

    period_s = PERIOD_S
    window_s = WINDOW_S

    def __init__(self, tree: Tree, counters: List[Counter], wholes: List[Whole]) -> None:
        self._tree = tree
        self._counters = counters
        self._wholes = wholes
        self._lock = threading.Lock()
        self._looks: Deque[Tuple[float, Dict[str, float]]] = deque()
        """Times and counters: the latest read that is old enough for a window, and all after it."""
        self._latest: Optional[Reading] = None
        self._failures: Dict[str, AgentError] = {}
        """Counters that could not be read the last time, and why."""
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
            rails_w, failures = self._powers_w()
            try:
                if self._whole is None:
                    self._whole = self._decided(rails_w, failures)
                power_w = _sum_w(self._whole, rails_w, failures)
            except AgentError:
                while len(self._looks) > 1:
                    self._looks.popleft()  # a counter that was reset continues from here
                if self._failures:
                    self._looks.clear()
                raise
            self._latest = Reading(power_w, rails_w)
            return self._latest

    def problems(self) -> List[str]:
        """What a first reading shows to be wrong, all closed counters in one text."""
        problems = []
        try:
            self.read()
        except Forbidden:
            pass
        except AgentError as error:
            problems.append(str(error))
        closed = [zone.path for zone in self._counters if isinstance(self._failures.get(zone.name), Forbidden)]
        if closed:
            problems.append(
                "{} may not be read by this user; run the agent as root (wattune-agent serve) and use --device agent "
                "(the kernel lets only root read it since Linux 5.10)".format(", ".join(closed))
            )
        return problems

    def _decided(self, rails_w: Dict[str, float], failures: Dict[str, AgentError]) -> Whole:
        """The first whole that can be read. Raises: NoReading, Forbidden."""
        error: Optional[AgentError] = None
        for whole in self._wholes:
            try:
                power_w = _sum_w(whole, rails_w, failures)
            except (NoReading, Forbidden) as failure:
                error = failure
                continue
            if power_w >= sum(rails_w.get(counter.name, 0.0) for counter in whole.least):
                self._name_after(whole)
                return whole
        raise error or NoReading("no counter gives a reading")

    def _name_after(self, whole: Whole) -> None:
        self.rail = " + ".join(counter.name for counter in whole.counters)
        self.covers = whole.covers

    def _look(self) -> None:
        energies: Dict[str, float] = {}
        self._failures = {}
        for counter in self._counters:
            try:
                energies[counter.name] = self._tree.read_number(counter.path)
            except Forbidden as error:
                self._failures[counter.name] = error
            except FileFailed as error:
                self._failures[counter.name] = NoReading(str(error))
        now_s = self._tree.now_s()
        self._looks.append((now_s, energies))
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= EARLY * WINDOW_S:
            self._looks.popleft()

    def _powers_w(self) -> Tuple[Dict[str, float], Dict[str, AgentError]]:
        """The power of each counter over the window, and the failures of the others."""
        (then_s, then_uj), (now_s, now_uj) = self._looks[0], self._looks[-1]
        rails_w: Dict[str, float] = {}
        failures = dict(self._failures)
        for counter in self._counters:
            if counter.name in failures:
                continue
            if counter.name not in then_uj:
                failures[counter.name] = NoReading("{} could not be read before".format(counter.path))
                continue
            gone_uj = now_uj[counter.name] - then_uj[counter.name]
            if gone_uj < 0.0:
                gone_uj += counter.range_uj  # the counter wrapped around
            power_w = gone_uj * 1e-6 / (now_s - then_s) if now_s > then_s else 0.0
            if 0.0 <= power_w <= HIGHEST_W:
                rails_w[counter.name] = power_w
            else:
                failures[counter.name] = NoReading(
                    "{} jumped by {:g} J in {:g} s, which is impossible".format(
                        counter.path, gone_uj / 1e6, now_s - then_s
                    )
                )
        return rails_w, failures


def _sum_w(whole: Whole, rails_w: Dict[str, float], failures: Dict[str, AgentError]) -> float:
    """The power of the whole. Raises: NoReading, Forbidden."""
    for counter in whole.counters:
        if counter.name in failures:
            raise failures[counter.name]
    power_w = sum(rails_w[counter.name] for counter in whole.counters)
    if power_w <= 0.0:
        name = " + ".join(counter.name for counter in whole.counters)
        raise NoReading("{} gives 0 W, which is impossible: its counter does not move".format(name))
    return power_w


def find_rapl(tree: Tree) -> Tuple[Optional[RaplSensor], List[str]]:
    """The processor's energy counters, and what is wrong; without any, what was looked for and what would help."""
    zones = _zones(tree)
    packages = [zone for zone in zones if zone.name.startswith("package")]
    memories = [zone for zone in zones if zone.name.startswith("dram")]
    if not packages:
        return None, [
            "no power sensor: looked for package counters in /sys/class/powercap/intel-rapl:*; load the driver "
            "(modprobe intel_rapl_msr), give the container /sys/class/powercap, or use external:... with a meter (a "
            "virtual machine has none)"
        ]
    alone = Whole(packages, "the CPU package, not the whole board", [])
    both = Whole(packages + memories, "the CPU package and the memory, not the whole board", []) if memories else alone
    platforms = [
        Whole([zone], "the platform as its firmware counts it", both.counters)
        for zone in zones
        if zone.name.startswith("psys")
    ]
    sensor = RaplSensor(tree, zones, [*platforms, both, alone])
    return sensor, sensor.problems()


def _zones(tree: Tree) -> List[Counter]:
    zones: Dict[str, Counter] = {}
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
        zones[name] = Counter(name, folder + "/energy_uj", highest_uj)
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
