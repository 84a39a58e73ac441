"""What a board consists of for us: a clock, a power sensor, and what else it says of itself."""

from typing import Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.tree import Tree

__all__ = ["Board", "Clock", "Conditions", "PowerSensor", "Reading"]

Reading = NamedTuple("Reading", [("power_w", float), ("rails_w", Dict[str, float])])
Reading.__doc__ = """One reading: the whole board (or what stands for it, see ``PowerSensor.rail``), and each rail."""

Conditions = NamedTuple(
    "Conditions",
    [("temperature_c", Optional[float]), ("throttled", Tuple[str, ...]), ("over_current", Optional[int])],
)
Conditions.__doc__ = """How the board is: its hottest zone, what clamps it now (empty: nothing), over-current events
since it booted. None where the board does not tell."""


class Clock:
    """A clock that can be pinned to one of its frequencies. Implementations: devfreq's (GPU), cpufreq's (CPU)."""

    unit = ""
    """What it is the clock of: "gpu" or "cpu"."""

    settings_mhz: Tuple[float, ...] = ()
    """The frequencies that can be pinned, ascending, as listed by the kernel."""

    def files(self) -> List[str]:
        """Every file that ``pin`` may write, in the order in which a snapshot is brought back."""
        raise NotImplementedError

    def pin(self, mhz: float) -> Dict[str, str]:
        """Write limits so that the clock is this, in the order that every kernel takes, and switch off what would undo
        it. Files that something holds below that, such as heat, with what was written; else nothing.

        Raises: BadRequest for a value that is not listed, NotTaken, Forbidden, FileFailed.
        """
        raise NotImplementedError

    def pinned_mhz(self) -> Optional[float]:
        """The frequency that the limits pin now; None where they leave room. Raises: Forbidden, FileFailed."""
        raise NotImplementedError

    def now_mhz(self) -> Optional[float]:
        """The frequency at this moment; None where the board does not tell. Raises: Forbidden, FileFailed."""
        raise NotImplementedError

    def restore(self, saved: Dict[str, str]) -> None:
        """Bring back the text of each file, in an order that every kernel takes. Raises: NotRestored."""
        raise NotImplementedError


class PowerSensor:
    """Power in watts. Attributes as in ``wattune.devices.Sensor``; ``covers`` says in words what is measured."""

    rail = ""
    covers = "the module"
    resolution_w = 0.0
    period_s = 0.0
    window_s = 0.0
    lag_s = 0.0

    def read(self) -> Reading:
        """Raises: NoReading, Forbidden."""
        raise NotImplementedError


class Board:
    """A board that was found in a tree. ``clock`` is None where none can be set, ``sensor`` None where none was found;
    ``problems`` then say why, and what would help."""

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
