"""Reading the members of an archive in memory, without unpacking it to disk.

An archive is a tar file (plain or gzip), a zip file, or a folder with the same files. Each member is checked before it
is read: a name that leads out of the archive, a link, a device, and a size that is wrong or too large are refused.
"""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from wattune.errors import WorkloadError

MEMBER_BYTES = 2**30
"""Limit on the bytes of one member. The largest in an official archive, STL-10's test_X.bin, has 221 MB."""

TOTAL_BYTES = 8 * 2**30
"""Limit on the bytes of all members, against zip bombs. STL-10 unpacks to 3.1 GB."""

_CHUNK = 2**20
_HEADER_BYTES = 2**24  # tarfile reads a member's extended header in one piece, of any size that it states
_DAMAGE = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile, NotImplementedError)


def is_archive(path: Path) -> bool:
    """Return True for a folder, a zip file or a tar file. Raises: WorkloadError if the path cannot be read."""
    return path.is_dir() or _kind(path) is not None


def members(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each member whose name ``is_wanted`` accepts, in the order of the archive; with "/".

    By the time the last one is yielded, the whole archive has been checked.
    Raises: WorkloadError for a file that is not an archive, is cut off, or has a member that is refused.
    """
    if path.is_dir():
        yield from _of_folder(path, is_wanted)
        return
    kind = _kind(path)
    if kind is None:
        raise WorkloadError(f"{path} is not an archive", allowed="a tar.gz, tar or zip file, or a folder")
    with _readable(path):
        yield from (_of_zip if kind == "zip" else _of_tar)(path, is_wanted)


def names(path: Path) -> list[str]:
    """Return the checked names of all members that are files, sorted. Raises: WorkloadError, as ``members`` does."""
    result: list[str] = []

    def list_name(name: str) -> bool:
        result.append(name)
        return False

    for _ in members(path, list_name):
        pass  # none is wanted
    return sorted(result)


def unzipped(path: Path, header_bytes: int, stated: Callable[[bytes], int]) -> bytes:
    """Return the content of a file, plain or gzip. ``stated`` reads the total number of bytes from its header.

    Raises: WorkloadError for another number of bytes, for too many, or for a file that cannot be read.
    """
    with _readable(path):
        with path.open("rb") as raw:
            file = _plain(raw)
            start = file.read(header_bytes)
            size = stated(start)
            _fits(path.name, size, path)
            content = start + _read(file, size - len(start))
            _same(path.name, size, len(content) + len(file.read(1)), path)
            return content


def read_members(path: Path, file_names: list[str], what: str, hint: str | None = None) -> dict[str, bytes]:
    """Read the members with these names, in any folder of the archive.

    Raises: WorkloadError; if one is missing or occurs twice, it says that ``what`` is allowed, and the hint.
    """
    contents: dict[str, bytes] = {}
    for name, content in members(path, lambda name: name.rpartition("/")[2] in file_names):
        short = name.rpartition("/")[2]
        if short in contents:
            raise WorkloadError(f"{path} has two members with the name", value=short, allowed=what)
        contents[short] = content
    for name in file_names:
        if name not in contents:
            raise WorkloadError(f"{path} lacks the member", value=name, allowed=what, hint=hint)
    return contents


def _of_folder(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with _readable(path):
        for file in sorted(path.rglob("*")):
            name = file.relative_to(path).as_posix()
            if file.is_file() and is_wanted(name):
                _fits(name, file.stat().st_size, path)
                yield name, file.read_bytes()


def _of_zip(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        entries = []
        names: set[str] = set()
        for info in archive.infolist():
            name = _checked(info.orig_filename, path, names)
            mode = info.external_attr >> 16  # Unix mode; 0 if the archive comes from another system
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(path, "a member that is a link or a device", name)
            # Python unpacks the other compressions in one piece, whatever their size.
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _refused(path, "a member that is encrypted or of another compression", name)
            if not info.is_dir() and is_wanted(name):
                _fits(name, info.file_size, path)
                entries.append((name, info))
        _total(sum(info.file_size for _, info in entries), path)
        for name, info in entries:
            with archive.open(info) as file:  # checks the CRC, and stops at the stated size
                content = _read(file, info.file_size)
            _same(name, info.file_size, len(content), path)
            yield name, content


def _of_tar(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    names: set[str] = set()
    with path.open("rb") as raw:
        stream = _Limited(_plain(raw), path)
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for info in archive:
                archive.members = []  # type: ignore[attr-defined]  # else all stay in memory
                name = _checked(info.name, path, names)
                if info.isdir():
                    continue
                if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                    raise _refused(path, "a member that is a link or a device", name)
                if info.size < 0:
                    raise _refused(path, "a member with a negative size", name)
                _total(info.offset_data + info.size, path)
                if is_wanted(name):
                    _fits(name, info.size, path)
                    file = archive.extractfile(info)
                    content = b"" if file is None else _read(file, info.size)
                    _same(name, info.size, len(content), path)
                    yield name, content
            # Read to the end, where gzip's checksum is. tarfile takes a damaged header for the end.
            stream.seek(archive.offset)
            rest = stream.read(_CHUNK)
            complete = len(rest) >= tarfile.BLOCKSIZE
            while rest:
                complete = complete and not rest.strip(b"\0")
                rest = stream.read(_CHUNK)
            if not complete:
                raise WorkloadError(f"{path} is cut off or damaged", value=f"after {len(names)} members")


class _Limited(io.RawIOBase):
    """The bytes of a tar file, up to ``TOTAL_BYTES``."""

    def __init__(self, file: IO[bytes], path: Path):
        super().__init__()
        self._file = file
        self._path = path

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _HEADER_BYTES:
            raise _refused(self._path, "a header that is too large", str(size))
        _total(self._file.tell() + size - _HEADER_BYTES, self._path)
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        _total(offset, self._path)
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _plain(raw: IO[bytes]) -> IO[bytes]:
    zipped = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except WorkloadError:
        raise
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of a file") from error
    except _DAMAGE as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a complete file") from error


def _kind(path: Path) -> str | None:
    with _readable(path), path.open("rb") as file:
        start = file.read(512)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    return "tar" if start[:2] == b"\x1f\x8b" or start[257:262] == b"ustar" else None


def _checked(name: str, path: Path, names: set[str]) -> str:
    if not name.isprintable():  # it could not be part of a one-line error either
        raise _refused(path, "a member with an unprintable name", ascii(name))
    parts = [part for part in name.split("/") if part not in ("", ".")]
    drive = name[1:2] == ":" and name[:1].isalpha()  # "C:..." on Windows
    if name.startswith("/") or ".." in parts or "\\" in name or drive:
        raise _refused(path, "a member that would lie outside the archive's folder", name)
    plain = "/".join(parts)
    if plain in names and parts:
        raise _refused(path, "two members with the same name", name)
    names.add(plain)
    return plain


def _read(file: IO[bytes], size: int) -> bytes:
    # In pieces, so that memory is not reserved for bytes that a header states but the file lacks.
    pieces = []
    while size > 0 and (piece := file.read(min(size, _CHUNK))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _fits(name: str, size: int, path: Path) -> None:
    if size > MEMBER_BYTES:
        raise WorkloadError(f"{path}: bytes of {name}", value=size, allowed=f"up to {MEMBER_BYTES}")


def _total(size: int, path: Path) -> None:
    if size > TOTAL_BYTES:
        raise WorkloadError(f"bytes that {path} unpacks to", value=size, allowed=f"up to {TOTAL_BYTES}")


def _same(name: str, stated: int, actual: int, path: Path) -> None:
    if actual != stated:
        value = f"more than {stated}" if actual > stated else actual
        raise WorkloadError(f"{path}: bytes of {name}", value=value, allowed=f"{stated}")


def _refused(path: Path, what: str, name: str) -> WorkloadError:
    return WorkloadError(f"{path} has {what}", value=name, allowed="plain files inside the archive's own folder")
