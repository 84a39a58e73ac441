"""Command ``wattune bundle``: everything that a board without a network needs, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.options import Json
from wattune.cli.output import emit, emit_json, note


def bundle(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Python version of the board.")] = "3.10",
    platform: Annotated[
        str, typer.Option("--platform", metavar="TAG", help="Platform of the board, as pip names it.")
    ] = "manylinux2014_aarch64",
    as_json: Json = False,
) -> None:
    """Write everything that a board without a network needs to a folder.

    The wheels of wattune and of its dependencies except torch, and the agent as one file for Python 3.6 and newer.

    \b
    Example:  wattune bundle for-the-board --python 3.10 --platform manylinux2014_aarch64
    """
    from wattune.bundle import bundle as write

    result = write(folder, python=python, platform=platform, say=note)
    if as_json:
        emit_json(
            {
                "folder": str(result.folder),
                "wheels": [wheel.name for wheel in result.wheels],
                "agent": result.agent.name,
                "deploy": [file.name for file in result.deploy],
            }
        )
    else:
        emit(f"{len(result.wheels)} wheels and {result.agent.name} are in {result.folder}")
        emit(f"the next steps are in {result.readme}")
