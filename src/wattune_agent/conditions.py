"""The state of a board: its hottest zone, what throttles its clocks now, and how often its supply reached a limit.

Zones and cooling devices are found by their type, never by their number, which differs from boot to boot.
Sources: kernel Documentation/driver-api/thermal/sysfs-api.rst; L4T drivers/thermal (the "...-throttle-alert" devices)
and drivers/hwmon tegra234-oc-event (oc*_event_cnt); rbonghi/jetson_stats jtop/core/temperature.py.
"""

import os
import re
import threading
import weakref
from typing import Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.tree import Tree, number, real, text

COLDEST_C = -40.0
HOTTEST_C = 130.0
"""Outside this range a zone is switched off (-256 C on a Jetson) or broken."""

# Not the chip: a constant (PMIC-Die says 100 C on a Nano), a mean made for the fan, radios, disks, batteries.
_NOT_THE_CHIP = re.compile(r"pmic|fan|wifi|nvme|bat|charg|int34|pch|b0d4|tskn", re.I)
_CHIP_MONITORS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})

# What lowers a clock. Left out are T210's "gpu_scaling", "vts", "cap" and "floor" devices: those follow the
# temperature at all times to choose a voltage. Left out as well is "hot-surface-alert", which is bound to 70 C for the
# user's fingers alone; an Orin lowers its clocks at 99 C, by cpufreq, devfreq and the "...-throttle-alert" devices.
_NOTICE = re.compile(r"hot-surface", re.I)
_ALERT = re.compile(r"alert|heavy", re.I)
_CLAMP = re.compile(r"^(?:cpufreq|devfreq|thermal-cpufreq|thermal-devfreq|processor|intel_powerclamp)|balanced$", re.I)


class Conditions(NamedTuple):
    """The board's state: its hottest zone, what throttles it now (empty: nothing), over-current events since it booted;
    None if the board does not report it. ``notices``: what holds its clock in its ordinary state."""

    temperature_c: Optional[float]
    throttled: Tuple[str, ...]
    over_current: Optional[int]
    notices: Tuple[str, ...] = ()


class _Watch:
    """The files of one tree, found once, and what they showed at first."""

    def __init__(self, tree: Tree) -> None:
        self.lock = threading.Lock()
        self.temperatures = _zones(tree)
        self.cooling = _cooling(tree)
        self.counters = _event_counters(tree)
        self.throttle_counts = tree.glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count")
        alerts = " ".join(kind.lower() for kind, _ in self.cooling if _ALERT.search(kind))
        # Where an alert speaks for the unit, its frequency device may rest above 0, held there by a power mode's cap.
        self.rest: Dict[str, float] = {
            path: (number(tree, path) or 0.0) if _unit(kind) in alerts else 0.0
            for kind, path in self.cooling
            if not _ALERT.search(kind)
        }
        self.counted = {path: number(tree, path) for path in self.throttle_counts}


_WATCHES: "weakref.WeakKeyDictionary[Tree, _Watch]" = weakref.WeakKeyDictionary()
"""Watch of each tree."""

_WATCHES_LOCK = threading.Lock()


def conditions(tree: Tree) -> Conditions:
    """The board's current state. A value that it does not report is None or empty; nothing here raises.

    ``throttled`` names each cause of throttling: a cooling device above its resting state, a processor's counter that
    rose since the previous call. ``over_current``: the supply's events since the board booted.
    """
    with _WATCHES_LOCK:
        if tree not in _WATCHES:
            _WATCHES[tree] = _Watch(tree)
        watch = _WATCHES[tree]
    with watch.lock:
        throttled = _clamped(tree, watch) + _counted(tree, watch)
        hottest_c = _hottest_c(tree, watch)
        if hottest_c is None and watch.temperatures:
            _WATCHES.pop(tree, None)  # a driver was reloaded and its files have other numbers: look again
        return Conditions(hottest_c, tuple(throttled), _over_current(tree, watch))


def _hottest_c(tree: Tree, watch: _Watch) -> Optional[float]:
    numbers = [number(tree, path) for path in watch.temperatures]
    celsius = [1e-3 * value for value in numbers if value is not None]
    return max((value for value in celsius if COLDEST_C < value < HOTTEST_C), default=None)


def _clamped(tree: Tree, watch: _Watch) -> List[str]:
    clamps: List[str] = []
    for kind, path in watch.cooling:
        state = number(tree, path)
        if state is None or state <= 0.0:  # intel_powerclamp reads -1 while it is inactive
            state = 0.0
        if state > watch.rest.get(path, 0.0):
            clamps.append("{} at {:g}".format(kind, state))
        if path in watch.rest:
            watch.rest[path] = min(watch.rest[path], state)
    return clamps


def _counted(tree: Tree, watch: _Watch) -> List[str]:
    rose = False
    for path in watch.throttle_counts:
        count, before = number(tree, path), watch.counted.get(path)
        rose = rose or (count is not None and before is not None and count > before)
        watch.counted[path] = count
    return ["the processor's thermal throttle"] if rose else []


def _over_current(tree: Tree, watch: _Watch) -> Optional[int]:
    counts = [number(tree, path) for path in watch.counters]
    numbers = [int(count) for count in counts if count is not None]
    return sum(numbers) if numbers else None


def _zones(tree: Tree) -> List[str]:
    """The temperatures of board and processor: an AMD processor has no zone, but a monitor."""
    zones = [folder + "/temp" for kind, folder in _thermal(tree, "thermal_zone") if not _NOT_THE_CHIP.search(kind)]
    for name in tree.glob("/sys/class/hwmon/*/name"):
        if text(tree, name) in _CHIP_MONITORS:
            zones += tree.glob(os.path.dirname(name) + "/temp*_input")
    return zones


def _cooling(tree: Tree) -> List[Tuple[str, str]]:
    """(type, file of its state) of each device that lowers a clock."""
    return [
        (kind, folder + "/cur_state")
        for kind, folder in _thermal(tree, "cooling_device")
        if not _NOTICE.search(kind) and (_ALERT.search(kind) or _CLAMP.search(kind))
    ]


def _thermal(tree: Tree, name: str) -> List[Tuple[str, str]]:
    """(type, folder) of each, once, even if it appears in several places."""
    folders: Dict[str, str] = {}
    for base in ("/sys/class/thermal", "/sys/devices/virtual/thermal"):
        for path in tree.glob("{}/{}[0-9]*/type".format(base, name)):
            folder = os.path.dirname(path)
            folders.setdefault(os.path.basename(folder), real(tree, folder))
    return [(text(tree, folder + "/type"), folder) for _, folder in sorted(folders.items())]


def _event_counters(tree: Tree) -> List[str]:
    paths: Dict[str, str] = {}
    for pattern in ("/sys/class/hwmon/*", "/sys/devices/platform/soctherm-oc-event/hwmon/hwmon*", "/sys/devices/*/oc"):
        for path in tree.glob(pattern + "/oc[0-9]*_event_cnt"):
            paths.setdefault("/".join(path.split("/")[-2:]), path)
    return sorted(paths.values())


def _unit(kind: str) -> str:
    return "gpu" if re.search(r"gpu|gv11b|gp10b|ga10b|gb10b|devfreq", kind, re.I) else "cpu"
