"""Command ``wattune contribute``: measure the reference workloads on this board, for comparison with others."""

from __future__ import annotations

from typing import Annotated

import typer

from wattune.cli.options import File, Json, configured, of_this_machine
from wattune.cli.output import claim, note, shown
from wattune.errors import OutputError
from wattune.job.config import RunConfig

MINUTES = 30.0


@configured("device", "mode", "sysfs_root", read=of_this_machine)
def contribute(
    config: RunConfig,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", min=0.1, max=MINUTES, help="Longest time that it may take.")
    ] = MINUTES,
    output: File = None,
    as_json: Json = False,
) -> None:
    """Measure reference workloads on this board, to share.

    Takes at most 30 minutes: four workloads, three batch sizes, five settings, in one power mode. Prints the text of an
    issue to share the record with. That names the board, its software and its mode, and nothing that identifies you: no
    host or user name, path, serial number or address.

    \b
    Example:  wattune contribute --mode 0
    """
    from wattune.files import write_new
    from wattune.job.coercion import opened
    from wattune.job.contribution import check_device, contribute, least_s
    from wattune.reporting import phrases
    from wattune.reporting.contribution_text import issue_text, short_mode

    destination = claim(output, "contribution.json", as_json=as_json)
    text_path = None if destination.path is None else destination.path.with_name(f"{destination.path.stem}.md")
    if text_path is not None and (text_path.exists() or text_path == destination.path):
        raise OutputError("the text for an issue goes to", value=str(text_path), hint="choose another -o FILE.json")
    with opened(config.device) as board:
        check_device(board)
        note(
            f"{board.name}, {short_mode(board.mode)}: this takes {minutes:g} minutes at most, and "
            f"{phrases.seconds(least_s(board))} if every step is short; Ctrl-C restores the board and writes nothing"
        )
        with shown() as progress:
            record = contribute(board, limit_minutes=minutes, progress=progress)
    text = issue_text(record, "contribution.json" if destination.path is None else destination.path.name)
    if destination.path is not None and text_path is not None:  # before anything is printed, which may fail
        destination.save(record.dump())
        text_path = write_new(text_path, text.encode())
    destination.deliver(record, text)
    if text_path is not None:
        note(f"the text for an issue is in {text_path}")
