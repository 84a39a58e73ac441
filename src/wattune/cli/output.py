"""Where a command's record goes: to a file, to stdout as JSON, or both; never over a file that is there.

``-o FILE`` names the file. Without it the record goes to a file of its own name in the current folder, or with
``--json`` to stdout alone; a plan is then only printed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wattune.errors import Interrupted, OutputError, WattuneError

if TYPE_CHECKING:
    from wattune.records import Record

    R = TypeVar("R", bound=Record)


def note(text: str) -> None:
    """One line on stderr."""
    print(f"wattune: {' '.join(text.split())}", file=sys.stderr, flush=True)


def emit(text: str) -> None:
    """Text on stdout. Raises: OutputError, BrokenPipeError."""
    try:
        print(text, flush=True)
    except OSError as error:
        # What could not be written stays in the buffer, and Python would complain about it again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError("cannot write to stdout", value=error.strerror) from error


def emit_json(data: Any) -> None:
    """JSON on stdout. Raises: OutputError, BrokenPipeError."""
    emit(json.dumps(data, indent=1, allow_nan=False))


@dataclass(frozen=True)
class Output:
    """Where the record of one command goes; ``path`` is None where it is only printed."""

    path: Path | None
    as_json: bool
    resume: bool = False

    def load(self, kind: type[R]) -> R | None:
        """The record that an earlier call has finished, where this one resumes. Raises: RecordError."""
        return kind.load(self.path) if self.path is not None and os.path.exists(self.path) else None

    def beside(self, suffix: str) -> Path | None:
        """A file or folder for unfinished work, named after the record's.

        Raises: OutputError where one is there already and is not to be resumed.
        """
        if self.path is None:
            return None
        place = self.path.with_name(self.path.stem + suffix)
        if os.path.exists(place) and not self.resume:
            raise OutputError(
                "work of an earlier call is there already",
                value=str(place),
                hint="go on with it by --resume, remove it, or give another -o FILE",
            )
        return place

    def deliver(self, record: Record, text: str, failure: WattuneError | None = None, *, replace: bool = False) -> None:
        """Save the record, and print it (``--json``) or ``text``; then raise ``failure``, if any.

        A record that is there already is what an earlier call finished, and stays; unless ``replace``.

        Raises: OutputError.
        """
        if self.path is not None and (replace or not os.path.exists(self.path)):
            record.save(self.path)
        if failure is not None and self.as_json:
            vars(failure)["record"] = record.dump()  # printed with the error: stdout holds one object
        elif self.as_json:
            emit_json(record.dump())
        else:
            emit(text.rstrip("\n"))
        if self.path is not None:
            note(f"the {record.name} record is in {self.path}")
        if failure is not None:
            raise failure


def claim(output: Path | None, default: str, *, as_json: bool, resume: bool = False) -> Output:
    """Decide where a record goes, and see that it can, before any work is done. Raises: OutputError."""
    from wattune.folder import check_writable

    if output is None and as_json:
        if resume:
            raise OutputError("--resume with --json", hint="name the file to go on with by -o FILE")
        return Output(None, as_json)
    path = Path(default) if output is None else output
    # `os.path` and not `Path` here: a path that nothing can be at is then reported by the attempt to write there.
    if os.path.isdir(path) or (os.path.exists(path) and not resume):
        raise OutputError("the output is there already", value=str(path), hint="give another one by -o FILE")
    check_writable(path.parent)
    return Output(path, as_json, resume)


@contextmanager
def resumable(arguments: Sequence[str], kept: Path | None) -> Iterator[None]:
    """Around work that leaves ``kept`` behind when it is interrupted, and goes on by ``arguments`` and --resume.

    Raises: Interrupted with one line that names the command.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        if kept is None or not kept.exists():
            raise
        command = shlex.join(["wattune", *(a for a in arguments if a != "--resume"), "--resume"])
        raise Interrupted(f"interrupted, what is done is kept; go on with: {command}") from error
