"""Atomic reading and writing of files, JSON in particular; and the folders for caches."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import IO, Any, ClassVar

from typing_extensions import Self

from wattune.errors import OutputError, RecordError

PART_BYTES = 1 << 20


def cache_folders() -> tuple[Path, Path]:
    """The user's cache of wattune, in ``$XDG_CACHE_HOME`` or ``~/.cache``, and one in the temporary folder to use if
    the first is not writable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return cache / "wattune", Path(tempfile.gettempdir(), f"wattune-{user}")


def read_json(path: str | Path) -> object:
    """The content of a JSON file. Raises: RecordError if it cannot be read or is not JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise RecordError("no such record", value=str(path), hint="give the path of a JSON record") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read {path}", value=str(error), allowed="a readable JSON file") from error
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON", value=str(error), allowed="a complete JSON record") from error


def parse_json(text: str) -> Any:
    """The content of JSON text. Raises: ValueError, also for what cannot be printed; RecursionError."""
    data = json.loads(text, parse_constant=_refuse_constant)
    if "\\ud" in text or "\\uD" in text:  # a lone surrogate
        json.dumps(data, ensure_ascii=False).encode()
    return data


def write_json(path: str | Path, data: object) -> Path:
    """Write JSON to a temporary file and move it into place. Raises: OutputError."""
    return write_bytes(path, json_bytes(data))


def json_bytes(data: object) -> bytes:
    """JSON as wattune writes it."""
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


def json_line(data: object) -> bytes:
    """JSON in one line."""
    return (json.dumps(data, allow_nan=False) + "\n").encode()


def read_lines(path: Path) -> list[Any]:
    """The values of a file of one JSON value a line, or in all; a last line that a crash cut off is ignored.

    Raises: RecordError if the file cannot be read or has anything else.
    """
    values: list[Any] = []
    try:
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            values.append(parse_json(line))
    except (OSError, ValueError, RecursionError) as error:
        if values:
            raise RecordError(
                f"{path}, line {len(values) + 1}, is not valid JSON",
                value=str(error),
                allowed="a JSON value in each line",
                hint="remove the file, and all of it is made again",
            ) from error
    return values or [read_json(path)]


def append_line(path: Path, data: object) -> None:
    """Append a JSON value as one line, which is on the disk afterwards. Raises: OutputError."""
    try:
        with open(path, "ab") as file:
            file.write(json_line(data))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> OutputError:
    hint = "check the folder and the free space"
    return OutputError(f"cannot write {path}", value=error.strerror or str(error), hint=hint)


def write_bytes(path: str | Path, content: bytes | Iterable[bytes | memoryview]) -> Path:
    """Replace a file atomically: a reader, or a crash, sees the old content or the new. Raises: OutputError.

    ``content``: bytes, or parts of them, of which each is written before the next one is made.
    """
    with _written_beside(Path(path), content) as temporary:
        os.replace(temporary, path)
    return Path(path)


@contextmanager
def _written_beside(path: Path, content: bytes | Iterable[bytes | memoryview]) -> Iterator[Path]:
    """A temporary file with this content on the disk, for the block to rename. Raises: OutputError."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not NamedTemporaryFile: on a full disk its own file stays unclosed, of which Python 3.14 warns.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with open(descriptor, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        yield temporary
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_new(path: str | Path, content: bytes | Iterable[bytes | memoryview]) -> Path:
    """Write a new file whole, and return its path: ``path``, or the first free name beside it (``name-2.json``) if that
    is taken. No file is ever replaced. Raises: OutputError."""
    with _written_beside(Path(path), content) as temporary:
        return _rename_to_free(temporary, Path(path))


def set_aside(path: Path) -> Path:
    """Rename a file to the first free name beside it (``name-2.json``), which is returned. Raises: OutputError."""
    try:
        return _rename_to_free(path, path)
    except OSError as error:
        raise OutputError(
            f"cannot rename {path}", value=error.strerror or str(error), hint="move it to another folder"
        ) from error


def _rename_to_free(source: Path, target: Path) -> Path:
    """Rename a file to the target, or to the first free name beside it, which is returned. Raises: OSError."""
    names = (target.with_name(f"{target.stem}-{number}{target.suffix}") for number in count(2))
    for free in chain([target], names):
        try:
            rename_new(source, free)
        except FileExistsError:
            continue
        return free
    raise AssertionError("the names have an end")


def rename_new(source: Path, target: Path) -> None:
    """Rename a file unless the target exists, also at the last moment. Raises: FileExistsError, OSError."""
    try:
        os.link(source, target)  # unlike a rename, a link replaces nothing
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, such as a USB stick's
        os.close(os.open(target, os.O_CREAT | os.O_EXCL))
        os.replace(source, target)
    else:
        os.unlink(source)


class Held:
    """A file, or a folder by a file in it, that this process alone works on until ``release``, or until its end.

    Raises: OutputError if a process has it already, or if the lock beside the file cannot be made.
    """

    _paths: ClassVar[set[Path]] = set()

    def __init__(self, path: Path):
        self._lock = path.absolute().with_name(f".{path.name}.lock")
        busy = OutputError(
            "another process works on this", value=str(path), hint="wait for its end, or give another path"
        )
        if self._lock in self._paths:  # its locks would not stop this process itself
            raise busy
        try:
            while (descriptor := self._locked()) is None:
                pass
        except (BlockingIOError, PermissionError) as error:
            raise busy from error
        except OSError as error:
            raise OutputError(
                f"cannot lock {path}", value=error.strerror or str(error), hint="give another output"
            ) from error
        self._descriptor = descriptor
        self._paths.add(self._lock)

    def _locked(self) -> int | None:
        """Lock the file; None if its last holder has removed it meanwhile. Raises: OSError."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # A lock of this kind is not handed on to forked workers, which may outlive the process.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(self._lock)):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def release(self) -> None:
        """Let others work on it; do nothing if that was done."""
        if self._lock in self._paths:
            self._paths.remove(self._lock)
            with suppress(OSError):  # its folder may be gone
                self._lock.unlink()
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_writable(folder: Path) -> None:
    """Make the folder if necessary, and check that files can be written to it. Raises: OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"wattune")
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder}", value=error.strerror or str(error), hint="give another output"
        ) from error


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file's content, which is read in parts. Raises: OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for part in parts(file):
            digest.update(part)
    return digest.hexdigest()


def parts(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file, in parts of ``PART_BYTES``. Raises: OSError."""
    while part := file.read(PART_BYTES):
        yield part


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
