"""Power-capped training in the user's own loop: ``capped`` and the session that it makes."""

from __future__ import annotations

from wattune.loop.capped import capped
from wattune.loop.micro_batching import Batch
from wattune.loop.session import Session

__all__ = ["Batch", "Session", "capped"]
