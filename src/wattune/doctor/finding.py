"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """``state``: "ok"; "warn" where wattune works, with a drawback; "fail" where something cannot be done.

    ``text`` says what was seen, ``fix`` what would help ("" where nothing needs to).
    """

    name: str
    state: State
    text: str
    fix: str = ""
