"""The commands, and what `wattune --help` says of them. What a command needs is loaded when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from wattune.cli.bundle import bundle
from wattune.cli.compare import compare
from wattune.cli.devices import devices
from wattune.cli.doctor import doctor
from wattune.cli.estimate import estimate
from wattune.cli.guard import guard
from wattune.cli.output import emit
from wattune.cli.plan import plan
from wattune.cli.profile import profile
from wattune.cli.report import report
from wattune.cli.restore import restore
from wattune.cli.run import run
from wattune.cli.serve import serve
from wattune.cli.store import store
from wattune.cli.token import token
from wattune.cli.train import train
from wattune.version import __version__

app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]})


def _version(asked: bool) -> None:
    if asked:
        emit(f"wattune {__version__}")
        raise typer.Exit


@app.callback()
def _wattune(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train fastest under a power cap: batch size and GPU clock, chosen together.

    \b
    Everything in one go:  wattune run --device sim:jetson-nano --cap 4.5W
    Step by step:          wattune devices, profile, estimate, plan, train, compare, report
    Real boards:           wattune doctor, guard, restore, bundle

    Exit codes: 0 done, 2 bad input, 3 target not reached, 4 stopped for safety, 130 interrupted, 1 anything else.
    """


for command in (run, devices, profile, estimate, plan, train, compare, report, doctor, guard, restore, bundle, serve):
    app.command()(command)
app.add_typer(store, name="store")
app.add_typer(token, name="token")
