"""Atomic reading and writing of files, JSON in particular; and the folders for caches."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

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
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecordError("no such record", value=str(path), hint="give the path of a JSON record") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read {path}", value=str(error), allowed="a readable JSON file") from error
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text or "\\uD" in text:  # a lone surrogate, which cannot be printed
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON", value=str(error), allowed="a complete JSON record") from error


def write_json(path: str | Path, data: object) -> Path:
    """Write JSON to a temporary file and move it into place. Raises: OutputError."""
    return write_bytes(path, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Replace a file atomically: a reader, or a crash, sees the old content or the new. Raises: OutputError."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise OutputError(
            f"cannot write {path}", value=error.strerror or str(error), hint="choose another output folder"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return path


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
