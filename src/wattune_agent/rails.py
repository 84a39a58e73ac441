"""Power rails: which of them are the whole module, and the sensor that reads them."""

import math
import re
from typing import Dict, List, Optional, Sequence, Tuple

from wattune_agent.board import PowerSensor
from wattune_agent.errors import AgentError, FileFailed, Forbidden, NoReading
from wattune_agent.tree import Tree

OTHERS_S = 1.0
"""Time between two comparisons of the input with its parts: a register takes half a millisecond."""

HIGHEST_W = 1000.0
"""Highest plausible power of a supported board: a higher value is a sensor error."""

SHORT = 0.95
"""Share of its parts' sum that the input may read: two readings are never simultaneous."""

# What carries the input of a module or board. "VDD_M2_IN" (one slot of a carrier) and "VIN_SYS_5V0" (one of three
# inputs of an AGX) are parts. Source: rbonghi/jetson_stats jtop/core/power.py, energymon JetsonPowerRails.md.
_INPUT = re.compile(r"^(?:(?:VDD|POM|SYS|DC)_)?(?:5V0?_)?(?:VDD_)?IN$")
_CARRIER_INPUT = re.compile(r"^(?:VIN|DC_IN|VIN_TOTAL)$")

SUMS = (
    frozenset({"GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"}),  # AGX Xavier
    # Without VDDQ_VDD2_1V8AO, which VIN_SYS_5V0 feeds.
    frozenset({"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"}),  # AGX Orin
    frozenset({"VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"}),  # AGX Thor
)
"""The rails whose sum is the whole module, for modules without one input. Any other rail may be fed by one of them, or
lie on the carrier board. Source: energymon JetsonPowerRails.md."""

_PROCESSORS = frozenset({"CPU", "GPU"})
_PARTS = frozenset({"CPU", "GPU", "CV", "SOC", "DDR", "VDDRQ", "DDRQ", "MSS", "SRAM", "CORE"})


class Rail:
    """One rail: its name, and the files whose numbers, multiplied and scaled, give its watts.

    ``window_s``: averaging time of its chip.
    """

    def __init__(
        self, name: str, files: Sequence[str], to_w: float, *, resolution_w: float = 0.0, window_s: float = 0.0
    ) -> None:
        self.name = name
        self.files = tuple(files)
        self.to_w = to_w
        self.resolution_w = resolution_w
        self.window_s = window_s
        words = set(re.split(r"[^A-Z0-9]+", name.upper()))
        self.of_processors = bool(words & _PROCESSORS)
        """True if it feeds the CPU or the GPU."""
        self.is_part = bool(words & _PARTS)
        """True if it is fed from the module's input."""

    def read_w(self, tree: Tree) -> float:
        """Watts. Raises: Forbidden, NoReading."""
        watts = self.to_w
        for path in self.files:
            try:
                # "4912", or "32760 ma" as the L4T 4.9 driver writes limits.
                watts *= float(tree.read(path).split(None, 1)[0])
            except Forbidden:
                raise
            except (FileFailed, ValueError, IndexError) as error:
                text = str(error) if isinstance(error, FileFailed) else path + " contains no number"
                raise NoReading("no reading of {}: {}".format(self.name, text)) from error
        if not math.isfinite(watts) or abs(watts) > HIGHEST_W:
            raise NoReading("{}: {} reads {:g} W, which is impossible".format(self.files[0], self.name, watts))
        return watts


class RailSensor(PowerSensor):
    """Several rails, and the whole board by one of them or by the sum of some.

    The input's name alone is not believed: some images label the channels in another order, so that the GPU "draws"
    more than the board. A reading in which the input is less than its parts is given by the largest of them.
    """

    def __init__(self, tree: Tree, rails: Sequence[Rail], whole: Sequence[Rail], covers: str) -> None:
        self._tree = tree
        self._rails = list(rails)
        self._whole = list(whole)
        self._compared_s = -math.inf
        self._contradicts = False
        # A chip shows one cycle's mean when it is over, and holds it for the next cycle.
        self.window_s = self.period_s = max(rail.window_s for rail in whole)
        self.rail = " + ".join(rail.name for rail in whole)
        self.covers = covers
        self.resolution_w = max(rail.resolution_w for rail in whole)

    def read(self) -> float:
        """Read the rails that give the power, and once a second the parts of an input too. Raises: NoReading,
        Forbidden."""
        now_s, is_input = self._tree.now_s(), len(self._whole) == 1
        is_all = is_input and (now_s - self._compared_s >= OTHERS_S or self._contradicts)
        rails_w, failures = self._rails_w(self._rails if is_all else self._whole)
        for rail in self._whole:
            if rail.name in failures:
                raise failures[rail.name]  # a sum without one of its parts would be too low
        power_w = sum(rails_w[rail.name] for rail in self._whole)
        if is_input and (power_w > 0.0 or self.rail != self._whole[0].name):
            # Only rails that were read together can contradict each other. A failed sensor is not a wrong label: its
            # parts must not replace it.
            name, power_w = largest(self._whole[0], self._rails, rails_w)
            self._contradicts = name != self._whole[0].name
        if not 0.0 < power_w <= HIGHEST_W:
            raise NoReading("{} reads {:g} W, which is impossible on a running board".format(self.rail, power_w))
        if is_all:
            self._compared_s = now_s
        return power_w

    def check(self) -> List[str]:
        """Compare the labels with the readings and return any problems; after one, ``rail`` names the rail in use. A
        change of load may fall between two rails' readings, so that only three contradictions in a row count."""
        whole = self._whole[0]
        for _ in range(3 if len(self._whole) == 1 else 0):
            rails_w, failures = self._rails_w(self._rails)
            if whole.name in failures or rails_w[whole.name] <= 0.0:
                return []  # a failed sensor is not a wrong label: `read` reports it
            name, most_w = largest(whole, self._rails, rails_w)
            if name == whole.name:
                return []
            self._tree.sleep(max(0.1, self.window_s))
        if len(self._whole) > 1:
            return []
        self.rail = name
        self.covers = "the module, by its largest rail"
        return [
            "the labels of the power rails contradict each other: {} reads {:.2f} W, less than what it feeds; "
            "{}, the largest at {:.2f} W, is used for the module: compare it with an external meter".format(
                whole.name, rails_w[whole.name], name, most_w
            )
        ]

    def _rails_w(self, rails: Sequence[Rail]) -> Tuple[Dict[str, float], Dict[str, AgentError]]:
        rails_w: Dict[str, float] = {}
        failures: Dict[str, AgentError] = {}
        for rail in rails:
            try:
                rails_w[rail.name] = rail.read_w(self._tree)
            except (NoReading, Forbidden) as error:
                failures[rail.name] = error
        return rails_w, failures


def whole_of(rails: Sequence[Rail]) -> Optional[Tuple[List[Rail], str]]:
    """The rails whose sum is the whole module, and what they cover; None if none are known to be.

    The module's input comes first, then one that also carries the carrier board.
    """
    for pattern, covers in ((_INPUT, "the module"), (_CARRIER_INPUT, "the module and its carrier board")):
        for rail in rails:
            if pattern.match(_plain(rail.name)):
                return [rail], covers
    for names in SUMS:
        summed = [rail for rail in rails if _plain(rail.name) in names]
        if len(summed) == len(names):
            return summed, "the module, as the sum of {} rails".format(len(summed))
    return None


def _plain(label: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", label.upper()).strip("_")


def largest(whole: Rail, rails: Sequence[Rail], rails_w: Dict[str, float]) -> Tuple[str, float]:
    """Name and watts of the rail that represents the whole: ``whole``, or the largest of its parts if it reads less
    than they do."""
    parts = [rail for rail in rails if rail is not whole and rail.is_part and rail.name in rails_w]
    whole_w = rails_w[whole.name]
    together_w = sum(rails_w[rail.name] for rail in parts if rail.of_processors)
    name, most_w = max([(r.name, rails_w[r.name]) for r in parts], key=lambda pair: pair[1], default=(whole.name, 0.0))
    if whole_w >= SHORT * max(together_w, most_w):
        return whole.name, whole_w
    return (name, most_w) if most_w > whole_w else (whole.name, whole_w)
