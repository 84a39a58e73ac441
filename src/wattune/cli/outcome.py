"""How a training ended, as an error: its record is kept whatever happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattune.errors import SafetyStop, TargetNotReached, WattuneError

if TYPE_CHECKING:
    from wattune.records import TrainingRecord


def failure(record: TrainingRecord) -> WattuneError | None:
    """SafetyStop or TargetNotReached where the training did not reach its target."""
    if record.ended == "stopped for safety":
        why = record.reason
        if why is None:
            cap = "" if record.plan.cap_w is None else f" of {record.plan.cap_w:g} W"
            why = f"{record.power_peak_w:.4g} W read and {record.above_cap_s:.3g} s above the cap{cap}"
        return SafetyStop(f"stopped for safety: {why}; the record is kept")
    if record.ended == "diverged":
        return TargetNotReached(
            f"training diverged after {record.samples:,} samples, its metric is no number any more; use a smaller "
            "learning rate; the record is kept"
        )
    if not record.reached:
        last = f" ({record.evaluations[-1].metric:.4g}, not {record.target})" if record.evaluations else ""
        return TargetNotReached(f"target not reached{last} after {record.samples:,} samples; the record is kept")
    return None
