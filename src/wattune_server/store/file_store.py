"""Content-addressed files: each is named by its SHA-256, written atomically, and never changed."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from wattune.errors import InputError, OutputError
from wattune.files import sha256_of
from wattune.records.served import SHA256


class FileStore:
    """Folder ``files`` of a store; a file is at ``ab/abcdef...``."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, sha256: str) -> Path:
        """Path of the file with this hash, whether or not it exists. Raises: InputError if it is not a SHA-256."""
        if not re.fullmatch(SHA256, sha256):
            raise InputError("SHA-256 of a file", value=sha256, allowed="64 hexadecimal digits")
        return self.folder / sha256[:2] / sha256

    def holds(self, sha256: str) -> bool:
        """True if the file exists."""
        return self.path(sha256).is_file()

    def read(self, sha256: str) -> bytes:
        """Read a small file. Raises: OutputError if it cannot be read or is damaged."""
        with _read_errors(sha256):
            content = self.path(sha256).read_bytes()
        _check(sha256, hashlib.sha256(content).hexdigest())
        return content

    def checked(self, sha256: str) -> Path:
        """Path of a file whose hash was verified. Raises: OutputError if it cannot be read or is damaged."""
        path = self.path(sha256)
        with _read_errors(sha256):
            actual = sha256_of(path)
        _check(sha256, actual)
        return path

    def write(self, content: bytes) -> str:
        """Store the content; return its hash. Raises: OutputError."""
        return self.write_parts([content])[0]

    def write_parts(self, content: Iterable[bytes]) -> tuple[str, int]:
        """Store content that arrives in parts; return its hash and its length in bytes. Raises: OutputError."""
        digest, size = hashlib.sha256(), 0
        with self.incoming() as file:
            for part in content:
                digest.update(part)
                size += len(part)
                file.write(part)
            sha256 = digest.hexdigest()
            if not self.holds(sha256):
                self.keep(file, sha256)
        return sha256, size

    @contextmanager
    def incoming(self) -> Iterator[BinaryIO]:
        """Open a temporary file in the store, deleted at the end unless ``keep`` was called with it.

        Raises: OutputError if it cannot be written.
        """
        name = None
        try:
            self.folder.mkdir(exist_ok=True)  # without parents: a store that was removed must not look like a new one
            # Not NamedTemporaryFile: on a full disk its own file stays unclosed, of which Python 3.14 warns.
            descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=".incoming-")
            os.close(descriptor)
            with open(name, "w+b") as file:
                yield file
        except OSError as error:
            raise OutputError(f"cannot write to {self.folder}", value=error.strerror or str(error)) from error
        finally:
            if name is not None:
                with suppress(FileNotFoundError):
                    os.unlink(name)

    def keep(self, file: BinaryIO, sha256: str) -> None:
        """Move a file of ``incoming`` to its path; the caller has seen to it that the hash is its content's."""
        file.flush()
        os.fsync(file.fileno())
        path = self.path(sha256)
        path.parent.mkdir(exist_ok=True)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
        for folder in (path.parent, self.folder):
            _sync(folder)


@contextmanager
def _read_errors(sha256: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot read the file {sha256}", value=error.strerror or str(error)) from error


def _check(sha256: str, actual: str) -> None:
    if actual != sha256:
        raise OutputError(f"the file {sha256} is damaged", hint="restore the store from a backup")


def _sync(folder: Path) -> None:
    """Flush the entries of a folder to the disk, so that renames survive a power cut as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
