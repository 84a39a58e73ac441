"""Command ``wattune serve``: a server with simulated boards. Servers of devices are started by ``wattune-server``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.output import emit


def serve(
    demo: Annotated[bool, typer.Option("--demo", help="Run simulated boards against a server.")],
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 picks a free one.")
    ] = 8484,
) -> None:
    """Show a server with simulated boards at work, in a temporary store.

    \b
    Example:  wattune serve --demo

    A server of devices has a command of its own: wattune-server serve, store and token.
    """
    from wattune_server import demo as boards

    boards.load()  # it takes seconds, as the next line does
    from wattune_server import lifecycle
    from wattune_server.settings import Settings, sqlite_url

    with tempfile.TemporaryDirectory(prefix="wattune-demo-") as folder:
        settings = Settings(store=Path(folder), database_url=sqlite_url(Path(folder)), port=port)
        lifecycle.serve(settings, say=emit, is_demo=True)
