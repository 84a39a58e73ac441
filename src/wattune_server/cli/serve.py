"""Command ``wattune-server serve``: models, sweeps, profiles and records for a fleet of devices, and web pages."""

from __future__ import annotations

from typing import Annotated

import typer

from wattune.cli.output import emit
from wattune.proxy.executor import cluster_address
from wattune_server import lifecycle
from wattune_server.cli.store import STORE, DatabaseUrl, Store
from wattune_server.limits import limits_from_environment
from wattune_server.settings import Settings, memory_for, sqlite_url


def serve(
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on. Any address but loopback requires --proxy.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 picks a free one."),
    ] = 8484,
    store: Store = STORE,
    database: DatabaseUrl = None,
    workers: Annotated[
        int,
        typer.Option("--workers", metavar="N", min=0, max=256, help="Sweeps at a time, one core each."),
    ] = 1,
    proxy: Annotated[
        str | None,
        typer.Option(
            "--proxy",
            metavar="ADDRESS",
            help="Reverse proxy, e.g. 127.0.0.1, whose X-Forwarded headers are believed. Requires a token.",
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option("--executor", metavar="ray:ADDRESS", help="Ray cluster that trains the runs of the sweeps."),
    ] = None,
) -> None:
    """Serve models and proxy sweeps to a fleet of devices.

    \b
    Example:  wattune-server serve --store fleet
              wattune-server token make nano-1 --scope device --store fleet
              wattune-server serve --store fleet --proxy 127.0.0.1

    Ctrl-C or SIGTERM stops the server; unfinished jobs resume when it is started again.
    """
    if executor is not None:
        cluster_address(executor)
    folder = store.absolute()
    settings = Settings(
        store=folder,
        database_url=database or sqlite_url(folder),
        host=host,
        port=port,
        workers=workers,
        proxy=proxy,
        executor=executor,
        limits=limits_from_environment(),
        worker_memory_bytes=memory_for(workers),
    )
    lifecycle.serve(settings, say=emit)
