"""What a server was told to be."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from wattune.server.limits import Limits


def sqlite_file(store: Path) -> Path:
    """The database of a store that has none elsewhere."""
    return store / "wattune.db"


def sqlite_url(store: Path) -> str:
    """Its URL."""
    return f"sqlite:///{sqlite_file(store)}"


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address or a name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Settings:
    """Of one server. ``requires_token``: whether nobody gets in without one, even while there is none."""

    store: Path
    database_url: str
    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    executor: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    requires_token: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def has_tls(self) -> bool:
        """Whether it speaks https by itself."""
        return self.tls_cert is not None
