"""Command ``wattune report``: records as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.options import Json
from wattune.cli.output import tell
from wattune.errors import OutputError


def report(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORDS", help="Folder of a run, record files, or a session.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="HTML file (default: report.html beside the records, replaced).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write records as one HTML file.

    \b
    Example:  wattune report wattune-run-1
    """
    from wattune.reporting import write_report

    if output is None:
        beside = (records[0] if records[0].is_dir() else records[0].parent) / "report.html"
        path = write_report(records, beside)
    elif output.exists():
        raise OutputError("the output file exists", value=str(output), hint="choose another with -o FILE")
    else:
        path = write_report(records, output, replace=False)
    tell({"report": str(path)}, str(path), as_json=as_json)
