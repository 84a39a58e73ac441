"""Sessions of a browser: a random name in a cookie, whose hash is kept in memory; and tokens against forged forms.

A server that starts again knows nobody any more: sign in again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

COOKIE = "wattune_session"
LASTS_S = 12 * 3600
MOST = 1000
"""Sessions at a time; the oldest ends for a new one."""


@dataclass
class Sessions:
    """The sessions of one server process."""

    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _held: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, token: str) -> str:
        """Begin one for the token of this id; gives the value of its cookie."""
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._held[_hash(value)] = (token, time.time() + LASTS_S)
            if len(self._held) > MOST:
                self._held.popitem(last=False)
        return value

    def token(self, value: str) -> str | None:
        """The id of the token that the session of this cookie was begun with; None where there is none."""
        with self._lock:
            token, until_s = self._held.get(_hash(value), ("", 0.0))
            return token if time.time() < until_s else None

    def end(self, value: str) -> None:
        """End the one of this cookie."""
        with self._lock:
            self._held.pop(_hash(value), None)

    def csrf(self, value: str | None) -> str:
        """What a form of this session has to carry: known to nobody who cannot read our pages."""
        return hmac.new(self._key, (value or "no session").encode(), hashlib.sha256).hexdigest()


def _hash(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()
