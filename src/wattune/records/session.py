"""What a training in the user's own loop was: what was chosen, from what, and what it took."""

from __future__ import annotations

from typing import Literal

from wattune.records.base import BatchSize, NotNegative, Number, Positive, Record, Samples, Value
from wattune.records.board import BoardEvent, CapSide, Supply
from wattune.records.profile import ProfileTable
from wattune.records.training import ExactFigures, GuardEvent, PointChange
from wattune.records.work import OperatingPoint

EfficiencySource = Literal["curve", "prior", "prior and noise scale", "the user's batch size"]
"""Where it is known from how many samples each batch size needs."""

SessionEnding = Literal["finished", "interrupted", "stopped for safety", "failed"]


class SessionRecipe(Value):
    """What the user trains with, and whether that may change.

    ``batch_size`` is the user's own; ``keep``: it stays, and ``learning_rate_rule`` then says so, else how the learning
    rate follows the batch size.
    """

    batch_size: BatchSize
    keep: bool
    learning_rate_rule: str


class SessionRecord(Record):
    """One session: the board, the recipe, what was probed and chosen, what it took and how it ended.

    ``table`` holds every point that was probed, by ordinary training steps; its ``workload`` is the model's class.
    ``point`` is the last one that was chosen, ``changes`` are all that training ran at, in their order. Time and energy
    are of the whole session, with evaluations; ``compute_s``, ``waiting_s`` and ``copying_s`` are parts of its steps.
    ``cap_w`` is what the sensor was held below; ``supply_cap_w`` the cap at the supply that it comes from.
    """

    name = "session"

    device: str
    mode: str
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    supply_cap_w: Positive | None = None
    supply: Supply | None = None
    margin_w: NotNegative = 0.0
    max_temp_c: Number | None = None
    temperature_max_c: Number | None = None
    recipe: SessionRecipe
    table: ProfileTable | None = None
    efficiency_from: EfficiencySource
    noise_scale: Positive | None = None
    worth_of_curve: NotNegative | None = None
    worth_of_probing: NotNegative | None = None
    point: OperatingPoint | None = None
    changes: tuple[PointChange, ...] = ()
    samples: Samples
    steps: Samples
    passes: Samples = 0
    time_s: NotNegative
    energy_j: NotNegative
    power_mean_w: NotNegative | None = None
    power_peak_w: NotNegative | None = None
    above_cap_s: NotNegative = 0.0
    readings: Samples | None = None
    readings_above_cap: Samples | None = None
    compute_s: NotNegative = 0.0
    waiting_s: NotNegative = 0.0
    copying_s: NotNegative = 0.0
    advice: tuple[str, ...] = ()
    guard: tuple[GuardEvent, ...] = ()
    board_events: tuple[BoardEvent, ...] = ()
    ended: SessionEnding
    reason: str | None = None
    exact: ExactFigures | None = None
    notes: tuple[str, ...] = ()
