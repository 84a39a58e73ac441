"""Validation of uploaded files before they are stored: without torch, without pickle, and without trust.

Source of the safetensors format: https://github.com/huggingface/safetensors; of npy: NEP 1.
"""

from __future__ import annotations

import codecs
import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

from numpy.lib import format as npy

from wattune.errors import InputError
from wattune.files import parts
from wattune.server.bodies import parse_json
from wattune.server.problems import Problem

FileKind = Literal["safetensors", "npz", "text"]

HEADER_BYTES = 16 * 2**20
"""Maximum length of the header of a safetensors file."""

UNPACKED_BYTES = 2 * 2**30
"""Maximum uncompressed size of an .npz file."""

ARRAYS = 64
"""Maximum number of arrays in an .npz file."""

DIRECTORY_BYTES = ARRAYS * 1024
"""Maximum size of the central directory of an .npz file, which zipfile reads as a whole."""

ARRAY_HEADER_BYTES = 64 * 2**10
"""Maximum length of the header of an array, which numpy reads as a whole before it checks the length."""

_END = struct.Struct("<4s4H2LH")
_LOCATOR_BYTES = 20

TYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Size in bytes of each data type of a safetensors file."""


def check_file(path: Path, kind: FileKind) -> None:
    """Check that a file is a valid file of its kind. Raises: InputError."""
    with path.open("rb") as file:
        {"safetensors": _check_safetensors, "npz": _check_npz, "text": _check_text}[kind](file)


def _check_safetensors(file: BinaryIO) -> None:
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(HEADER_BYTES, size - 8):
        raise _bad_header("its length", length, f"2 to {min(HEADER_BYTES, max(0, size - 8))} bytes of {size}")
    try:
        header = parse_json(file.read(length))
    except Problem as problem:
        raise InputError("the header of the safetensors file", value=problem.detail, allowed="JSON") from None
    if not isinstance(header, dict):
        raise _bad_header("it", type(header).__name__, "a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _bad_header("__metadata__", metadata, "texts by name")
    if not header:
        raise _bad_header("it", "no tensors", "at least one")
    places = sorted((_tensor(name, entry), name) for name, entry in header.items())
    end = 0
    for (begin, until), name in places:
        if begin != end:
            raise _bad_header(f"data_offsets of {name[:100]}", begin, f"{end}: contiguous, in order")
        end = until
    if end != size - 8 - length:
        raise _bad_header("the end of its data", end, f"{size - 8 - length}, where the file ends")


def _tensor(name: str, entry: Any) -> tuple[int, int]:
    """Begin and end offset of a tensor's data."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad_header(name[:100], entry, "dtype, shape and data_offsets")
    label = name[:100]
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in TYPE_BYTES:
        raise _bad_header(f"dtype of {label}", dtype, ", ".join(TYPE_BYTES))
    if not _are_whole(shape) or len(shape) > 16:
        raise _bad_header(f"shape of {label}", shape, "up to 16 whole numbers, 0 or more")
    if not _are_whole(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad_header(f"data_offsets of {label}", offsets, "[begin, end]")
    size = math.prod(shape) * TYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != size:
        raise _bad_header(f"data_offsets of {label}", offsets, f"{size} bytes, to match its shape")
    return offsets[0], offsets[1]


def _are_whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_npz(file: BinaryIO) -> None:
    _check_directory(file)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if not 1 <= len(members) <= ARRAYS or len({member.filename for member in members}) < len(members):
                raise InputError(
                    "arrays of the .npz file", value=len(members), allowed=f"1 to {ARRAYS}, with unique names"
                )
            if (total := sum(member.file_size for member in members)) > UNPACKED_BYTES:
                raise InputError(
                    "uncompressed size of the .npz file in bytes", value=total, allowed=f"at most {UNPACKED_BYTES}"
                )
            for member in members:
                _check_member(archive, member)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise InputError("the .npz file", value=str(error), allowed="a file written by numpy.savez") from None


def _check_directory(file: BinaryIO) -> None:
    """Check the size of a zip file's central directory, before anything reads it.

    Source: APPNOTE.TXT of PKWARE, 4.3.16: the end of the central directory record; without comment and ZIP64 parts.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size - _LOCATOR_BYTES))
    end = file.read()
    file.seek(0)
    allowed = f"1 to {ARRAYS} arrays in a file written by numpy.savez"
    if len(end) < _END.size or not end[-_END.size :].startswith(b"PK\5\6") or end[-2:] != b"\0\0":
        raise InputError("the end of the .npz file", value="not that of a zip file", allowed=allowed)
    _, _, _, _, count, length, _, _ = _END.unpack(end[-_END.size :])
    if end[:4] == b"PK\6\7" or count > ARRAYS or length > DIRECTORY_BYTES:
        raise InputError("the directory of the .npz file", value=f"{count} entries, {length} bytes", allowed=allowed)


def _array_header(array: IO[bytes]) -> tuple[tuple[int, ...], Any]:
    """Shape and type of an array. Raises: InputError; whatever numpy raises for an invalid header."""
    version = npy.read_magic(array)
    length_bytes = {(1, 0): 2, (2, 0): 4}[version]
    prefix = array.read(length_bytes)
    if (length := int.from_bytes(prefix, "little")) > ARRAY_HEADER_BYTES:
        raise InputError("the length of the header", value=length, allowed=f"at most {ARRAY_HEADER_BYTES} bytes")
    content = io.BytesIO(prefix + array.read(length))
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(content)
    return shape, dtype


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = member.filename
    if not name.endswith(".npy") or "/" in name or "\\" in name or member.flag_bits & 0x1:
        raise InputError("member of the .npz file", value=name, allowed="NAME.npy, not encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"compression of {name}", value=member.compress_type, allowed="stored or deflated")
    with archive.open(member) as array:
        try:
            shape, dtype = _array_header(array)
        except Exception as error:  # noqa: BLE001 - numpy evaluates the header as a Python literal and may raise anything
            allowed = "npy version 1.0 or 2.0"
            raise InputError(f"the header of {name}", value=str(error), allowed=allowed) from None
        if dtype.hasobject or dtype.kind not in "biuf":
            raise InputError(f"type of {name}", value=str(dtype), allowed="numeric or boolean arrays")
        if min(shape, default=0) < 0:
            raise InputError(f"shape of {name}", value=shape, allowed="0 or more")
        expected = math.prod(shape) * dtype.itemsize
        actual = sum(map(len, parts(array)))  # reads to the end, where zipfile verifies the checksum
        if actual != expected:
            raise InputError(f"size of {name} in bytes", value=actual, allowed=f"{expected}, to match its shape")


def _check_text(file: BinaryIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for part in parts(file):
            if "\0" in decoder.decode(part):
                raise InputError("the text", value="a NUL character", allowed="UTF-8 text")
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InputError("the text", value=str(error), allowed="UTF-8") from None


def _bad_header(what: str, value: object, allowed: str) -> InputError:
    return InputError(f"the header of the safetensors file, {what}", value=value, allowed=allowed)
