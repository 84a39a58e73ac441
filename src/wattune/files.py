"""Files that are whole at every moment: JSON in and out, each written in one step; and where caches are."""

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
    """The user's cache of wattune, in ``$XDG_CACHE_HOME`` or ``~/.cache``, and one in the temporary folder for where
    that cannot be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return cache / "wattune", Path(tempfile.gettempdir(), f"wattune-{user}")


def read_json(path: str | Path) -> object:
    """The content of a JSON file. Raises: RecordError where it cannot be read or is no JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecordError("no such record", value=str(path), hint="give the path of a JSON record") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read {path}", value=str(error), allowed="a readable JSON file") from error
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text or "\\uD" in text:  # half a character, which could be printed nowhere
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON", value=str(error), allowed="a whole JSON record") from error


def write_json(path: str | Path, data: object) -> Path:
    """Write JSON beside the file and move it into place. Raises: OutputError."""
    return write_bytes(path, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part. Raises: OutputError."""
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
            f"cannot write {path}", value=error.strerror or str(error), hint="give another output folder"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return path


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file's content, which may be larger than the memory. Raises: OSError."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for part in parts(file):
            found.update(part)
    return found.hexdigest()


def parts(file: IO[bytes]) -> Iterator[bytes]:
    """What is left of a file, in pieces. Raises: OSError."""
    while part := file.read(PART_BYTES):
        yield part


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")
