"""Members of an archive, read without unpacking: nothing of it is written anywhere.

A tar file (plain or gzip), a zip file, or a folder with the same files in it. Each member is checked before it is read:
a name that leads out of the archive, a link, a device, or more bytes than stated or than there can be is refused.
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
"""Bytes of one member that is read: the largest in an official archive, STL-10's test_X.bin, has 221 MB."""

TOTAL_BYTES = 8 * 2**30
"""Bytes of all members: STL-10 has 3.1 GB. What unpacks to more is taken for a zip bomb."""

_CHUNK = 2**20
_HEADER_BYTES = 2**24  # tarfile reads the extended header of a member in one piece, as large as that says it is
_DAMAGE = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile, NotImplementedError)


def is_archive(path: Path) -> bool:
    """Whether this is a folder, a zip file or a tar file. Raises: WorkloadError where there is nothing to read."""
    return path.is_dir() or _kind(path) is not None


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the members that are wanted, in the order of the archive; names are with "/".

    The whole archive is checked by the time that the last one has been handed out.
    Raises: WorkloadError, one line, for an archive that is none, is cut off, or has a member that is refused.
    """
    if path.is_dir():
        yield from _of_folder(path, wanted)
        return
    kind = _kind(path)
    if kind is None:
        raise WorkloadError(f"{path} is no archive", allowed="a tar.gz, tar or zip file, or a folder")
    with _readable(path):
        yield from (_of_zip if kind == "zip" else _of_tar)(path, wanted)


def names(path: Path) -> list[str]:
    """The names of all members that are files, sorted, each checked. Raises: WorkloadError, as for ``members``."""
    found: list[str] = []

    def note(name: str) -> bool:
        found.append(name)
        return False

    for _ in members(path, note):
        pass  # none is wanted
    return sorted(found)


def unzipped(path: Path, header_bytes: int, stated: Callable[[bytes], int]) -> bytes:
    """The content of a file, plain or gzip, of whose header ``stated`` tells how many bytes there are in all.

    Raises: WorkloadError for more or fewer, more than there can be, or a file that cannot be read.
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


def read_members(path: Path, wanted: list[str], what: str) -> dict[str, bytes]:
    """The members with these names, in whatever folder of the archive.

    Raises: WorkloadError; where one is missing or there twice, it says that this is not ``what``.
    """
    found: dict[str, bytes] = {}
    for name, content in members(path, lambda name: name.rpartition("/")[2] in wanted):
        short = name.rpartition("/")[2]
        if short in found:
            raise WorkloadError(f"{path} has two members with the name", value=short, allowed=what)
        found[short] = content
    for name in wanted:
        if name not in found:
            raise WorkloadError(f"{path} lacks the member", value=name, allowed=what)
    return found


def _of_folder(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with _readable(path):
        for file in sorted(path.rglob("*")):
            name = file.relative_to(path).as_posix()
            if file.is_file() and wanted(name):
                _fits(name, file.stat().st_size, path)
                yield name, file.read_bytes()


def _of_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        entries = []
        seen: set[str] = set()
        for info in archive.infolist():
            name = _checked(info.orig_filename, path, seen)
            mode = info.external_attr >> 16  # of Unix; 0 where the archive was made elsewhere
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(path, "a member that is a link or a device", name)
            # The other ways to compress are unpacked in one piece, whatever size they come to.
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise _refused(path, "a member that is encrypted or of another compression", name)
            if not info.is_dir() and wanted(name):
                _fits(name, info.file_size, path)
                entries.append((name, info))
        _total(sum(info.file_size for _, info in entries), path)
        for name, info in entries:
            with archive.open(info) as file:  # checks the CRC, and stops at the stated size
                content = _read(file, info.file_size)
            _same(name, info.file_size, len(content), path)
            yield name, content


def _of_tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with path.open("rb") as raw:
        stream = _Limited(_plain(raw), path)
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for info in archive:
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
                name = _checked(info.name, path, seen)
                if info.isdir():
                    continue
                if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                    raise _refused(path, "a member that is a link or a device", name)
                if info.size < 0:
                    raise _refused(path, "a member of a size below 0", name)
                _total(info.offset_data + info.size, path)
                if wanted(name):
                    _fits(name, info.size, path)
                    file = archive.extractfile(info)
                    content = b"" if file is None else _read(file, info.size)
                    _same(name, info.size, len(content), path)
                    yield name, content
            # To the end, where gzip's own checksum stands. A damaged header looks like the end to tarfile.
            stream.seek(archive.offset)
            rest = stream.read(_CHUNK)
            whole = len(rest) >= tarfile.BLOCKSIZE
            while rest:
                whole = whole and not rest.strip(b"\0")
                rest = stream.read(_CHUNK)
            if not whole:
                raise WorkloadError(f"{path} is cut off or damaged", value=f"after {len(seen)} members")


class _Limited(io.RawIOBase):
    """The bytes of a tar file, as far as there can be so many."""

    def __init__(self, file: IO[bytes], path: Path):
        super().__init__()
        self._file = file
        self._path = path

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _HEADER_BYTES:
            raise _refused(self._path, "a header of more bytes than can be", str(size))
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
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a whole file") from error


def _kind(path: Path) -> str | None:
    with _readable(path), path.open("rb") as file:
        start = file.read(512)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    return "tar" if start[:2] == b"\x1f\x8b" or start[257:262] == b"ustar" else None


def _checked(name: str, path: Path, seen: set[str]) -> str:
    if not name.isprintable():  # nor could it be in an error of one line
        raise _refused(path, "a member whose name cannot be printed", ascii(name))
    parts = [part for part in name.split("/") if part not in ("", ".")]
    drive = name[1:2] == ":" and name[:1].isalpha()  # of Windows
    if name.startswith("/") or ".." in parts or "\\" in name or drive:
        raise _refused(path, "a member that would lie outside the archive's folder", name)
    plain = "/".join(parts)
    if plain in seen and parts:
        raise _refused(path, "two members of one name", name)
    seen.add(plain)
    return plain


def _read(file: IO[bytes], size: int) -> bytes:
    # In pieces: what a header states is not reserved before it is there.
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


def _same(name: str, stated: int, found: int, path: Path) -> None:
    if found != stated:
        more = "more" if found > stated else "only"
        raise WorkloadError(
            f"{path}: bytes of {name}", value=f"{more} than {stated}" if found > stated else found, allowed=f"{stated}"
        )


def _refused(path: Path, what: str, name: str) -> WorkloadError:
    return WorkloadError(f"{path} has {what}", value=name, allowed="plain files inside the archive's own folder")
