"""Progress on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from wattune.cli.output import note

QUIET_S = 10.0
"""Seconds between two lines of one step, if stderr is not a terminal."""


class Progress(Protocol):
    """(done, total, what): how many of how many, and a few words; "step: words" if there are several steps."""

    def __call__(self, done: int, total: int, what: str) -> None: ...  # noqa: D102


@contextmanager
def shown() -> Iterator[Progress]:
    """A context that shows progress."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines(note)
        return

    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.fields[step]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def show(done: int, total: int, what: str) -> None:
            step, text = _split(what)
            if text.startswith("warning: "):
                console.print(f"wattune: {text}", markup=False, highlight=False)
                return
            if step not in tasks:
                for earlier in tasks.values():
                    bars.stop_task(earlier)
                tasks[step] = bars.add_task(text, step=step, total=total or None)
            bars.update(tasks[step], completed=done, total=total or None, description=text)

        yield show


def lines(write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Progress:
    """Progress as lines: the beginning and the end of each step, every warning, and otherwise one in ``QUIET_S``."""
    due: dict[str, float] = {}

    def show(done: int, total: int, what: str) -> None:
        step, text = _split(what)
        warning = text.startswith("warning: ")
        ended = total > 0 and done >= total
        if not warning and not ended and clock() < due.get(step, float("-inf")):
            return
        if total and not warning:
            due[step] = clock() + QUIET_S
        count = "" if warning or not total else f"{done}/{total} "
        write(f"{step}: {count}{text}" if step else f"{count}{text}")

    return show


def _split(what: str) -> tuple[str, str]:
    step, colon, text = what.partition(": ")
    return (step, text) if colon and step in ("profile", "estimate", "plan", "train", "compare") else ("", what)
