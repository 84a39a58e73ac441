"""An NVIDIA card as a board: its locked graphics clock, its energy counter, its conditions.

The driver keeps a lock when the process that set it dies, and does not report it. The lock therefore appears as a file
of the tree, ``/nvml/UUID/locked_clock_mhz``: it reads the clock that this process has locked, or "none". Snapshot,
restore and watch treat it like a kernel's file; its original text is always "none".
"""

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from wattune_agent.board import Board, CardFacts, Clock, Conditions, PowerSensor, Reading
from wattune_agent.energy_steps import REFRESH_S, WINDOW_S, EnergySteps
from wattune_agent.errors import AgentError, BadRequest, NoReading
from wattune_agent.settings import thinned
from wattune_agent.tree import Tree, lock_file, text

if TYPE_CHECKING:
    from wattune_agent.nvml import Card

__all__ = ["FAMILY", "card_names", "find_card", "is_card"]

FAMILY = "nvidia"
"""The family of cards; "nvidia:1" and "nvidia:GPU-..." name one of several."""

TOLERANCE_MHZ = 15.0
"""Difference from the lock up to which a clock counts as locked: the driver may round to its next step."""

COVERS = "the GPU board with its memory, not the rest of the machine"

POWER_LIMIT = "power limit"


class NvidiaClock(Clock):
    """The graphics clock of a card, locked to one frequency."""

    unit = "gpu"
    reports_pin = False

    def __init__(self, tree: Tree, card: "Card") -> None:
        """Raises: FileFailed; BadRequest if no clock can be locked."""
        self._tree = tree
        self._card = card
        self._file = lock_file(card.uuid)
        self.settings_mhz = tuple(float(mhz) for mhz in thinned(card.clocks_mhz()))
        if not self.settings_mhz:
            raise BadRequest("{} has no clocks that can be locked".format(card.name))

    def files(self) -> List[str]:
        """The lock."""
        return [self._file]

    def pin(self, mhz: float) -> Dict[str, str]:
        """Lock the clock. Raises: BadRequest, Forbidden, FileFailed."""
        if mhz not in self.settings_mhz:
            raise BadRequest("{} has no {:g} MHz".format(self._card.name, mhz))
        self._tree.write(self._file, "{:.0f}".format(mhz))
        return {}

    def pinned_mhz(self) -> Optional[float]:
        """The clock that this process has locked."""
        locked = self._tree.read(self._file)
        return float(locked) if locked.isdigit() else None

    def now_mhz(self) -> Optional[float]:
        """The present clock; the locked one if the driver has rounded it."""
        clock_mhz, locked_mhz = self._card.clock_mhz(), self.pinned_mhz()
        if clock_mhz is None or locked_mhz is None or abs(clock_mhz - locked_mhz) > TOLERANCE_MHZ:
            return clock_mhz
        return locked_mhz

    def limit_mhz(self, texts: Dict[str, str]) -> Optional[float]:
        """None: another program's lock is not reported."""
        return None

    def restore(self, texts: Dict[str, str]) -> None:
        """Leave the clock to the driver again. Raises: Forbidden, FileFailed."""
        self._tree.write(self._file, texts[self._file])


class CardSensor(PowerSensor):
    """The energy counter of a card, or what the driver reports as its power."""

    covers = COVERS
    period_s = REFRESH_S

    def __init__(self, card: "Card") -> None:
        from wattune_agent.nvml import AMPERE, GA100

        self._card = card
        self._steps: Optional[EnergySteps] = None
        self.rail = "reported power"
        if card.energy_j() is not None:
            self._steps = EnergySteps(self._energy_j)
            self.rail, self.window_s = "energy counter", WINDOW_S
        elif card.architecture >= AMPERE and card.capability != GA100:
            # Source: NVML reference, nvmlDeviceGetPowerUsage.
            self.rail, self.window_s = "averaged power", 1.0

    def read(self) -> Reading:
        """Raises: NoReading."""
        try:
            power_w = self._steps.read_w() if self._steps is not None else self._card.usage_w()
        except AgentError as error:
            raise NoReading("{}: {}".format(self._card.name, error)) from error
        if power_w is None:
            raise NoReading("{}: {} is gone".format(self._card.name, self.rail))
        return Reading(power_w, {self.rail: power_w})

    def _energy_j(self) -> float:
        energy_j = self._card.energy_j()
        if energy_j is None:
            raise NoReading("the energy counter is gone")
        return energy_j


class OneCard(CardFacts):
    """The conditions, mode and facts of a card, in place of the machine's."""

    def __init__(self, tree: Tree, card: "Card") -> None:
        self._tree = tree
        self._card = card

    def conditions(self) -> Conditions:
        """The card's own: the machine's other temperatures and limits are not those of training on it."""
        try:
            held_back, temperature_c = self._card.held_back(), self._card.temperature_c()
        except AgentError:
            return Conditions(None, (), None)
        throttled = tuple(reason for reason in held_back if reason != POWER_LIMIT)
        return Conditions(temperature_c, throttled, None, (POWER_LIMIT,) if POWER_LIMIT in held_back else ())

    def mode(self) -> Dict[str, str]:
        """Driver, and the card's settings that affect its speed or power."""
        parts = {}
        version = re.search(
            r"^NVRM version:.*?\s(\d+\.\d[\d.]*)\s", text(self._tree, "/proc/driver/nvidia/version"), re.M
        )
        if version is not None:
            parts["driver"] = version.group(1)
        try:
            is_persistent, limit_w = self._card.is_persistent(), self._card.limit_w()
        except AgentError:
            return parts
        if is_persistent is not None:
            parts["persistence"] = "on" if is_persistent else "off"
        if limit_w is not None:
            parts["power limit"] = "{:g} W".format(limit_w)
        return parts

    def facts(self) -> Dict[str, Any]:
        """UUID, compute capability and free memory of the card, and the names of all cards in the driver's order."""
        try:
            names = {card.uuid: card.name for card in self._tree.cards().all()}
            memory_bytes = self._card.free_bytes()
        except AgentError:
            names, memory_bytes = {self._card.uuid: self._card.name}, None
        return {
            "uuid": self._card.uuid,
            "names": names,
            "capability": list(self._card.capability),
            "memory_bytes": memory_bytes,
        }


def is_card(family: str) -> bool:
    """True if the family names an NVIDIA card."""
    return family.partition(":")[0] == FAMILY


def card_names(tree: Tree) -> List[str]:
    """The families of this machine's cards; empty without a driver, or without the means to call it."""
    try:
        return ["{}:{}".format(FAMILY, card.uuid) for card in tree.cards().all()]
    except (AgentError, ImportError, MemoryError):  # a hardened unit may forbid ctypes its memory
        return []


def find_card(tree: Tree, family: str) -> Board:
    """The card of this family. Raises: BadRequest if the card does not exist, NotThere without a driver, FileFailed."""
    from wattune_agent.nvml import may_administer

    card = tree.cards().find(family.partition(":")[2] or "0")
    problems: List[str] = []
    clock: Optional[Clock] = None
    sensor: Optional[PowerSensor] = None
    try:
        clock = NvidiaClock(tree, card)
    except BadRequest as error:
        problems.append(str(error))
    else:
        if not may_administer():
            problems.append(
                "a change of the clock needs CAP_SYS_ADMIN: run the agent as root (a container also needs --cap-add "
                "SYS_ADMIN)"
            )
        if not card.lists_clocks():
            problems.append(
                "the driver lists no clocks of {}: the settings are a grid up to its highest one, which was never "
                "tried on such a card".format(card.name)
            )
    if card.energy_j() is not None or card.usage_w() is not None:
        sensor = CardSensor(card)
    else:
        problems.append("{} tells no power (looked for the energy counter and the reported power)".format(card.name))
    if card.is_divided():
        problems.append("the GPU is divided into instances (MIG): its power is that of all of them together")
    own = OneCard(tree, card)
    return Board(
        tree,
        family="{}:{}".format(FAMILY, card.uuid),
        name=card.name,
        clock=clock,
        sensor=sensor,
        mode=own.mode(),
        problems=problems,
        card=own,
    )
