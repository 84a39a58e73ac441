"""A board by the parts of it that this package uses: clocks, a power sensor, conditions and a mode."""

from typing import Any, Dict, List, Optional

from wattune_agent.conditions import Conditions, conditions
from wattune_agent.errors import AgentError
from wattune_agent.file_knob import FileKnob
from wattune_agent.mode import mode
from wattune_agent.tree import Tree


class PowerSensor:
    """Power in watts. Attributes as in ``wattune.devices.Sensor``; ``covers`` describes in words what is measured."""

    rail = ""
    covers = ""
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
    by their names in a request: "memory_clock_mhz", "cpu_clock_mhz"."""

    is_card = False
    """True for an NVIDIA card, whose parts come with its driver."""

    def __init__(
        self,
        tree: Tree,
        *,
        family: str,
        name: str,
        clock: Optional[FileKnob],
        sensor: Optional[PowerSensor],
        problems: List[str],
        others: Optional[Dict[str, FileKnob]] = None,
    ) -> None:
        self.tree = tree
        self.family = family
        self.name = name
        self.clock = clock
        self.sensor = sensor
        self.problems = problems
        self.others: Dict[str, FileKnob] = dict(others or {})

    def conditions(self) -> Conditions:
        """Present conditions of the board."""
        return conditions(self.tree)

    def clock_mhz(self) -> Optional[float]:
        """Present clock; None if it cannot be read."""
        try:
            return self.clock.now_mhz() if self.clock is not None else None
        except AgentError:
            return None

    def mode(self) -> Dict[str, str]:
        """Parts of the mode, in words."""
        return mode(self.tree, self.family)

    def facts(self) -> Optional[Dict[str, Any]]:
        """Further facts about a card; None for other boards. Raises: FileFailed for a lost card."""
        return None
