"""The server under load."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import read


def server_fleet() -> str:
    """A fleet of simulated clients against a real server."""
    from benchmarks.server.fleet import NAME
    from benchmarks.server.fleet_tables import markdown

    return markdown(read(NAME))


def server_verdict() -> str:
    """Capacity of one server, in two sentences."""
    from benchmarks.server import overlap
    from benchmarks.server.fleet import NAME
    from benchmarks.server.fleet_tables import verdict

    return verdict(read(NAME)) + overlap.verdict(read(overlap.NAME))


def server_overlap() -> str:
    """Profiling on the device while the server estimates."""
    from benchmarks.server import overlap

    return overlap.markdown(read(overlap.NAME))


def server_many_devices() -> str:
    """The pages that list devices, with many of them in the store."""
    from benchmarks.server import many_devices

    return many_devices.markdown(read(many_devices.NAME))


PARTS: dict[str, Callable[[], str]] = {
    "server_fleet": server_fleet,
    "server_many_devices": server_many_devices,
    "server_overlap": server_overlap,
    "server_verdict": server_verdict,
}
