"""The clock of a Jetson's memory (EMC), through the lock on it in debugfs, which only root can reach.

The lock holds the rate that is written, whatever drivers ask for; without it the kernel and the firmware (BPMP) choose
the rate by the load. The power mode's cap on the clock is an upper limit beside the lock. A pin keeps both at the same
frequency, as it does with the two limits of any other clock: the cap is raised before a higher rate is locked, and
lowered after a lower one is. Once the lock is released, the rate follows the load again: it is not restored.

Frequencies are in Hz here and become MHz when the list is read.

Sources: NVIDIA's ``jetson_clocks`` (files, order of lock and rate), rbonghi/jetson_stats ``jtop/core/memory.py``;
OE4T/linux-tegra-4.9 ``drivers/clk/tegra/clk.c`` (Nano: ``clk_update_rate`` can only be written; ``clk_state`` counts
each 1, so it is written once). Rates: ``possible_rates`` of the BPMP, in kHz; else JNano-CPU-CoarseGrain
(Nano and TX1, whose 40.8, 68 and 102 MHz it calls problematic) and dream-lab's PowerTrain (Orin).
"""

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.board import Clock
from wattune_agent.errors import AgentError, BadRequest, FileFailed, Forbidden, NotRestored, NotTaken
from wattune_agent.limits import PAUSE_S, TRIES, Failure, compared, tolerance_of, whole
from wattune_agent.tree import Tree, first_text, number

__all__ = ["MemoryClock", "MemoryLock", "find_memory_clock"]

HZ_PER_MHZ = 1000000
KHZ_PER_MHZ = 1000

LEAST_MHZ = 204.0
"""The lowest rate that is offered: lower ones were seen to hang a board."""

_BPMP = "/sys/kernel/debug/bpmp/debug"
_OVERRIDE = "/sys/kernel/debug/clk/override.emc"
_BANDWIDTH = "/sys/kernel/debug/tegra_bwmgr"

CAPS = ("/sys/kernel/nvpmodel_clk_cap/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap")
"""The power mode's cap on the clock in newer and older JetPacks; 0 means that there is none."""


class Place(NamedTuple):
    """The files of one kind of board: ``rate`` is read, ``setter`` is written. ``rates_mhz``: those of the chips whose
    device tree is compatible with ``chip`` if the firmware lists none."""

    lock: str
    rate: str
    setter: str
    lowest: str
    highest: str
    chip: str
    rates_mhz: Tuple[float, ...]


PLACES = (
    Place(
        lock=_BPMP + "/clk/emc/mrq_rate_locked",
        rate=_BPMP + "/clk/emc/rate",
        setter=_BPMP + "/clk/emc/rate",
        lowest=_BPMP + "/clk/emc/min_rate",
        highest=_BPMP + "/clk/emc/max_rate",
        chip="tegra234",
        rates_mhz=(204.0, 665.6, 2133.0, 3199.0),
    ),
    Place(
        lock=_OVERRIDE + "/clk_state",
        rate=_OVERRIDE + "/clk_rate",
        setter=_OVERRIDE + "/clk_update_rate",
        lowest=_BANDWIDTH + "/emc_min_rate",
        highest=_BANDWIDTH + "/emc_max_rate",
        chip="",  # only the Tegra210 of Nano and TX1 has these files
        rates_mhz=(204.0, 408.0, 665.6, 800.0, 1065.6, 1331.2, 1600.0),
    ),
)


class MemoryLock:
    """The lock on the rate, and the cap above it if the board has one."""

    def __init__(self, tree: Tree, place: Place, cap: Optional[str]) -> None:
        self.place = place
        self._tree = tree
        self._cap = cap

    @staticmethod
    def owns(path: str) -> bool:
        """True if this is a file of a memory clock."""
        return path in CAPS or any(path in (place.lock, place.rate) for place in PLACES)

    @classmethod
    def among(cls, tree: Tree, paths: List[str]) -> Optional["MemoryLock"]:
        """The lock whose files are among these; None if they are not all there."""
        for place in PLACES:
            if place.lock in paths and place.rate in paths:
                return cls(tree, place, next((cap for cap in CAPS if cap in paths), None))
        return None

    def files(self) -> List[str]:
        """The cap, the lock and the rate."""
        return ([self._cap] if self._cap is not None else []) + [self.place.lock, self.place.rate]

    def pin(self, hz: int) -> Dict[str, str]:
        """Lock the rate at ``hz``, with the cap there too, and verify it.

        If the rate reads lower and a lower cap explains it, that is enough for a pin: the result is then these files
        with the text written, otherwise empty. Raises: NotTaken, Forbidden, FileFailed.
        """
        clamped: Dict[str, str] = {}
        failure: Optional[AgentError] = None
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            try:
                self._write(hz)
                now, cap = whole(self._tree, self.place.rate), self._cap_now()
                locked = self._tree.read(self.place.lock)
            except Forbidden:
                raise
            except FileFailed as error:  # refused, or another writer interfered: read again, then try again
                failure, clamped = error, {}
                continue
            tolerance, clamped = tolerance_of(self.place.rate), {}
            if locked == "1" and abs(now - hz) <= tolerance:
                return {}
            if locked == "1" and self._cap is not None and 0 < cap < hz - tolerance and now <= cap + tolerance:
                clamped = {self._cap: str(hz), self.place.rate: str(hz)}
            failure = NotTaken(
                "{} was written {}, but reads {}, with {} at {}: another limit of the board or another program holds "
                "it".format(self.place.setter, hz, now, self.place.lock, locked[:40])
            )
        if clamped:
            return clamped
        assert failure is not None
        raise failure

    def pinned(self) -> Optional[int]:
        """The rate that is locked; None if it follows the load. Raises: Forbidden, FileFailed."""
        return whole(self._tree, self.place.rate) if self._tree.read(self.place.lock) == "1" else None

    def restore(self, texts: Dict[str, str]) -> List[Failure]:
        """Restore the lock and the cap, and the rate if it was locked; returns the failures."""
        found = {path: texts[path] for path in self.files()}
        was_locked = found[self.place.lock].strip() == "1"
        if not was_locked:
            del found[self.place.rate]
        failures: List[Failure] = []
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            errors: Dict[str, str] = {}
            for path in self._order(found):
                try:
                    if path == self.place.rate:
                        self._tree.write(self.place.setter, found[path])
                    elif self._tree.read(path) != found[path].strip():
                        self._tree.write(path, found[path])
                except AgentError as error:
                    errors[path] = str(error)
            failures = []
            for path, text in found.items():
                failures += compared(self._tree, {path: text}, errors, tolerance_of(path))
            if not failures:
                break
        return failures

    def _write(self, hz: int) -> None:
        cap_now = self._cap_now()
        if self._cap is not None and 0 < cap_now < hz:
            self._tree.write(self._cap, str(hz))
        if self._tree.read(self.place.lock) != "1":
            self._tree.write(self.place.lock, "1")
        self._tree.write(self.place.setter, str(hz))
        if self._cap is not None and (cap_now > hz or cap_now == 0):
            self._tree.write(self._cap, str(hz))

    def _cap_now(self) -> int:
        return 0 if self._cap is None else whole(self._tree, self._cap)

    def _order(self, found: Dict[str, str]) -> List[str]:
        """The lock before the rate, and the cap first to raise it, last to lower it."""
        rest = [path for path in (self.place.lock, self.place.rate) if path in found]
        if self._cap is None:
            return rest
        try:
            cap, cap_now = int(found[self._cap]), self._cap_now()
        except (AgentError, ValueError):
            return [self._cap, *rest]
        is_raised = cap == 0 or 0 < cap_now < cap
        return [self._cap, *rest] if is_raised else [*rest, self._cap]


class MemoryClock(Clock):
    """The memory's clock: locked at one of its rates."""

    unit = "memory"

    def __init__(self, tree: Tree, lock: MemoryLock, rates_hz: List[int]) -> None:
        self._tree = tree
        self._lock = lock
        self._hz: Dict[float, int] = {hz / HZ_PER_MHZ: hz for hz in rates_hz}
        self.settings_mhz = tuple(sorted(self._hz))

    def files(self) -> List[str]:
        """The power mode's cap if there is one, the lock and the rate."""
        return self._lock.files()

    def pin(self, mhz: float) -> Dict[str, str]:
        """Lock the rate; returns files that the cap holds lower, as ``MemoryLock.pin``.

        Raises: BadRequest, NotTaken, Forbidden, FileFailed.
        """
        if mhz not in self._hz:
            clocks = ", ".join("{:g}".format(setting) for setting in self.settings_mhz)
            raise BadRequest("the memory has no {:g} MHz; it has {} MHz".format(mhz, clocks))
        return self._lock.pin(self._hz[mhz])

    def pinned_mhz(self) -> Optional[float]:
        """The rate that is locked; None if it follows the load, or is not one of the settings."""
        hz = self._lock.pinned()
        if hz is None:
            return None
        near = min(self.settings_mhz, key=lambda mhz: abs(self._hz[mhz] - hz))
        return near if abs(self._hz[near] - hz) <= tolerance_of(self._lock.place.rate) else None

    def now_mhz(self) -> Optional[float]:
        """The current rate."""
        return whole(self._tree, self._lock.place.rate) / HZ_PER_MHZ

    def limit_mhz(self, texts: Dict[str, str]) -> Optional[float]:
        """The power mode's cap; None without one."""
        for path in CAPS:
            text = texts.get(path, "").strip()
            if text.isdigit() and int(text) > 0:
                return int(text) / HZ_PER_MHZ
        return None

    def restore(self, texts: Dict[str, str]) -> None:
        """Restore the cap and the lock. Raises: NotRestored, after restoring as much as possible."""
        failures = self._lock.restore(texts)
        if failures:
            raise NotRestored("; ".join(failure.text for failure in failures))


def find_memory_clock(tree: Tree, compatible: str) -> Optional[MemoryClock]:
    """The memory's clock, if this user may set it and its rates are known; ``compatible``: the device tree's names."""
    for place in PLACES:
        if not all(map(tree.exists, (place.lock, place.rate, place.setter))):
            continue
        lock = MemoryLock(tree, place, next((cap for cap in CAPS if tree.exists(cap)), None))
        if not all(map(tree.writable, [place.setter, *lock.files()])):
            return None
        rates_hz = _rates(tree, place, compatible)
        return MemoryClock(tree, lock, rates_hz) if rates_hz else None
    return None


def _rates(tree: Tree, place: Place, compatible: str) -> List[int]:
    """The rates within the board's own bounds, ascending, in Hz."""
    text = first_text(tree, [_BPMP + "/emc/possible_rates", _BPMP + "/clk/emc/possible_rates"])
    listed = [int(word) * HZ_PER_MHZ // KHZ_PER_MHZ for word in re.findall(r"\b[0-9]{4,8}\b", text)]
    if not listed and place.chip in compatible:
        listed = [round(mhz * HZ_PER_MHZ) for mhz in place.rates_mhz]
    low, high = number(tree, place.lowest), number(tree, place.highest)
    tolerance = tolerance_of(place.rate)
    least = max(LEAST_MHZ * HZ_PER_MHZ, low or 0.0) - tolerance
    return sorted({hz for hz in listed if least <= hz <= (high or float("inf")) + tolerance})
