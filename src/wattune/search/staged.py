"""Search over several clocks and several batch sizes: first the clocks of one row, then the rows at the best of them.

All rows at all settings together are ten thousands of points, and a decision among them takes seconds. How a board's
power divides among its clocks hardly depends on the batch size, so the clocks beside the first one are chosen once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.search.observation import Stretch
from wattune.search.search import OwnRecipe, Search

NewSearch = Callable[[Sequence[BatchShape], Sequence[Knobs]], Search]
"""Make a search over these rows and settings."""


class StagedSearch:
    """A ``Search`` in two stages, for a device with several knobs: all ``settings`` of the row ``start``, then all
    ``rows`` along the first knob, at the values of the other knobs that are best for ``start``, and at each setting
    that the first stage has measured: the best one may turn out to be above the cap."""

    def __init__(self, new: NewSearch, rows: Sequence[BatchShape], settings: Sequence[Knobs], start: BatchShape):
        self._new = new
        self._rows = tuple(rows)
        self._settings, self._start = tuple(settings), start
        self._rows_at: Knobs | None = None
        self._own: OwnRecipe | None = None  # which the second stage may not have
        self._stage = new([start], settings)

    def next(self) -> OperatingPoint | None:
        """The point to probe now; None if nothing is left that is worth it (``reason`` says why)."""
        point, best = self._stage.next(), self._stage.best()
        if point is not None or best is None or self._rows_at is not None or len(self._rows) == 1:
            return point
        self._begin_rows(best.knobs, self._stage.state_dict())
        return self._stage.next()

    def _begin_rows(self, at: Knobs, measured: dict[str, Any]) -> None:
        self._rows_at, self._own = at, self._stage.own_recipe()
        names, seen = list(at), {tuple(place[2:]) for place, _ in measured["seen"]}
        along = self._settings_at(at)
        others = [k for k in self._settings if tuple(k[name] for name in names) in seen and k not in along]
        self._stage = self._new(self._rows, sorted([*along, *others]))
        self._stage.load_state_dict(measured)

    def _settings_at(self, at: Knobs) -> list[Knobs]:
        """The settings along the first knob, at these values of the others."""
        _, *others = at
        return [knobs for knobs in self._settings if all(knobs.get(name) == at[name] for name in others)]

    @property
    def samples_left(self) -> float | None:
        """Samples of training to come; see ``Search``."""
        return self._stage.samples_left

    @samples_left.setter
    def samples_left(self, samples: float) -> None:
        self._stage.samples_left = samples

    @property
    def reason(self) -> str:
        """Why the search ended."""
        return self._stage.reason

    def relative(self, known: Mapping[int, tuple[float, float]]) -> None:
        """Set the relative samples of the batch sizes; see ``Search``."""
        self._stage.relative(known)

    def tell(self, point: OperatingPoint, stretch: Stretch) -> None:
        """Add the measurements of a probe, or of training; see ``Search``."""
        self._stage.tell(point, stretch)

    def above(self, point: OperatingPoint, power_w: float) -> None:
        """Exclude a point after a reading above the cap there; see ``Search``."""
        self._stage.above(point, power_w)

    def best(self) -> OperatingPoint | None:
        """The best measured point; see ``Search``."""
        return self._stage.best()

    def own_recipe(self) -> OwnRecipe | None:
        """The user's own row at the best value of the first knob; see ``Search``."""
        return self._stage.own_recipe() if self._rows_at is None else self._own

    def state_dict(self) -> dict[str, Any]:
        """State from which a later search continues, as JSON values."""
        own = None if self._own is None else [dict(self._own.point.knobs), *self._own[1:]]
        rows_at = None if self._rows_at is None else dict(self._rows_at)
        return {**self._stage.state_dict(), "rows_at": rows_at, "own": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        rows_at = None if state.get("rows_at") is None else Knobs(state["rows_at"])
        # A board in another mode may have none of these settings: its search stays in the first stage.
        if rows_at is not None and self._rows_at is None and self._settings_at(rows_at):
            self._begin_rows(rows_at, state)
            if state.get("own") is not None:
                knobs, step_s, is_measured = state["own"]
                self._own = OwnRecipe(OperatingPoint(self._start, Knobs(knobs)), step_s, is_measured)
        self._stage.load_state_dict(state)
