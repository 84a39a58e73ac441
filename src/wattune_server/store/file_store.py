"""Content-addressed files: each is named by its SHA-256, written atomically, and never changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from wattune.errors import InputError, OutputError
from wattune.files import check_writable, parts, sha256_of, write_bytes
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

    def read(self, sha256: str) -> bytes:
        """Read a small file. Raises: OutputError if it cannot be read or is damaged."""
        return self.checked(sha256).read_bytes()

    def checked(self, sha256: str) -> Path:
        """Path of a file whose hash was verified. Raises: OutputError if it cannot be read or is damaged."""
        path = self.path(sha256)
        try:
            actual = sha256_of(path)
        except OSError as error:
            raise OutputError(f"cannot read the file {sha256}", value=error.strerror or str(error)) from error
        if actual != sha256:
            raise OutputError(f"the file {sha256} is damaged", hint="restore the store from a backup")
        return path

    def write(self, content: bytes) -> str:
        """Store the content; return its hash. Raises: OutputError."""
        sha256 = hashlib.sha256(content).hexdigest()
        self._write(sha256, [content])
        return sha256

    def copy(self, source: Path) -> tuple[str, int]:
        """Store a copy of a file; return its hash and its length in bytes. Raises: OutputError; OSError of the file."""
        sha256 = sha256_of(source)
        with source.open("rb") as file:
            self._write(sha256, parts(file))
        try:
            return sha256, self.checked(sha256).stat().st_size
        except OutputError as error:  # so that the next attempt writes the file
            self.path(sha256).unlink(missing_ok=True)
            hint = "repeat the command when nothing writes to the file"
            raise OutputError(f"the copy differs from {source}", hint=hint) from error

    def check_writable(self) -> None:
        """Check that files can be written. Raises: OutputError."""
        self._check_present()
        check_writable(self.folder)

    def _write(self, sha256: str, content: Iterable[bytes]) -> None:
        path = self.path(sha256)
        self._check_present()
        if not path.is_file():
            write_bytes(path, content)
            for folder in (path.parent, self.folder):
                _sync(folder)

    def _check_present(self) -> None:
        """Check that the store is there: one that was removed must not look like a new one."""
        if not self.folder.parent.is_dir():
            raise OutputError(f"cannot write to {self.folder}", value="the folder of the store was removed")


def _sync(folder: Path) -> None:
    """Flush the entries of a folder to the disk, so that renames survive a power cut as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
