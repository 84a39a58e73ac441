"""Record of a training run in the user's own loop: the choice, its candidates, time and energy."""

from __future__ import annotations

from typing import Literal

from wattune.cap import CapSide, Over
from wattune.goal import TIME, Goal
from wattune.records.base import (
    BatchSize,
    BoardEvent,
    Flag,
    NotNegative,
    Number,
    Positive,
    Record,
    Samples,
    Supply,
    Value,
)
from wattune.records.profile import ProfileTable
from wattune.records.training import CapInterval, ExactFigures, GuardEvent, PointChange
from wattune.records.work import PointRecord

EfficiencySource = Literal["curve", "prior", "prior and noise scale", "the user's batch size"]
"""Source of the samples to target of each batch size."""

SessionEnding = Literal["finished", "interrupted", "stopped for safety", "failed"]


class SessionRecipe(Value):
    """The user's recipe, and if it may change.

    ``batch_size`` is the user's own; ``keep``: it is fixed; ``learning_rate_rule``: how the learning rate follows the
    batch size, or that both are fixed.
    """

    batch_size: BatchSize
    keep: Flag
    learning_rate_rule: str


class SessionRecord(Record):
    """One session: the board, the recipe, the probed and chosen points, time, energy, and how it ended.

    ``table`` has every point that was probed, by ordinary training steps; its ``workload`` is the model's class.
    ``gain``: how many times as fast training was as with the user's own recipe at ``own_point``, the best of the first
    clock alone, search included; ``gain_from``: whether the time of a step there was measured.
    ``point`` is the last chosen one, ``changes`` are all points that training ran at, in order. Time and energy are of
    the whole session, with evaluations; ``compute_s``, ``waiting_s`` and ``copying_s`` are parts of its steps.
    ``cap_w`` is the limit at the sensor; ``supply_cap_w`` the cap at the supply that it was computed from.
    ``goal``: what the chosen point is best for. Under a cap that changes, ``cap_w`` is the limit of the highest, and
    ``cap_intervals`` as in a training record, as ``paused_s`` always is. In a job of several ``ranks``, ``samples``,
    time and energy are of all, and batch sizes are per rank; ``over``: the devices that the cap holds for together
    (None: one device).
    """

    name = "session"
    written_by = "wattune.capped"

    device: str
    mode: str
    cap_w: Positive | None = None
    cap_window_s: Positive | None = None
    cap_side: CapSide = "module"
    supply_cap_w: Positive | None = None
    goal: Goal = TIME
    supply: Supply | None = None
    margin_w: NotNegative = 0.0
    max_temp_c: Number | None = None
    temperature_max_c: Number | None = None
    recipe: SessionRecipe
    gain: Positive | None = None
    gain_from: Literal["measured", "forecast"] | None = None
    own_point: PointRecord | None = None
    table: ProfileTable | None = None
    efficiency_from: EfficiencySource
    noise_scale: Positive | None = None
    point: PointRecord | None = None
    changes: tuple[PointChange, ...] = ()
    ranks: BatchSize = 1
    over: Over | None = None
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
    guard: tuple[GuardEvent, ...] = ()
    board_events: tuple[BoardEvent, ...] = ()
    cap_intervals: tuple[CapInterval, ...] = ()
    paused_s: NotNegative | None = None
    ended: SessionEnding
    reason: str | None = None
    exact: ExactFigures | None = None
    notes: tuple[str, ...] = ()
