"""What happened in a session: the points that training went on at, and what there is to know."""

from __future__ import annotations

from typing import Any

from wattune.point import OperatingPoint
from wattune.records import PointRecord


class Diary:
    """Changes of the point in their order, and notes, each of them once."""

    def __init__(self) -> None:
        self.changes: list[dict[str, Any]] = []
        self.notes: dict[str, None] = {}

    def note(self, text: str) -> None:
        """Something to be known of this session."""
        self.notes[text] = None

    def change(self, samples: int, time_s: float, point: OperatingPoint, why: str) -> None:
        """Training goes on at this point from now on."""
        at = PointRecord.model_validate(point).model_dump()
        entry = {"samples": samples, "time_s": max(0.0, time_s), "point": at, "why": why}
        self.changes.append(entry)
