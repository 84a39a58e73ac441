"""The output of a command: a record in a file, as JSON on stdout, or both; and progress on stderr.

``-o FILE`` names the file. By default the record goes to a file named after it in the current folder, or with
``--json`` only to stdout; a plan is only printed. Stdout is reserved for the command: what else prints, such as the
user's model, prints to stderr.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from wattune.errors import InputError, Interrupted, OutputError, SafetyStop, TargetNotReached, WattuneError
from wattune.files import Held, check_writable, json_bytes, write_new

if TYPE_CHECKING:
    from wattune.records import Record, TrainingRecord

    R = TypeVar("R", bound=Record)


_own: IO[str] | None = None
"""Stdout while it is reserved."""


@contextmanager
def reserved_stdout() -> Iterator[None]:
    """Reserve stdout for ``emit``: prints of any other code, in child processes too, go to stderr."""
    global _own
    if sys.stdout is None or _own is not None:
        yield
        return
    sys.stdout.flush()
    aside = os.dup(2) if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY)
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file, as in a notebook
        descriptor = None
    try:
        with ExitStack() as stack:
            _own = sys.stdout
            if descriptor is not None:
                kept = os.dup(descriptor)
                _own = stack.enter_context(open(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors))
                stack.callback(os.dup2, kept, descriptor)
                stack.callback(_flush)  # what is still in a buffer belongs to stderr, too
                os.dup2(aside, descriptor)
            with redirect_stdout(_Aside()):
                yield
    finally:
        _own = None
        os.close(aside)


class _Aside(io.TextIOBase):
    """Stderr for the prints of other code, which has not failed if stderr cannot be written."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        _to_stderr(text)
        return len(text)

    def fileno(self) -> int:
        return sys.stderr.fileno()


def _to_stderr(text: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            _silence(sys.stderr)


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    if "ctypes" in sys.modules:  # as torch loads it: libraries of the C kind have a buffer of their own
        sys.modules["ctypes"].CDLL(None).fflush(None)


def note(text: str) -> None:
    """Write one line on stderr, if it can be written: no work is lost for that."""
    _to_stderr(f"wattune: {' '.join(text.split())}\n")


def emit(text: str) -> None:
    """Text on stdout. Raises: OutputError, BrokenPipeError."""
    stdout = sys.stdout if _own is None else _own
    try:
        print(text, file=stdout, flush=True)
    except OSError as error:
        _silence(stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError("cannot write to stdout", value=error.strerror) from error


def _silence(stream: IO[str]) -> None:
    """Let a stream that failed write to nowhere: its text stays in the buffer, and Python would complain at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def emit_json(data: Any) -> None:
    """JSON on stdout. Raises: OutputError, BrokenPipeError."""
    emit(json.dumps(data, indent=1, allow_nan=False))


def tell(content: Any, text: str, *, as_json: bool, failure: WattuneError | None = None) -> None:
    """Print ``text``, or the content as JSON; then raise ``failure``, which is printed with the JSON: stdout holds one
    object.

    Raises: OutputError, BrokenPipeError.
    """
    if failure is not None and as_json:
        vars(failure)["record"] = content
    elif as_json:
        emit_json(content)
    else:
        emit(text)
    if failure is not None:
        raise failure


@dataclass
class Output:
    """Destination of a command's record; ``path`` is None if it is only printed.

    ``is_finished``: the record at the path is of an earlier call, which this one resumes, and stays. ``default``: the
    path of a record that is only printed, and cannot be.
    """

    path: Path | None
    as_json: bool
    resume: bool = False
    is_finished: bool = False
    default: str | None = None
    folder: Path = field(default_factory=Path.cwd)
    """Folder that a relative path was given in: code of a user may change the current one."""

    def load(self, kind: type[R]) -> R | None:
        """The finished record of an earlier call, if this one resumes it. Raises: RecordError."""
        if not self.resume or self.path is None or not os.path.exists(self.path):
            return None
        self.is_finished = True
        return kind.load(self.path)

    def beside(self, suffix: str, *, resumes: bool = True) -> Path | None:
        """A file or folder for unfinished work, named after the record's file; ``resumes``: it can be continued.

        Raises: OutputError if it exists and is not to be resumed.
        """
        if self.path is None:
            return None
        partial = self.path.with_name(self.path.stem + suffix)
        if os.path.exists(partial) and not self.resume:
            raise OutputError(
                "unfinished work of an earlier call exists",
                value=str(partial),
                hint="continue it with --resume, remove it, or give another -o FILE",
            )
        if resumes and self.resume and not self.is_finished and not os.path.exists(partial):
            note(f"there is no unfinished work in {partial} to resume: it begins from the start")
        return self.folder / partial

    def deliver(self, record: Record, text: str, failure: WattuneError | None = None, *, replace: bool = False) -> None:
        """Save the record, and print it (``--json``) or ``text``; then raise ``failure``, if any.

        A finished record of an earlier call stays unless ``replace``. A file that has appeared since the command began
        stays as well: the record is then saved beside. A record that cannot be saved is printed, and one that cannot
        be printed is saved.

        Raises: OutputError.
        """
        try:
            if replace and self.is_finished and self.path is not None:
                record.save(self.folder / self.path)
            self.save(record.dump())
        except OutputError as error:
            if self.as_json:
                vars(error)["record"] = record.dump()  # printed with the error: stdout holds one object
            else:
                emit_json(record.dump())
            raise
        try:
            tell(record.dump(), text.rstrip("\n"), as_json=self.as_json, failure=failure)
        except OutputError:
            if self.default is not None:
                self.path = Path(self.default)
                self.save(record.dump())
            raise

    def save(self, content: dict[str, Any]) -> None:
        """Save what no earlier call has saved, at ``path``, or at a free name beside if that is taken; name the file.

        Raises: OutputError.
        """
        if self.path is not None:
            if not self.is_finished:
                saved = write_new(self.folder / self.path, json_bytes(content))
                self.path, self.is_finished = self.path.with_name(saved.name), True
            note(f"the {content['record']} record is in {self.path}")


def claim(output: Path | None, default: str, *, as_json: bool, resume: bool = False, option: str = "-o") -> Output:
    """Check before any work is done that the record can be saved, in the file of this option. Raises: OutputError."""
    if output is None and as_json:
        if resume:
            raise OutputError("--resume with --json needs -o FILE, the record to continue")
        return Output(None, as_json, default=default)
    path = Path(default) if output is None else output
    # `os.path` and not `Path`: an impossible path is then reported by the attempt to write there.
    if os.path.isdir(path) or (os.path.exists(path) and not resume):
        raise OutputError("the output file exists", value=str(path), hint=f"choose another with {option} FILE")
    check_writable(path.parent)
    return Output(path, as_json, resume)


@contextmanager
def resumable(arguments: Sequence[str], partial: Path | None, *, holds: bool = True) -> Iterator[None]:
    """A context for work that leaves ``partial`` when interrupted; ``arguments`` and --resume continue it.

    ``holds``: no other process may do the same work meanwhile.

    Raises: Interrupted with one line that names the command; OutputError if another process does the same work.
    """
    try:
        with Held(partial) if holds and partial is not None else nullcontext():
            yield
    except (KeyboardInterrupt, Interrupted) as error:
        if partial is not None:
            with suppress(OSError):
                partial.rmdir()  # an empty folder, which holds no work
        if partial is None or not partial.exists():
            raise
        command = shlex.join(["wattune", *(a for a in arguments if a != "--resume"), "--resume"])
        raise Interrupted(f"interrupted; the work so far is saved; continue with: {command}") from error


def confirmed(question: str) -> bool:
    """True if the user agrees. Raises: InputError if stdin is not a terminal, so that nobody can be asked."""
    if not sys.stdin.isatty():
        raise InputError("stdin is not a terminal, so this cannot ask first", hint="give --yes to agree beforehand")
    print(f"wattune: {question} Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def failure(record: TrainingRecord) -> WattuneError | None:
    """The error of a training run that did not reach its target; its record is saved all the same."""
    if record.ended == "stopped for safety":
        why = record.reason
        if why is None:
            cap = "" if record.plan.cap_w is None else f" of {record.plan.cap_w:g} W"
            why = f"{record.power_peak_w:.4g} W read and {record.above_cap_s:.3g} s above the cap{cap}"
        return SafetyStop(f"stopped for safety: {why}; the record is saved")
    if record.ended == "diverged":
        return TargetNotReached(
            f"training diverged after {record.samples:,} samples: its metric is not a number; use a smaller learning "
            "rate; the record is saved"
        )
    if not record.reached:
        last = f" ({record.evaluations[-1].metric:.4g}, not {record.target})" if record.evaluations else ""
        return TargetNotReached(f"target not reached{last} after {record.samples:,} samples; the record is saved")
    return None


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
    """Progress as lines: the beginning, each quarter and the end of each step, every warning, and otherwise one in
    ``QUIET_S``."""
    due: dict[str, float] = {}
    quarters: dict[str, int] = {}

    def show(done: int, total: int, what: str) -> None:
        step, text = _split(what)
        warning = text.startswith("warning: ")
        quarter = 4 * done // total if total else 0
        is_due = quarter > quarters.get(step, 0) or clock() >= due.get(step, float("-inf"))
        if not warning and not is_due and not (total > 0 and done >= total):
            return
        quarters[step] = quarter if not warning else quarters.get(step, 0)
        if total and not warning:
            due[step] = clock() + QUIET_S
        count = "" if warning or not total else f"{done}/{total} "
        write(f"{step}: {count}{text}" if step else f"{count}{text}")

    return show


def _split(what: str) -> tuple[str, str]:
    step, colon, text = what.partition(": ")
    return (step, text) if colon and step in ("profile", "estimate", "plan", "train", "compare") else ("", what)
