"""``wattune bundle``: what a board without a network needs, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.options import Json
from wattune.cli.output import emit, emit_json, note


def bundle(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="The board's Python.")] = "3.10",
    platform: Annotated[
        str, typer.Option("--platform", metavar="TAG", help="The board's platform, as pip names it.")
    ] = "manylinux2014_aarch64",
    as_json: Json = False,
) -> None:
    """Write all that a board without a network needs.

    Wheels of wattune and of what it needs but torch, and the agent as one file for any Python from 3.6 on.

    \b
    Example:  wattune bundle for-the-board --python 3.10 --platform manylinux2014_aarch64
    """
    from wattune.bundle import bundle as write

    made = write(folder, python=python, platform=platform, say=note)
    if as_json:
        emit_json(
            {
                "folder": str(made.folder),
                "wheels": [wheel.name for wheel in made.wheels],
                "agent": made.agent.name,
                "deploy": [file.name for file in made.deploy],
            }
        )
    else:
        emit(f"{len(made.wheels)} wheels and {made.agent.name} are in {made.folder}; {made.readme} says how to go on")
