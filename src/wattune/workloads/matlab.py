"""MATLAB 5 files, as far as data sets need them: plain arrays of numbers by their names.

A reader of our own, since the data may come from anywhere: scipy's ends the process on some damaged files.
Source: MathWorks, "MAT-File Format", level 5.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError

MAX_BYTES = 2 * 2**30
"""Bytes of one array: the largest of SVHN, the images of extra_32x32.mat, has 1.6 GB."""

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
_INT8, _INT32, _UINT32 = 1, 5, 6
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # mi...
_NUMBERS = range(6, 16)  # mxDOUBLE_CLASS to mxUINT64_CLASS; those before are cells, structures, objects, texts
_COMPLEX = 0x0800


def read_arrays(path: Path, wanted: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
    """The arrays with these names, in the type that they are stored in; those that are not there are left out.

    Raises: WorkloadError for a file that is of another format, cut off, damaged, or larger than can be.
    """
    try:
        found = dict(_arrays(path, wanted))
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of a .mat file") from error
    except (OSError, zlib.error, _Damaged) as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a whole MATLAB 5 file") from error
    return found


class _Damaged(Exception):
    """What the file says of itself does not fit together."""


def _arrays(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, NDArray[np.generic]]]:
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        # Version 0x0100 and "MI" as a number: another version is another format.
        order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(header[124:])
        if order is None:
            raise WorkloadError(f"{path} is no MATLAB 5 file", allowed="a .mat file of version 5 to 7, as SVHN's")
        while tag := file.read(8):
            kind, size = _tag(tag, order)
            _check(size)
            content = file.read(size)
            if len(content) < size:
                raise _Damaged(f"{len(content)} of {size} bytes of an array")
            if kind == _COMPRESSED:
                kind, content = _decompressed(content, order)
            if kind == _MATRIX:
                yield from _array(memoryview(content), order, wanted)


def _decompressed(content: bytes, order: str) -> tuple[int, bytes]:
    stream = zlib.decompressobj()
    kind, size = _tag(stream.decompress(content, 8), order)
    _check(size)
    # Not more than is stated, whatever is there.
    plain = stream.decompress(stream.unconsumed_tail, size) if size else b""
    if len(plain) < size or stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:
        raise _Damaged(f"{len(plain)} bytes of an array, or more than the stated {size}")
    return kind, plain


def _array(content: memoryview, order: str, wanted: tuple[str, ...]) -> Iterator[tuple[str, NDArray[np.generic]]]:
    kind, flags, rest = _element(content, order)
    if kind != _UINT32 or len(flags) != 8:
        raise _Damaged("an array without flags")
    flag = int(np.frombuffer(flags, f"{order}u4")[0])
    kind, dimensions, rest = _element(rest, order)
    if kind != _INT32 or len(dimensions) % 4:
        raise _Damaged("an array without dimensions")
    shape = [int(length) for length in np.frombuffer(dimensions, f"{order}i4")]
    kind, raw, rest = _element(rest, order)
    name = bytes(raw).decode("latin-1")
    if kind != _INT8:
        raise _Damaged("an array without a name")
    if name not in wanted or flag & 0xFF not in _NUMBERS or flag & _COMPLEX:
        return
    kind, numbers, _ = _element(rest, order)
    dtype = np.dtype(f"{order}{_TYPES[kind]}") if kind in _TYPES else None
    if dtype is None or min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != len(numbers):
        raise _Damaged(f"{name}: {len(numbers)} bytes for the shape {tuple(shape)}")
    yield name, np.frombuffer(numbers, dtype).reshape(shape, order="F")


def _element(content: memoryview, order: str) -> tuple[int, memoryview, memoryview]:
    """Type and content of the first element, and what follows it."""
    kind, size = _tag(bytes(content[:8]), order)
    # Up to four bytes stand in the tag itself, whose upper half is their number.
    start, kind, size = (4, kind & 0xFFFF, kind >> 16) if kind >> 16 else (8, kind, size)
    if len(content) < start + size or (start == 4 and size > 4):
        raise _Damaged(f"an element of {size} bytes where there are {len(content) - start}")
    return kind, content[start : start + size], content[8 if start == 4 else 8 + -(-size // 8) * 8 :]


def _tag(raw: bytes, order: str) -> tuple[int, int]:
    if len(raw) < 8:
        raise _Damaged("the end in the middle of a tag")
    kind, size = np.frombuffer(raw, f"{order}u4")
    return int(kind), int(size)


def _check(size: int) -> None:
    if size > MAX_BYTES:
        raise _Damaged(f"{size} bytes in one array, of at most {MAX_BYTES}")
