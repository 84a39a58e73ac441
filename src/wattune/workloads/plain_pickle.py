"""Pickles that hold plain data: dictionaries, lists, texts, numbers and arrays of bytes. Nothing else is opened.

A pickle is a program, and `pickle.load` runs it. Here it can make arrays and numbers, through stand-ins that are
written below and check what they are given; nothing else that a pickle names is imported or called.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError
from wattune.workloads.values import tried

_OPCODES = frozenset(
    name
    for line in (
        "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT LONG LONG1 BININT BININT1 BININT2",
        "FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8",
        "UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST",
        "APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET",
        "GLOBAL STACK_GLOBAL REDUCE BUILD",
    )
    for name in line.split()
)
"""Leaves out what makes objects of classes (NEWOBJ, INST, OBJ, ...), extensions and objects kept elsewhere."""

_TUPLES = 10_000  # nested in each other they are hashed by recursion, in C, where too deep is a crash
_TYPES = {"u1": np.uint8, "i1": np.int8, "i2": np.int16, "u2": np.uint16, "i4": np.int32, "i8": np.int64}


def loads(content: bytes, name: str) -> Any:
    """What the pickle holds; texts of Python 2 as bytes. ``name`` is what an error calls it.

    Raises: WorkloadError for a pickle that holds or calls anything else, or is damaged.
    """

    def opened() -> Any:
        _check(content)
        return _Reader(io.BytesIO(content), encoding="bytes").load()

    try:
        return tried(f"cannot read {name}", opened)  # a damaged pickle raises anything
    except _Refused as error:
        raise WorkloadError(
            f"{name} holds more than plain data, and is not opened",
            value=ascii(error.what)[1:-1],
            allowed="arrays, lists, texts",
        ) from error


class _Refused(WorkloadError):
    """Something that plain data does not need."""


def _check(content: bytes) -> None:
    tuples = 0
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name not in _OPCODES:
            raise _Refused(opcode.name)
        tuples += "TUPLE" in opcode.name
        # The table of what is remembered is as long as the highest number in it.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= len(content):
            raise _Refused(f"{opcode.name} {argument}")
    if tuples > _TUPLES:
        raise _Refused(f"{tuples} tuples")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _StandIn:
        found = _STAND_INS.get(f"{module}.{name}")
        if found is None:
            raise _Refused(f"{module}.{name}")
        return found

    def persistent_load(self, _: object) -> None:
        raise _Refused("an object kept elsewhere")


class _StandIn:
    """What a pickle may call. Without a dictionary of its own, it cannot be changed by one."""

    __slots__ = ("_make",)
    _make: Any

    def __init__(self, make: Any):
        object.__setattr__(self, "_make", make)

    def __call__(self, *values: Any) -> Any:
        return self._make(*values)

    def __setattr__(self, name: str, value: object) -> None:
        raise _Refused(f"a change of {name}")

    def __setstate__(self, state: object) -> None:
        raise _Refused("a change of what makes arrays")


class _Type:
    """A numpy type: one of whole numbers, in this machine's order of bytes or the other."""

    __slots__ = ("dtype",)

    def __init__(self, name: object, *_: object):
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if not isinstance(text, str) or text not in _TYPES:
            raise _Refused(f"an array of {text}")
        self.dtype: np.dtype[Any] = np.dtype(_TYPES[text])

    def __setstate__(self, state: tuple[object, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("|", "<", ">", "=") or any(value is not None for value in state[2:5]):
            raise _Refused("an array of records")
        self.dtype = np.dtype(f"{'=' if order == '|' else order}{self.dtype.str[1:]}")


class _Array:
    """An array in the making: numpy hands its content over as a state."""

    __slots__ = ("values",)

    def __init__(self, *_: object):
        self.values: NDArray[np.generic] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, raw = state
        if not isinstance(kind, _Type) or not isinstance(raw, (bytes, str)):
            raise _Refused("an array of objects")
        values = np.frombuffer(_as_bytes(raw), kind.dtype)
        self.values = values.reshape([int(length) for length in shape], order="F" if by_column else "C")


def _as_bytes(raw: bytes | str) -> bytes:
    return raw if isinstance(raw, bytes) else raw.encode("latin-1")


def _scalar(kind: object, raw: bytes | str) -> int:
    if not isinstance(kind, _Type):
        raise _Refused("a number of another type")
    return int(np.frombuffer(_as_bytes(raw), kind.dtype, count=1)[0])


def _encode(text: object, encoding: object = "latin1") -> bytes:
    # Python 3 writes bytes for Python 2 so.
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _Refused(f"_codecs.encode to {encoding!r}")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    # So Python 3 writes b"" for Python 2; with a number it would make room for so many.
    return b""


_STAND_INS = {
    "numpy.ndarray": _StandIn(_Array),
    "numpy.dtype": _StandIn(_Type),
    "numpy.core.multiarray._reconstruct": _StandIn(_Array),  # numpy 1
    "numpy.core.multiarray.scalar": _StandIn(_scalar),
    "numpy._core.multiarray._reconstruct": _StandIn(_Array),  # numpy 2
    "numpy._core.multiarray.scalar": _StandIn(_scalar),
    "_codecs.encode": _StandIn(_encode),
    "__builtin__.bytes": _StandIn(_no_bytes),
}


def array(value: object, name: str) -> NDArray[np.generic]:
    """An array of such a pickle, or a list of whole numbers, as numpy's. Raises: WorkloadError."""
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, list) and all(type(item) is int and abs(item) < 2**63 for item in value):
        return np.array(value, dtype=np.int64)
    raise WorkloadError(name, value=type(value).__name__, allowed="an array or a list of whole numbers")
