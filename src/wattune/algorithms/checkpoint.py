"""Checkpoints: one safetensors file with the tensors, and everything else as JSON in one more of them.

A file is written tensor by tensor, since a board's memory may have no room for a second copy of the state.
Source of the format: https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import safetensors
import torch
from torch import Tensor

from wattune.algorithms.counting.aten import tensors
from wattune.errors import RecordError
from wattune.files import write_bytes

VERSION: Final = "3"
"""Version 1 had the tree in the metadata, which safetensors limits to 100 MB; version 2 had no ``Plain`` values."""

TREE: Final = "tree"

Part = bytes | memoryview

DATA_TYPES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",  # of weights: in checkpoints they are pairs
}


class Plain(NamedTuple):
    """JSON values that are written as they are: to look at each of them takes ten times as long."""

    values: Any


def save_checkpoint(path: str | Path, state: dict[str, Any], *, extra: dict[str, Any]) -> Path:
    """Write ``state`` and ``extra``, replacing the file atomically.

    Both are nested dictionaries (keys: text, numbers, Booleans, None), lists and tuples (read back as lists) of
    tensors, JSON values and ``Plain`` ones.

    Raises: OutputError if the file cannot be written, TypeError for any other value.
    """
    contents: list[Tensor] = []
    tree = json.dumps({"state": _encode(state, contents), "extra": _encode(extra, contents)}).encode()
    numbered = {str(number): tensor for number, tensor in enumerate(contents)}
    numbered[TREE] = torch.frombuffer(bytearray(tree), dtype=torch.uint8)
    return write_bytes(path, tensor_file(numbered, {"wattune": "checkpoint", "version": VERSION}))


def check_state(state: dict[str, Any]) -> None:
    """Check that ``save_checkpoint`` could write this. Raises: TypeError."""
    json.dumps(_encode(state, []))


def load_checkpoint(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the ``state`` and ``extra`` of ``save_checkpoint``; tensors on the CPU.

    Raises: RecordError if the file is missing, truncated or not a checkpoint.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("wattune") != "checkpoint":
                raise RecordError(
                    f"{path} is not a wattune checkpoint", hint="give a checkpoint written by a training run"
                )
            if metadata.get("version") not in ("1", "2", VERSION):
                raise RecordError(f"version of {path}", value=metadata.get("version"), allowed=f"1 to {VERSION}")
            tree = json.loads(metadata[TREE] if TREE in metadata else file.get_tensor(TREE).numpy().tobytes())
            state, extra = _decode(tree["state"], file), _decode(tree["extra"], file)
            if not isinstance(state, dict) or not isinstance(extra, dict):
                raise ValueError("the state is missing")
            return state, extra
    except FileNotFoundError as error:
        raise RecordError("no such checkpoint", value=str(path)) from error
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"cannot read the checkpoint {path}", value=str(error), allowed="a complete file") from error


def state_bytes(state: dict[str, Any]) -> int:
    """Bytes of a state's tensors in a checkpoint."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))


def tensor_file(contents: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[Part]:
    """A safetensors file, in parts of one tensor at most. Raises: TypeError for numbers that the format lacks."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in contents.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        if tensor.dtype not in DATA_TYPES:
            raise TypeError(f"{name} has numbers of {tensor.dtype}")
        header[name] = {
            "dtype": DATA_TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in contents.values():
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


# A tensor becomes {"tensor": its name in the file}, and one of complex numbers {"complex": the tensor of their parts}.
# A dictionary becomes {"dict": [[key, value], ...]}, since keys in JSON are strings. ``Plain`` values become {"json":
# values}. Lists and single values stay.


def _encode(value: Any, contents: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.is_complex():  # which older releases of safetensors do not read
            return {"complex": _encode(torch.view_as_real(value.detach().resolve_conj()), contents)}
        if value.dtype not in DATA_TYPES or value.layout != torch.strided:
            raise TypeError(f"a checkpoint holds dense tensors of numbers, not {value.dtype}, {value.layout}")
        contents.append(value.detach())
        return {"tensor": str(len(contents) - 1)}
    if isinstance(value, Plain):
        return {"json": value.values}
    if isinstance(value, dict):
        return {"dict": [[_plain(k), _encode(v, contents)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(v, contents) for v in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint holds tensors, dictionaries, lists and JSON values, not {type(value).__name__}")


def _decode(value: Any, file: Any) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return file.get_tensor(value["tensor"])
        if "json" in value:
            return value["json"]
        if "complex" in value:
            return torch.view_as_complex(_decode(value["complex"], file))
        return {key: _decode(item, file) for key, item in value["dict"]}
    if isinstance(value, list):
        return [_decode(item, file) for item in value]
    return value
