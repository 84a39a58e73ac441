"""The parts of a board that this package uses: a clock, a power sensor, and the board's conditions."""

from typing import Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.tree import Tree

__all__ = ["Board", "Clock", "Conditions", "PowerSensor", "Reading"]

Reading = NamedTuple("Reading", [("power_w", float), ("rails_w", Dict[str, float])])
Reading.__doc__ = (
    """One reading: the whole board (or the rail that represents it, see ``PowerSensor.rail``), and each rail."""
)

Conditions = NamedTuple(
    "Conditions",
    [("temperature_c", Optional[float]), ("throttled", Tuple[str, ...]), ("over_current", Optional[int])],
)
Conditions.__doc__ = """The board's state: its hottest zone, what throttles it now (empty: nothing), over-current events
since it booted. None if the board does not report it."""


class Clock:
    """A clock that can be pinned to one of its frequencies. Implementations: devfreq's (GPU), cpufreq's (CPU)."""

    unit = ""
    """The unit that the clock drives: "gpu" or "cpu"."""

    settings_mhz: Tuple[float, ...] = ()
    """The frequencies that can be pinned, ascending, as listed by the kernel."""

    def files(self) -> List[str]:
        """Every file that ``pin`` may write, in the order in which a snapshot is restored."""
        raise NotImplementedError

    def pin(self, mhz: float) -> Dict[str, str]:
        """Write the limits that pin the clock to ``mhz``, in an order that every kernel accepts, and switch off what
        would undo them. Returns the files that throttling holds lower, each with the text written; usually empty.

        Raises: BadRequest for a value that is not listed, NotTaken, Forbidden, FileFailed.
        """
        raise NotImplementedError

    def pinned_mhz(self) -> Optional[float]:
        """The frequency that the limits pin now; None if they allow a range. Raises: Forbidden, FileFailed."""
        raise NotImplementedError

    def now_mhz(self) -> Optional[float]:
        """The current frequency; None if the board does not report it. Raises: Forbidden, FileFailed."""
        raise NotImplementedError

    def is_suspended(self) -> bool:
        """True if the unit has no power now: it follows its limits when it wakes, and until then reports any clock."""
        return False

    def limit_mhz(self, texts: Dict[str, str]) -> Optional[float]:
        """The highest frequency that these texts of ``files`` allow; None if that is not among them."""
        raise NotImplementedError

    def restore(self, texts: Dict[str, str]) -> None:
        """Restore the text of each file, in an order that every kernel accepts. Raises: NotRestored."""
        raise NotImplementedError


class PowerSensor:
    """Power in watts. Attributes as in ``wattune.devices.Sensor``; ``covers`` describes in words what is measured."""

    rail = ""
    covers = "the module"
    resolution_w = 0.0
    period_s = 0.0
    window_s = 0.0
    lag_s = 0.0

    def read(self) -> Reading:
        """Read the sensor. Raises: NoReading, Forbidden."""
        raise NotImplementedError


class Board:
    """A board found in a tree. ``clock`` is None if no clock can be set, ``sensor`` is None if no sensor was found;
    ``problems`` then give the reason and a remedy."""

    def __init__(
        self,
        tree: Tree,
        *,
        family: str,
        name: str,
        clock: Optional[Clock],
        sensor: Optional[PowerSensor],
        mode: Dict[str, str],
        problems: List[str],
    ) -> None:
        self.tree = tree
        self.family = family
        self.name = name
        self.clock = clock
        self.sensor = sensor
        self.mode = mode
        self.problems = problems
