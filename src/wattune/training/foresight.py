"""Progress of a run under a cap that changed, relative to that of perfect foresight."""

from __future__ import annotations

from dataclasses import replace

from wattune.records import CapInterval, Plan


def of_foresight(plan: Plan, intervals: tuple[CapInterval, ...], time_s: float) -> float | None:
    """Progress at the settings of these intervals, over that of the fastest of all points under each of their caps.

    Pauses count as no progress, also those before a lowering that was not announced. Evaluations, which stop both, are
    not told apart from steps. None if the plan has no times of its points, or no cap allowed any.
    """
    times = {
        one.point: (one.relative_time, one.predicted_window_w or one.predicted_peak_w)
        for one in plan.candidates
        if one.relative_time is not None and (one.predicted_window_w or one.predicted_peak_w) is not None
    }
    made = possible = 0.0
    ends_s = [*(one.time_s for one in intervals[1:]), time_s]
    for one, end_s in zip(intervals, ends_s, strict=True):
        length_s = max(0.0, end_s - one.time_s)
        limit = replace(plan.limit, limit_w=one.cap_w)
        allowed = [time for time, watts in times.values() if watts is not None and limit.allows(watts)]
        if one.asked_w == 0 or (one.cap_w is None and one.asked_w is not None) or not allowed:
            continue
        possible += length_s / min(allowed)
        time, _ = times.get(replace(plan.point, knobs=one.setting_of(plan.knobs)), (None, None))
        if one.pause is None and time is not None:
            made += length_s / time
    return made / possible if possible else None
