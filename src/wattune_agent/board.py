"""The parts of a board that this package uses: a clock, a power sensor, and the board's conditions."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.file_knob import FileKnob
from wattune_agent.tree import Tree


class Conditions(NamedTuple):
    """The board's state: its hottest zone, what throttles it now (empty: nothing), over-current events since it booted;
    None if the board does not report it. ``notices``: what holds its clock in its ordinary state."""

    temperature_c: Optional[float]
    throttled: Tuple[str, ...]
    over_current: Optional[int]
    notices: Tuple[str, ...] = ()


class PowerSensor:
    """Power in watts. Attributes as in ``wattune.devices.Sensor``; ``covers`` describes in words what is measured."""

    rail = ""
    covers = "the module"
    resolution_w = 0.0
    period_s = 0.0
    window_s = 0.0
    lag_s = 0.0

    def read(self) -> float:
        """Watts of the whole board, or of the rail that represents it. Raises: NoReading, Forbidden."""
        raise NotImplementedError


class Board:
    """A board found in a tree. ``clock`` is None if no clock can be set, ``sensor`` is None if no sensor was found;
    ``problems`` then give the reason and a remedy. ``others``: further clocks that this user may set beside ``clock``,
    by their names in a request: "memory_clock_mhz", "cpu_clock_mhz". ``card``: an ``nvidia.OneCard``, or None."""

    def __init__(
        self,
        tree: Tree,
        *,
        family: str,
        name: str,
        clock: Optional[FileKnob],
        sensor: Optional[PowerSensor],
        problems: List[str],
        card: Any = None,
        others: Optional[Dict[str, FileKnob]] = None,
    ) -> None:
        self.tree = tree
        self.family = family
        self.name = name
        self.clock = clock
        self.sensor = sensor
        self.problems = problems
        self.card = card
        self.others: Dict[str, FileKnob] = dict(others or {})
