"""Result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    ``state``: "ok"; "warn" if wattune works, with a drawback; "fail" if something cannot be done. ``text`` describes
    it, ``fix`` is what would help ("" if nothing needs fixing).
    """

    name: str
    state: State
    text: str
    fix: str = ""
