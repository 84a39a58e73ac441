"""The command line: the commands, and how any error becomes one line on stderr and an exit code.

Exit codes: 0 done; 1 internal error; 2 bad input; 3 target not reached; 4 stopped for safety; 130 interrupted. With
``--json`` the error is printed on stdout as well, as ``{"error": {"type", "message", "exit_code", ...}}`` or inside the
record, if there is one.
"""

from __future__ import annotations

import _thread
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Annotated, Any

import typer

from wattune.cli.output import emit, emit_json, note, reserved_stdout
from wattune.errors import InputError, OutputError, WattuneError
from wattune.extras import missing_package
from wattune.version import __version__

TRACEBACK = "WATTUNE_TRACEBACK"
"""Environment variable: if it is 1, errors are printed with their traceback."""

LONGEST = 600
"""Most characters of a message; a value given by the user may be of any length."""

# The usage errors of the library below typer, which newer versions of typer carry inside: this name fits both.
UsageError: type[Any] = typer.BadParameter.__mro__[1]

AGAIN_S = 0.05
"""Time after which an interrupt that a finalizer lost is repeated, by when the finalizer has ended."""

OF_PROGRAMS = frozenset({"guard", "serve"})
"""Commands whose stdout is for the program that they run, or for themselves alone, since they run no code of a user."""

COMPLETION = "_WATTUNE_COMPLETE"
"""Environment variable with which a shell asks for the completion of a command line."""

COMMANDS = {
    "run": "Profile, estimate, plan, train and report, in one folder.",
    "devices": "List the devices of this computer and the simulated boards.",
    "profile": "Measure step time and power of a workload, or of any program, per batch size and clock.",
    "estimate": "Estimate on a proxy how many samples each batch size needs.",
    "plan": "Choose batch size and clock from records, and the training algorithm if there are records of several.",
    "train": "Train at the planned point, with the planned algorithm, until the target.",
    "compare": "Train the pick of wattune and those of simpler rules.",
    "report": "Write records as one HTML file.",
    "doctor": "Diagnose a device and suggest fixes.",
    "guard": "Run any program under a cap, training at the fastest clocks: meter, guard, restore.",
    "restore": "Restore clocks that a killed process left changed.",
    "serve": "Show a server with simulated boards at work, in a temporary store.",
}
"""Commands in the order of the help, with the first lines of their own help; ``wattune.cli.NAME`` has the function."""


OF_SERVER = ("serve", "store", "token")
"""Commands of ``wattune-server``. Of these, ``wattune`` has ``serve --demo`` alone."""


def _version(is_asked: bool) -> None:
    if is_asked:
        emit(f"wattune {__version__}")
        raise typer.Exit


def _wattune(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train fastest under a power cap: choose batch size and GPU clock together.

    \b
    All in one:    wattune run --device sim:jetson-nano --cap 4.5W
    Step by step:  wattune devices, profile, estimate, plan, train, compare, report
    Real boards:   wattune doctor, guard, restore

    Exit codes: 0 done, 2 bad input, 3 target not reached, 4 stopped for safety, 130 interrupted, 1 any other error.
    """


def _unloaded() -> None:
    """Stand in for a command of which only the name and the first line are needed."""


def _app(loaded: Collection[str]) -> typer.Typer:
    """Build the command line, with the options of the ``loaded`` commands alone: those of all take longer to import."""
    app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]})
    app.callback()(_wattune)
    for name, text in COMMANDS.items():
        command = getattr(importlib.import_module(f"wattune.cli.{name}"), name) if name in loaded else None
        own = _reserving(command) if command and name not in OF_PROGRAMS else command
        app.command(name, help=None if command else text)(own or _unloaded)
    return app


def _reserving(command: Callable[..., None]) -> Callable[..., None]:
    """Reserve stdout while a command runs: its model and its devices may be code that prints."""

    @wraps(command)
    def run(*given: Any, **named: Any) -> None:
        with reserved_stdout():
            command(*given, **named)

    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``wattune`` and return its exit code."""
    if COMPLETION in os.environ:
        _app(COMMANDS)(prog_name="wattune")
    return run_program("wattune", _app_for, arguments)


def _app_for(arguments: Sequence[str]) -> typer.Typer:
    name = next(iter(arguments), "")
    if name in OF_SERVER and not (name == "serve" and {"--demo", "--help", "-h"} & {*arguments}):
        hint = f"run wattune-server {name}, or wattune serve --demo to see one at work"
        raise InputError("servers have a command of their own", value=f"wattune {name}", hint=hint)
    return _app(arguments[:1])


def run_program(
    name: str, app_for: Callable[[Sequence[str]], typer.Typer], arguments: Sequence[str] | None = None
) -> int:
    """Run the command line that ``app_for`` builds for the arguments, and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # The arguments after "--" belong to another program.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        with _signals_and_warnings():
            return _call(name, app_for(arguments), arguments)
    except UsageError as error:
        failure: BaseException = InputError(_usage(error))
    except ModuleNotFoundError as error:
        failure = missing_package(error) or error
    except BrokenPipeError:
        return 1  # the reader of our output is gone, as `head` does: nobody is left to be told
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - this is the entry point
        failure = error
    return _report(failure, as_json="--json" in own)


def _call(name: str, app: typer.Typer, arguments: list[str]) -> int:
    # Not `app()`, which handles Ctrl-C and some system errors itself, and not in one line.
    command = typer.main.get_command(app)
    try:
        with command.make_context(name, arguments or ["--help"], obj=list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code
    return 0


@contextmanager
def _signals_and_warnings() -> Iterator[None]:
    """Signals that end a process act as Ctrl-C, unless they are ignored, and a warning takes one line."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                # So that everything that cleans up after Ctrl-C (workers, `Device.at`) does so after these, too.
                before[number] = signal.signal(number, signal.default_int_handler)
    unraisable, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    with warnings.catch_warnings():
        warnings.showwarning = _warning  # type: ignore[assignment]  # takes fewer arguments by name
        try:
            yield
        finally:
            sys.unraisablehook = unraisable
            for changed, handler in before.items():
                signal.signal(changed, handler)


def _interrupt_again(unraisable: Any) -> None:
    """Repeat an interrupt that came in the middle of a finalizer, where Python drops every exception."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(AGAIN_S, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(unraisable)


def _warning(message: Warning | str, *_: object) -> None:
    note(f"warning: {message}")


def _usage(error: Any) -> str:
    from pydantic import ValidationError

    where = error.ctx.command_path if error.ctx else "wattune"
    if isinstance(error.__cause__, ValidationError) and error.param is not None:
        from wattune.records.base import in_words

        first = error.__cause__.errors()[0]
        name = error.param.opts[0] if error.param.opts else error.param.name
        return f"{name}: {first['input']}; allowed: {in_words(first)}; see {where} --help"
    return f"{error.format_message().strip().rstrip('.')}; see {where} --help"


def _report(error: BaseException, *, as_json: bool) -> int:
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        with suppress(OSError):
            traceback.print_exception(error)
    name, code = type(error).__name__, 1
    if isinstance(error, WattuneError):
        message, code = str(error), error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        name, message, code = "Interrupted", "interrupted", 130
    else:
        message = f"unexpected {name}; set {TRACEBACK}=1 for a traceback: {error}"
    message = " ".join(message.split())
    message = message if len(message) <= LONGEST else f"{message[: LONGEST - 3]}..."
    note(message)
    if as_json:
        details = {k: getattr(error, k, None) for k in ("what", "value", "allowed", "hint", "known")}
        printable = {k: v if isinstance(v, list) else str(v) for k, v in details.items() if v is not None}
        entry = {"type": name, "message": message, "exit_code": code, **printable}
        # A training run that did not reach its target has a record all the same: the error is then part of it.
        record = vars(error).get("record", {})
        with suppress(OutputError, BrokenPipeError):
            emit_json({**record, "error": entry})
    return code
