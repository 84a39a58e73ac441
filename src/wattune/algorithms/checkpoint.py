"""Checkpoints: one safetensors file with the tensors, and everything else as JSON in its metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from wattune.algorithms.counting.aten import tensors
from wattune.errors import RecordError
from wattune.files import write_bytes

VERSION = "1"


def save_checkpoint(path: str | Path, state: dict[str, Any], *, extra: dict[str, Any]) -> Path:
    """Write ``state`` and ``extra``, replacing the file atomically.

    Both are nested dictionaries (keys: text, numbers, Booleans, None), lists and tuples (read back as lists) of
    tensors and JSON values. Raises: OutputError if the file cannot be written, TypeError for any other value.
    """
    contents: dict[str, Tensor] = {}
    tree = json.dumps({"state": _encode(state, contents), "extra": _encode(extra, contents)})
    return write_bytes(path, save(contents, metadata={"wattune": "checkpoint", "version": VERSION, "tree": tree}))


def check_state(state: dict[str, Any]) -> None:
    """Check that ``save_checkpoint`` could write this. Raises: TypeError."""
    json.dumps(_encode(state, {}))


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
            if metadata.get("version") != VERSION:
                raise RecordError(f"version of {path}", value=metadata.get("version"), allowed=VERSION)
            tree = json.loads(metadata["tree"])
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


# A tensor becomes {"tensor": its name in the file}; a dictionary {"dict": [[key, value], ...]}, since keys in JSON are
# strings; lists and plain values stay the same.


def _encode(value: Any, contents: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(contents))
        # A copy, since safetensors refuses tensors that share memory, as tied weights do.
        contents[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
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
        return {key: _decode(item, file) for key, item in value["dict"]}
    if isinstance(value, list):
        return [_decode(item, file) for item in value]
    return value
