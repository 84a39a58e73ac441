"""The way in and out: whatever goes wrong inside becomes one line on stderr and an exit code.

0 done; 1 ours; 2 bad input; 3 target not reached; 4 stopped for safety; 130 interrupted. With ``--json`` an object
``{"error": {"type", "message", "exit_code", ...}}`` stands on stdout besides; where a record was kept, in that record.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import typer

from wattune.cli.output import emit_json, note
from wattune.errors import InputError, OutputError, WattuneError

TRACEBACK = "WATTUNE_TRACEBACK"
"""Environment variable: set to 1, errors show where they come from."""

LONGEST = 600
"""Characters of a message; a value that somebody gave may have any number of them."""

# The usage errors of the library below typer, which newer versions of typer carry inside: this name fits both.
UsageError: type[Any] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # What stands behind "--" is a program's own.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        with _listening():
            return _call(arguments)
    except UsageError as error:
        failure: BaseException = InputError(_usage(error))
    except BrokenPipeError:
        return 1  # whoever read our output has gone, as `head` does: there is nobody left to tell
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - this is the door
        failure = error
    return _report(failure, as_json="--json" in own)


def _call(arguments: list[str]) -> int:
    # Not `app()`: that answers Ctrl-C and some errors of the system by itself, and not in one line.
    from wattune.cli.app import app

    command = typer.main.get_command(app)
    try:
        with command.make_context("wattune", arguments or ["--help"], obj=list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code
    return 0


@contextmanager
def _listening() -> Iterator[None]:
    """SIGTERM acts as Ctrl-C, and a warning takes one line."""
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, _terminate)
    with warnings.catch_warnings():
        warnings.showwarning = _warning  # type: ignore[assignment]  # takes fewer arguments by name
        try:
            yield
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    # So that whatever cleans up after Ctrl-C (workers, `Device.at`) does after this, too.
    raise KeyboardInterrupt


def _warning(message: Warning | str, *_: object) -> None:
    note(f"warning: {message}")


def _usage(error: Any) -> str:
    where = f"wattune {error.ctx.info_name}" if error.ctx and error.ctx.parent else "wattune"
    return f"{error.format_message().strip().rstrip('.')}; see {where} --help"


def _report(error: BaseException, *, as_json: bool) -> int:
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        traceback.print_exception(error)
    name, code = type(error).__name__, 1
    if isinstance(error, WattuneError):
        message, code = str(error), error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        name, message, code = "Interrupted", "interrupted", 130
    else:
        message = f"unexpected {name}, set {TRACEBACK}=1 to see where it comes from: {error}"
    message = " ".join(message.split())
    message = message if len(message) <= LONGEST else f"{message[: LONGEST - 3]}..."
    with suppress(OSError):  # nobody listens on stderr any more
        note(message)
    if as_json:
        details = {k: getattr(error, k, None) for k in ("what", "value", "allowed", "hint", "known")}
        shown = {k: v if isinstance(v, list) else str(v) for k, v in details.items() if v is not None}
        told = {"type": name, "message": message, "exit_code": code, **shown}
        # A training that did not reach its target has a record all the same: the error then stands in it.
        record = vars(error).get("record", {})
        with suppress(OutputError, BrokenPipeError):
            emit_json({**record, "error": told})
    return code
