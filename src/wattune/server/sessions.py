"""Browser sessions: a random id in a cookie, whose hash is held in memory; and CSRF tokens for forms.

Sessions do not survive a restart of the server.
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
LIFETIME_S = 12 * 3600
MOST = 1000
"""Maximum number of sessions; a new one evicts the oldest."""


@dataclass
class Sessions:
    """Sessions of one server process."""

    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _sessions: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, token: str) -> str:
        """Begin a session for the token with this id; return the value of its cookie."""
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[_hash(value)] = (token, time.time() + LIFETIME_S)
            if len(self._sessions) > MOST:
                self._sessions.popitem(last=False)
        return value

    def token(self, value: str) -> str | None:
        """Id of the token behind a session cookie; None if the session is unknown or has expired."""
        with self._lock:
            token, until_s = self._sessions.get(_hash(value), ("", 0.0))
            return token if time.time() < until_s else None

    def end(self, value: str) -> None:
        """End the session of a cookie."""
        with self._lock:
            self._sessions.pop(_hash(value), None)

    def csrf(self, value: str | None) -> str:
        """CSRF token of a session, required in its forms; only a client that can read our pages knows it."""
        return hmac.new(self._key, (value or "no session").encode(), hashlib.sha256).hexdigest()


def _hash(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()
