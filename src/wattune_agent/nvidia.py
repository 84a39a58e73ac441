"""An NVIDIA card as a board: its locked graphics clock or its power limit, its energy counter, its conditions.

The driver keeps both when the process that set them dies, and does not report a lock. Both therefore appear as files of
the tree, for snapshot, restore and watch to treat like a kernel's. ``/nvml/UUID/locked_clock_mhz`` reads the clock that
this process has locked, or "none", which is always its original text: a lock of another program is not restored.
``/nvml/UUID/power_limit_mw`` reads what the driver reports. Memory clocks and modes are never touched.
"""

import math
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from wattune_agent.board import Board, PowerSensor
from wattune_agent.conditions import Conditions
from wattune_agent.energy_steps import REFRESH_S, WINDOW_S, EnergySteps
from wattune_agent.errors import AgentError, BadRequest, NoReading
from wattune_agent.file_knob import FileKnob, Limits
from wattune_agent.settings import thinned
from wattune_agent.tree import LIMIT, LOCK, Tree, card_file

if TYPE_CHECKING:
    from wattune_agent.nvml import Card

FAMILY = "nvidia"
"""The family of cards; "nvidia:1" and "nvidia:GPU-..." name one of several."""

BEST = "best"
"""In place of a knob's name: the power limit if it can be set, below which the card chooses its clocks itself and loses
little, otherwise the locked clock."""

TOLERANCE_MHZ = 15.0
"""Difference from the lock up to which a clock counts as locked: the driver may round to its next step."""

COVERS = "the GPU board with its memory, not the rest of the machine"

HELD = "power limit"
"""Reason that holds the clock of a card in its ordinary state, at its top clocks."""


class LockedClock(FileKnob):
    """The graphics clock of a card, locked to one frequency."""

    reports_pin = False

    def __init__(self, tree: Tree, card: "Card") -> None:
        """Raises: FileFailed; BadRequest if no clock can be locked."""
        clocks = thinned(card.clocks_mhz())
        if not clocks:
            raise BadRequest("{} has no clock that can be set".format(card.name))
        super().__init__(tree, "gpu", 1, [(Limits(tree, "", [card_file(card.uuid, LOCK)]), clocks)], clocks)
        self._card = card

    def now_mhz(self) -> Optional[float]:
        """The present clock; the locked one if the driver has rounded it."""
        clock_mhz, locked_mhz = self._card.clock_mhz(), self.pinned_mhz()
        if clock_mhz is None or locked_mhz is None or abs(clock_mhz - locked_mhz) > TOLERANCE_MHZ:
            return clock_mhz
        return locked_mhz


class PowerLimit(FileKnob):
    """The power limit of a card, in whole watts."""

    knob, measure = "power_limit_w", "W"

    def __init__(self, tree: Tree, card: "Card") -> None:
        """Raises: FileFailed; BadRequest if no limit can be set."""
        from wattune_agent.nvml import may_administer

        lowest_w, highest_w = card.limits_w() or (1.0, 0.0)
        limits_w = thinned(range(math.ceil(lowest_w), math.floor(highest_w) + 1))
        if not limits_w:
            raise BadRequest("{} has no power limit that can be set".format(card.name))
        if may_administer() and not card.takes_limit():
            raise BadRequest("{} reports a power limit, but its driver refuses to set it".format(card.name))
        limits_mw, path = [1000 * limit_w for limit_w in limits_w], card_file(card.uuid, LIMIT)
        super().__init__(tree, "gpu", 1000, [(Limits(tree, "", [path]), limits_mw)], limits_mw, now=path)


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

    def read(self) -> float:
        """Raises: NoReading."""
        try:
            power_w = self._steps.read_w() if self._steps is not None else self._card.usage_w()
        except AgentError as error:
            raise NoReading("{}: {}".format(self._card.name, error)) from error
        if power_w is None:
            raise NoReading("{}: {} is gone".format(self._card.name, self.rail))
        return power_w

    def _energy_j(self) -> float:
        energy_j = self._card.energy_j()
        if energy_j is None:
            raise NoReading("the energy counter is gone")
        return energy_j


class CardBoard(Board):
    """A card as a board, with conditions, mode and facts of its own in place of the machine's."""

    is_card = True

    def __init__(
        self, tree: Tree, card: "Card", clock: Optional[FileKnob], sensor: Optional[PowerSensor], problems: List[str]
    ) -> None:
        family = "{}:{}".format(FAMILY, card.uuid)
        super().__init__(tree, family=family, name=card.name, clock=clock, sensor=sensor, problems=problems)
        self._card = card
        self._sets_limit = clock is not None and clock.knob == PowerLimit.knob

    def conditions(self) -> Conditions:
        """The card's own: the machine's other temperatures and limits are not those of training on it."""
        try:
            held_back, temperature_c = self._card.held_back(), self._card.temperature_c()
        except AgentError:
            return Conditions(None, (), None)
        throttled = tuple(reason for reason in held_back if reason != HELD)
        # A limit that was asked for is not even worth a notice.
        return Conditions(temperature_c, throttled, None, (HELD,) if HELD in held_back and not self._sets_limit else ())

    def clock_mhz(self) -> Optional[float]:
        """The present graphics clock."""
        if self.clock is not None and not self._sets_limit:
            return super().clock_mhz()
        try:
            return self._card.clock_mhz()
        except AgentError:
            return None

    def mode(self) -> Dict[str, str]:
        """Driver, and the card's settings that affect its speed or power."""
        try:
            driver, limit_w, has_ecc = self.tree.cards().driver(), self._card.limit_w(), self._card.has_ecc()
        except AgentError:
            return {}
        parts = {"driver": driver} if driver else {}
        if has_ecc is not None:
            parts["ECC"] = "on" if has_ecc else "off"
        if self._card.is_divided():
            parts["MIG"] = "on"
        if limit_w is not None and not self._sets_limit:
            parts["power limit"] = "{:g} W".format(limit_w)
        return parts

    def facts(self) -> Dict[str, Any]:
        """UUID, compute capability, memory and highest power limit of the card, and the names of all cards in the
        driver's order. Raises: FileFailed for a lost card."""
        limits_w = self._card.limits_w()
        return {
            "uuid": self._card.uuid,
            "names": {card.uuid: card.name for card in self.tree.cards().all()},
            "capability": list(self._card.capability),
            "memory_bytes": self._card.free_bytes(),
            "shares_memory": self._card.shares_memory(),
            "highest_w": None if limits_w is None else limits_w[1],
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


def find_card(tree: Tree, family: str, knob: str = FileKnob.knob) -> Board:
    """The card of this family. ``knob``: the name of what is to be set, ``BEST``, or empty for nothing.

    Raises: BadRequest if the card does not exist, NotThere without a driver, FileFailed.
    """
    from wattune_agent.nvml import may_administer

    card = tree.cards().find(family.partition(":")[2] or "0")
    problems: List[str] = []
    sensor: Optional[PowerSensor] = None
    if card.energy_j() is not None or card.usage_w() is not None:
        sensor = CardSensor(card)
    else:
        problems.append(
            "{} tells no power (looked for the energy counter and the reported power); on a Jetson use --device "
            "jetson, otherwise a meter of your own by --device external:COMMAND".format(card.name)
        )
    clock = _knob_of(tree, card, knob, problems)
    if clock is not None and not may_administer():
        problems.append(
            "a change of a card's clock or limit needs CAP_SYS_ADMIN: run as root (a container also needs --cap-add "
            "SYS_ADMIN), or set nothing with --device nvidia:0?actuator=none"
        )
    if clock is not None and clock.knob == FileKnob.knob and not card.lists_clocks():
        problems.append(
            "the driver lists no clocks of {}: the settings are a grid up to its highest one, which was never "
            "tried on such a card".format(card.name)
        )
    if card.is_divided():
        problems.append("the GPU is divided into instances (MIG): its power is that of all of them together")
    return CardBoard(tree, card, clock, sensor, problems)


def _knob_of(tree: Tree, card: "Card", knob: str, problems: List[str]) -> Optional[FileKnob]:
    if knob == BEST and card.limits_w() is not None:
        try:
            return PowerLimit(tree, card)
        except BadRequest as error:
            problems.append("{}: its clock is locked instead".format(error))
    try:
        if knob:
            return PowerLimit(tree, card) if knob == PowerLimit.knob else LockedClock(tree, card)
    except BadRequest as error:
        problems.append(str(error))
    return None
