"""Power-capped training in the user's own loop: ``capped`` and the session that it makes."""

from __future__ import annotations

from wattune.decisions.search import Point, Row
from wattune.session.batch import Batch
from wattune.session.opening import capped
from wattune.session.session import Session

__all__ = ["Batch", "Point", "Row", "Session", "capped"]
