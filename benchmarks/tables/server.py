"""The server under load."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.server import fleet_tables
from benchmarks.server.fleet import NAME
from benchmarks.tables.results import read


def server_fleet() -> str:
    """A fleet of simulated clients against a real server."""
    return fleet_tables.markdown(read(NAME))


def server_verdict() -> str:
    """Capacity of one server, in two sentences."""
    return fleet_tables.verdict(read(NAME))


PARTS: dict[str, Callable[[], str]] = {"server_fleet": server_fleet, "server_verdict": server_verdict}
