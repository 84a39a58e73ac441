"""Command ``wattune-server``."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from wattune.cli.main import run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``wattune-server`` and return its exit code."""
    return run_program("wattune-server", _app, arguments)


def _app(arguments: Sequence[str]) -> typer.Typer:
    # Imported here, so that a missing package is one line that names the extra.
    from wattune_server.cli.serve import serve
    from wattune_server.cli.store import store
    from wattune_server.cli.token import token

    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]}
    )
    app.callback()(_wattune_server)
    app.command()(serve)
    app.add_typer(store, name="store")
    app.add_typer(token, name="token")
    return app


def _wattune_server() -> None:
    """Serve models and proxy sweeps to a fleet of devices, which `wattune run` trains."""
