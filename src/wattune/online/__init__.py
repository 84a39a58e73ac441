"""Power-capped training in the user's own loop: ``capped`` and the session that it makes."""

from __future__ import annotations

from wattune.online.capped import capped
from wattune.online.micro_batching import Batch
from wattune.online.session import Session

__all__ = ["Batch", "Session", "capped"]
