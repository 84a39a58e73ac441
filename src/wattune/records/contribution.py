"""A contribution: the reference workloads measured on one board in one power mode, to compare boards with."""

from __future__ import annotations

from wattune.records.base import BatchSize, Flag, NotNegative, Number, Positive, Record, Samples, Value, Whole
from wattune.records.profile import ProfileCell, ProfileKey, ProfileTable
from wattune.records.work import AtPoint


class ContributedBoard(Value):
    """The board and its software, without anything that identifies its owner.

    ``settings``: values of each knob that the board offers, by the knob's name. ``sensor_covers``: what its power
    sensor measures, in words. ``l4t``, ``kernel``, ``driver``, ``torch``, ``cuda``: versions; None if not applicable.
    """

    name: str
    mode: str
    settings: dict[str, tuple[Number, ...]]
    memory_bytes: Positive | None = None
    sensor_rail: str
    sensor_covers: str = ""
    sensor_window_s: NotNegative | None = None
    sensor_resolution_w: NotNegative | None = None
    l4t: str | None = None
    kernel: str | None = None
    driver: str | None = None
    torch: str
    cuda: str | None = None


class Repeat(AtPoint):
    """A cell that was measured again at the end: its step time and mean power then, relative to before, less 1."""

    time: Number
    power: Number


class ContributedWorkload(Value):
    """One reference workload: its cells, and those that were measured again at the end."""

    workload: str
    key: ProfileKey
    cells: tuple[ProfileCell, ...]
    repeats: tuple[Repeat, ...] = ()

    @property
    def table(self) -> ProfileTable:
        """The cells as a profile."""
        return ProfileTable(device=self.key.device, workload=self.workload, cells=self.cells)


class Contribution(Record):
    """Measurements of the reference workloads over batch sizes and settings, in one power mode.

    ``set_version``: version of the set of reference workloads. ``is_complete``: every planned point was measured within
    ``limit_s`` of the device's time. ``is_steady``: there are repeats, and none differs by more than ``within``.
    ``throttled_cells``: cells that were throttled however often they were repeated. ``events``: kinds of what else
    happened on the board.
    """

    name = "contribution"

    board: ContributedBoard
    set_version: Whole
    workloads: tuple[ContributedWorkload, ...]
    points: Samples
    planned: BatchSize
    limit_s: Positive
    time_s: NotNegative
    energy_j: NotNegative
    is_complete: Flag
    is_steady: Flag
    within: Positive
    throttled_cells: Samples
    events: tuple[str, ...] = ()
