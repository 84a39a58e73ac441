"""Command ``wattune monitor``: what a board draws, second by second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.options import configured, of_this_machine
from wattune.cli.output import claim, emit, note
from wattune.errors import InputError, Interrupted, OutputError, SensorError, WattuneError
from wattune.job.config import RunConfig

if TYPE_CHECKING:
    from rich.console import Group

    from wattune.tracking.board_watch import BoardRow, BoardWatch

    Show = Callable[[BoardRow], None]


@configured("device", "sysfs_root", read=of_this_machine)
def monitor(
    config: RunConfig,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Program to measure, and its arguments (default: none)."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write one line a second to this CSV file (default: none)."
        ),
    ] = None,
) -> None:
    """Show power, clock, temperature and throttling of a board; it is read and never changed.

    In a terminal this is a table, otherwise one line a second; Ctrl-C ends it. With a COMMAND, that program runs and
    is measured: it has the terminal, a summary follows on stderr, and the exit code is the program's own.

    \b
    Example:  wattune monitor --output power.csv
              wattune monitor --device nvidia:0 -- python3 train.py
    """
    from wattune.devices import open_device
    from wattune.tracking.board_watch import BoardWatch, rows_file

    if output is not None:
        claim(output, "", as_json=False)
    board = open_device(str(config.device))
    try:
        if command and not board.executes_steps:
            raise InputError(
                "this device cannot run programs", value=board.spec, hint="give the board that runs the program"
            )
        watch = BoardWatch(board)
        with nullcontext(lambda row: None) if output is None else rows_file(output) as write:
            code = _run(command, watch, write) if command else _watch(watch, write)
    finally:
        board.close()
    raise typer.Exit(code)


def _watch(watch: BoardWatch, write: Show) -> int:
    """Show rows until Ctrl-C. Raises: Interrupted with the summary."""
    from wattune.tracking.board_watch import ROW_S

    board = watch.device
    try:
        with watch, _shown(watch) as show:
            due_s = board.now_s()
            while True:
                due_s = max(due_s + ROW_S, board.now_s())
                board.wait(max(0.0, due_s - board.now_s()))
                if not board.executes_steps:  # its time passes without a real wait
                    time.sleep(ROW_S)
                row = watch.row()
                write(row)
                show(row)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {_summary(watch)}") from None


def _run(command: list[str], watch: BoardWatch, write: Show) -> int:
    """Run a program, and measure until it ends. Returns: its exit code."""
    import shutil

    from wattune.devices.real_time import mapped
    from wattune.tracking.board_watch import ROW_S
    from wattune_agent.program import GuardedProgram

    if shutil.which(command[0]) is None:
        raise InputError("program not found", value=command[0])
    program, failure = GuardedProgram(command), None
    with mapped(), watch, program.signals():
        try:
            program.start()
            while True:
                has_ended = program.ended.wait(ROW_S)
                if failure is None:
                    failure = _failure(lambda: write(watch.row()))
                if has_ended:
                    break
        finally:
            program.let_go()
    try:
        note(_summary(watch))
    except SensorError as error:
        failure = failure or error
    if failure is not None and program.exit_code == 0:
        raise failure
    return program.exit_code


def _failure(step: Callable[[], None]) -> WattuneError | None:
    """The error of a step, noted at once: the program that is measured runs on without it."""
    try:
        step()
    except (SensorError, OutputError) as error:
        note(f"no more rows: {error}")
        return error
    return None


def _summary(watch: BoardWatch) -> str:
    """Figures of the whole time, in one line. Raises: SensorError."""
    from wattune.reporting import phrases

    figures = watch.figures()
    mean_w = figures.energy_j / figures.time_s if figures.time_s > 0 else figures.power_mean_w
    parts = [
        f"{phrases.seconds(figures.time_s)} on {watch.device.name} ({watch.device.kind})",
        phrases.joules(figures.energy_j),
        f"{phrases.watts(mean_w)} on average",
        f"{phrases.watts(figures.power_peak_w)} at most",
    ]
    if watch.temperature_max_c is not None:
        parts.append(f"{watch.temperature_max_c:.1f} °C at most")
    if watch.throttled_rows:
        parts.append(f"throttled in {watch.throttled_rows} of {watch.rows} seconds")
    return ", ".join(parts)


@contextmanager
def _shown(watch: BoardWatch) -> Iterator[Show]:
    """A context that shows rows: a live table in a terminal, otherwise lines."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        emit(f"# {watch.device.name} ({watch.device.kind})")
        emit(f"{'seconds':>8} {'power':>9} {'peak':>9} {'clock':>9} {'temp.':>8}  throttled")
        yield lambda row: emit(_line(row))
        return

    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda row: live.update(_table(watch, row), refresh=True)


def _line(row: BoardRow) -> str:
    from wattune.reporting import phrases

    watts = f"{phrases.watts(row.power_w):>9} {phrases.watts(row.power_peak_w):>9}"
    return f"{row.seconds:>8.1f} {watts} {_clock(row):>9} {_celsius(row.temperature_c):>8}  {row.throttled or '-'}"


def _table(watch: BoardWatch, row: BoardRow) -> Group:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from wattune.reporting import phrases

    board, figures = watch.device, watch.figures()
    mean_w = figures.energy_j / figures.time_s if figures.time_s > 0 else figures.power_mean_w
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for name in ("now", "mean", "highest"):
        table.add_column(name, justify="right", min_width=10)
    highest = phrases.watts(figures.power_peak_w)
    table.add_row(f"power ({board.sensor.rail})", phrases.watts(row.power_w), phrases.watts(mean_w), highest)
    table.add_row("clock", _clock(row))
    table.add_row("temperature", _celsius(row.temperature_c), "", _celsius(watch.temperature_max_c, none=""))
    table.add_row("throttled", row.throttled or "-", "", f"{watch.throttled_rows} s" if watch.throttled_rows else "")
    table.add_row("energy", phrases.joules(row.energy_j), f"in {phrases.seconds(row.seconds)}")
    return Group(Text(f"{board.name} ({board.kind})", style="bold"), table)


def _clock(row: BoardRow) -> str:
    return "-" if row.clock_mhz is None else f"{row.clock_mhz:.0f} MHz"


def _celsius(value: float | None, *, none: str = "-") -> str:
    return none if value is None else f"{value:.1f} °C"
