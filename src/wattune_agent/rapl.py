"""RAPL: energy counters of x86 processors, as power over the time between two reads.

Packages are summed, with the separate memory (dram) zones. Other zones are inside a package (core, uncore), or not
wired on many laptops (psys, the whole platform).

Sources: kernel Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c; since Linux 5.10
energy_uj is readable by root alone (commit 949dd0104c49, CVE-2020-8694).
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.board import PowerSensor
from wattune_agent.energy_steps import EnergySteps
from wattune_agent.errors import AgentError, FileFailed, Forbidden, NoReading
from wattune_agent.rails import HIGHEST_W
from wattune_agent.tree import Tree, number, real, text

Zone = NamedTuple("Zone", [("name", str), ("path", str), ("range_uj", float)])
Zone.__doc__ = """One counter. ``range_uj``: the value at which it wraps around; 0 if unknown."""


class RaplSensor(PowerSensor):
    """The sum of these counters, as a mean over at least the window: the first reading waits for it."""

    period_s = 0.001
    window_s = 0.1

    def __init__(self, tree: Tree, zones: List[Zone]) -> None:
        self.rail = " + ".join(zone.name for zone in zones)
        memory = " and the memory" if any(zone.name.startswith("dram") for zone in zones) else ""
        self.covers = "the CPU package{}, not the whole board".format(memory)
        self._tree = tree
        self._zones = zones
        self._last_uj: Dict[str, float] = {}
        self._wrapped_uj = 0.0
        self._steps = EnergySteps(
            self._energy_j, tree.now_s, tree.sleep, refresh_s=0.0, window_s=self.window_s, most_w=HIGHEST_W
        )

    def read(self) -> float:
        """The mean power over the window. Raises: NoReading, Forbidden."""
        try:
            return self._steps.read_w()
        except NoReading as error:
            raise NoReading("{}: {}".format(self.rail, error)) from error

    def _energy_j(self) -> float:
        energy_uj = 0.0
        for zone in self._zones:
            try:
                now_uj = self._tree.read_number(zone.path)
            except FileFailed as error:
                raise NoReading(str(error)) from error
            if now_uj < self._last_uj.get(zone.path, now_uj):
                self._wrapped_uj += zone.range_uj
            self._last_uj[zone.path] = now_uj
            energy_uj += now_uj
        return (energy_uj + self._wrapped_uj) * 1e-6


def find_rapl(tree: Tree) -> Tuple[Optional[RaplSensor], List[str]]:
    """The processor's energy counters, and what is wrong; without any, what was looked for and what would help.

    A memory zone that cannot be read is left out.
    """
    zones = _zones(tree)
    packages = [zone for zone in zones if zone.name.startswith("package")]
    if not packages:
        return None, [
            "no power sensor: looked for package counters in /sys/class/powercap/intel-rapl:*; load the driver "
            "(modprobe intel_rapl_msr), give the container /sys/class/powercap, or use --meter external:... with a "
            "meter (a virtual machine has none)"
        ]
    memories, closed = [], []
    for zone in zones:
        try:
            tree.read_number(zone.path)
        except Forbidden:
            closed.append(zone.path)
        except FileFailed:
            pass
        else:
            memories += [zone] if zone not in packages else []
    sensor = RaplSensor(tree, packages + memories)
    problems = []
    try:
        sensor.read()
    except Forbidden:
        pass
    except AgentError as error:
        problems.append(str(error))
    if closed:
        problems.append(
            "{} may not be read by this user; run the agent as root (wattune-agent serve) and use --device agent "
            "(the kernel lets only root read it since Linux 5.10)".format(", ".join(closed))
        )
    return sensor, problems


def _zones(tree: Tree) -> List[Zone]:
    zones: Dict[str, Zone] = {}
    for folder in _folders(tree):
        name = text(tree, folder + "/name")
        place = folder.rsplit("/", 1)[-1].split(":")  # "intel-rapl:0", or "intel-rapl:0:2" inside of it
        is_top = len(place) == 2
        if not name.startswith("package" if is_top else "dram") or not tree.exists(folder + "/energy_uj"):
            continue
        if name in zones and (is_top or "mmio" in place[0]):
            continue  # the same once more, through the memory-mapped registers
        if name in zones:
            name = "{}-{}".format(name, place[1])  # each of two packages has its own "dram"
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
