"""The search of a session, over the rows that it may still use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.goal import TIME, Goal
from wattune.point import BatchShape, Knobs
from wattune.search.policy import SESSION, SearchPolicy
from wattune.search.search import Search
from wattune.search.staged import StagedSearch


def session_search(
    rows: Sequence[BatchShape],
    start: BatchShape,
    device: Device,
    limit: SensorLimit,
    *,
    goal: Goal = TIME,
    relative: Callable[[], Mapping[int, tuple[float, float]]],
    manner: SearchPolicy = SESSION,
) -> Callable[[Callable[[BatchShape], bool]], Search | StagedSearch]:
    """A function that makes the search, over the rows for which it is given True and all settings of the device.

    ``start``: the user's own row. ``relative``: the present samples to target by batch size, see ``Search.relative``.
    """

    def new_search(usable: Callable[[BatchShape], bool]) -> Search | StagedSearch:
        usable_rows, settings = [row for row in rows if usable(row)] or [start], device.combinations()
        if len(device.knobs) > 1:
            return StagedSearch(search_of, usable_rows, settings, _first(usable_rows))
        return search_of(usable_rows, settings)

    def search_of(usable_rows: Sequence[BatchShape], settings: Sequence[Knobs]) -> Search:
        search = Search(
            usable_rows,
            settings,
            cap_w=limit.limit_w,
            start=_first(usable_rows),
            margin_w=limit.margin_w,
            **device.sensor.searched,
            cap_window_s=limit.window_s,
            manner=manner,
            goal=goal,
        )
        search.relative(relative())
        return search

    def _first(usable_rows: Sequence[BatchShape]) -> BatchShape:
        return start if start in usable_rows else usable_rows[0]

    return new_search
