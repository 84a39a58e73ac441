"""Command ``wattune worker``: trains the runs of a server on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from wattune.cli.options import token_in
from wattune.cli.output import note
from wattune.cli.store import server_extra
from wattune.errors import InputError


def worker(
    server: Annotated[str, typer.Option("--server", metavar="URL", help="Address of the server.")],
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="File with a token of the scope worker (default: $WATTUNE_TOKEN)."
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="DEVICE", help="Train on one core of this machine, or on its GPU: cpu or cuda."
        ),
    ] = "cpu",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of this worker (default: the host's name).")
    ] = None,
) -> None:
    """Train runs of a server's sweeps on this machine, one at a time.

    \b
    Example:  wattune worker --server https://trainer.lan --token-file worker.token

    It needs the same wattune and torch as the server. Ctrl-C or SIGTERM stops it; its run is then given to another.
    """
    with server_extra():
        from wattune.server.jobs.claims import WorkerDevice
        from wattune.server.jobs.remote_worker import work
    if device not in get_args(WorkerDevice):
        raise InputError("--device", value=device, allowed=" or ".join(get_args(WorkerDevice)))
    if name is None:
        from wattune.job.with_server import own_name

        name = own_name()
    token = None if token_file is None else token_in(token_file)
    work(server, token, name, cast(WorkerDevice, device), note)
