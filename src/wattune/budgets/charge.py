"""Sources of a battery's charge: the kernel's gauge, a file that another program writes, a callable, a simulation.

Each gives the charge as a share of a full battery. A source that fails raises ``ChargeUnread``, with the reason.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from wattune.budgets.battery_rule import CHARGING
from wattune.errors import InputError

POWER_SUPPLY: Final = Path("/sys/class/power_supply")
"""Folder of the kernel's gauges. Source: Documentation/ABI/testing/sysfs-class-power of the Linux kernel."""

_NUMBER = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)\s*(?P<unit>%|Wh|J)?", re.ASCII | re.IGNORECASE)


class ChargeUnread(Exception):
    """A charge that could not be read; the text says why."""


class ChargeSource(ABC):
    """A source of a battery's charge."""

    @abstractmethod
    def share(self, time_s: float, drawn_j: float = 0.0) -> float:
        """The charge ``time_s`` seconds after the beginning, from 0 to 1; ``drawn_j``: given by the battery since then.

        Raises: ChargeUnread.
        """

    @property
    def is_steady(self) -> bool:
        """True if the source itself says that the charge does not fall: it then may stay the same for long."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """State from which a later source continues, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to load
        """Continue from ``state_dict``."""


class PowerSupply(ChargeSource):
    """A battery below /sys/class/power_supply: ``energy_now`` over ``energy_full``, else ``charge_now`` over
    ``charge_full``, else ``capacity`` in percent.

    A share of the charge in ampere-hours is taken for one of the energy: the voltage falls by a few percent only until
    the battery is nearly empty.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def share(self, time_s: float, drawn_j: float = 0.0) -> float:
        """The charge that the gauge shows."""
        for now, full in (("energy_now", "energy_full"), ("charge_now", "charge_full")):
            if (self._folder / now).exists() and (self._folder / full).exists():
                return _share(self._read(now), self._read(full), f"{self._folder}/{now}")
        return _share(self._read("capacity"), 100.0, f"{self._folder}/capacity")

    @property
    def is_steady(self) -> bool:
        """True while the gauge says that the battery is charging or full."""
        try:
            return (self._folder / "status").read_text(encoding="ascii").strip() in ("Charging", "Full")
        except (OSError, ValueError):
            return False

    def _read(self, name: str) -> float:
        path = self._folder / name
        try:
            return float(path.read_text(encoding="ascii"))
        except OSError as error:
            raise ChargeUnread(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ChargeUnread(f"{path} is not a number") from error


class ChargeFile(ChargeSource):
    """A file with one number, which another program replaces or rewrites: percent ("63" or "63%"), "51Wh" or joules.

    A number without the end of its line may be half of one: it counts when it has been read twice.
    """

    def __init__(self, path: Path, capacity_j: float):
        self._path, self._capacity_j = path, capacity_j
        self._unfinished: str | None = None
        self._last: float | None = None

    def __str__(self) -> str:
        return str(self._path)

    def share(self, time_s: float, drawn_j: float = 0.0) -> float:
        """The newest number in the file."""
        try:
            text = self._path.read_text(encoding="ascii")
        except OSError as error:
            raise ChargeUnread(f"{self._path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ChargeUnread(f"{self._path} is not a text") from error
        match = _NUMBER.fullmatch(text.strip())
        if match is None:
            raise ChargeUnread(f"{self._path} has no charge such as 63% or 51Wh: {text.strip()[:40]!r}")
        if not text.endswith("\n") and text != self._unfinished:
            self._unfinished = text
            if self._last is None:
                return self.share(time_s)
            return self._last
        full = {"wh": self._capacity_j / 3600, "j": self._capacity_j}.get((match["unit"] or "%").lower(), 100.0)
        self._last = _share(float(match["number"]), full, str(self._path))
        return self._last


class CalledCharge(ChargeSource):
    """The share that a callable returns for the seconds of the run; None if it does not know."""

    def __init__(self, charge: Callable[[float], float | None]):
        self._charge = charge

    def __str__(self) -> str:
        return "a callable"

    def share(self, time_s: float, drawn_j: float = 0.0) -> float:
        """The share that the callable returns."""
        value = self._charge(time_s)
        if value is None:
            raise ChargeUnread("the callable returned None")
        if isinstance(value, (bool, str)):
            raise ChargeUnread(f"the callable returned {value!r}, not a share from 0 to 1")
        return _share(float(value), 1.0, "the callable")


class SimulatedBattery(ChargeSource):
    """A battery beside a simulated board: full at the beginning, charged by the panel, and discharged by the board.

    ``sun_w``: watts of the panel after a time. The surplus of the sun charges it, less the loss of ``CHARGING``.
    """

    def __init__(self, capacity_j: float, *, sun_w: Callable[[float], float], share: float = 1.0):
        self._capacity_j, self._sun_w = capacity_j, sun_w
        self._charge_j, self._time_s, self._drawn_before_j = share * capacity_j, 0.0, 0.0

    def __str__(self) -> str:
        return "simulated"

    def share(self, time_s: float, drawn_j: float = 0.0) -> float:
        """The charge now; call it in the order of time."""
        seconds = time_s - self._time_s
        if seconds > 0:
            net_j = self._sun_w(self._time_s + seconds / 2) * seconds - (drawn_j - self._drawn_before_j)
            charge_j = self._charge_j + (CHARGING * net_j if net_j > 0 else net_j)
            self._charge_j = min(self._capacity_j, max(0.0, charge_j))
            self._time_s, self._drawn_before_j = time_s, drawn_j
        return self._charge_j / self._capacity_j

    def state_dict(self) -> dict[str, Any]:
        """Charge, time and energy drawn."""
        return {"charge_j": self._charge_j, "time_s": self._time_s, "drawn_j": self._drawn_before_j}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self._charge_j, self._time_s, self._drawn_before_j = state["charge_j"], state["time_s"], state["drawn_j"]


def charge_source(
    value: str | Path | Callable[[float], float | None], capacity_j: float, *, root: Path = POWER_SUPPLY
) -> ChargeSource:
    """The source that is meant: the name of a gauge below ``root`` such as "BAT0", its folder, a file, or a callable.

    Raises: InputError if it has no charge now.
    """
    source: ChargeSource
    if callable(value):
        source = CalledCharge(value)
    elif Path(value).is_dir():
        source = PowerSupply(Path(value))
    elif (root / value).is_dir():
        source = PowerSupply(root / value)
    else:
        source = ChargeFile(Path(value), capacity_j)
    try:
        source.share(0.0)
    except ChargeUnread as error:
        gauges = ", ".join(sorted(path.name for path in root.glob("*"))) if root.is_dir() else ""
        hint = f"gauges here: {gauges}" if gauges else None
        allowed = "a gauge below /sys/class/power_supply such as BAT0, or a file with one number such as 63%"
        raise InputError("--charge", value=str(error), allowed=allowed, hint=hint) from error
    return source


def _share(value: float, full: float, name: str) -> float:
    if not (0 < full < math.inf and 0 <= value <= 1.1 * full):
        raise ChargeUnread(f"{name} is {value:g} of {full:g}")
    return min(1.0, value / full)  # gauges drift, and a full battery may show a little more
