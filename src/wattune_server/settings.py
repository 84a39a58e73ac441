"""Server settings."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from wattune_server.limits import Limits


def sqlite_file(store: Path) -> Path:
    """Path of the SQLite database of a store."""
    return store / "wattune.db"


def sqlite_url(store: Path) -> str:
    """URL of the SQLite database of a store."""
    return f"sqlite:///{sqlite_file(store)}"


def is_loopback(host: str) -> bool:
    """True if an address or a host name is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def memory_for(workers: int) -> int:
    """Memory in bytes that each sweep may use: its share of four fifths of the machine's, but 2 GiB at least."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(2 << 30, 4 * total // (5 * max(1, workers)))


@dataclass(frozen=True)
class Settings:
    """Settings of one server.

    ``proxy``: address of the reverse proxy whose X-Forwarded-For and X-Forwarded-Proto are believed. Behind it, all
    requests need a token, even if no token exists yet.

    ``workers``: sweeps at a time. ``worker_memory_bytes``: limit of the private memory of each; None for no limit.
    ``executor``: Ray cluster that trains their runs, as in ``wattune.proxy.estimate``.
    """

    store: Path
    database_url: str
    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    proxy: str | None = None
    executor: str | None = None
    worker_memory_bytes: int | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def session_cookie(self) -> str:
        """Name of the cookie of a session: one of each store, since a browser sends the cookies of a host to all of its
        ports, and those of a path to the paths below it."""
        return f"wattune_session_{hashlib.sha256(str(self.store.resolve()).encode()).hexdigest()[:8]}"
