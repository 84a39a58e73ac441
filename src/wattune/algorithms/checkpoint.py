"""Checkpoints: one safetensors file, its tensors as they are and everything else as JSON in its metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from wattune.algorithms.operations import tensors
from wattune.errors import RecordError
from wattune.files import write_bytes

VERSION = "1"


def save_checkpoint(path: str | Path, state: dict[str, Any], *, extra: dict[str, Any]) -> Path:
    """Write ``state`` and ``extra``, replacing the file in one step.

    Both are nested dictionaries (keys: text, numbers, truth values, None), lists and tuples (read back as lists) of
    tensors and JSON values. Raises: OutputError where the file cannot be written, TypeError for any other value.
    """
    found: dict[str, Tensor] = {}
    tree = json.dumps({"state": _encode(state, found), "extra": _encode(extra, found)})
    return write_bytes(path, save(found, metadata={"wattune": "checkpoint", "version": VERSION, "tree": tree}))


def load_checkpoint(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``state`` and ``extra`` of ``save_checkpoint``; tensors on the CPU.

    Raises: RecordError where the file is missing, cut off or no checkpoint.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("wattune") != "checkpoint":
                raise RecordError(
                    f"{path} is not a checkpoint of wattune", hint="give a checkpoint that a training wrote"
                )
            if metadata.get("version") != VERSION:
                raise RecordError(f"version of {path}", value=metadata.get("version"), allowed=VERSION)
            tree = json.loads(metadata["tree"])
            state, extra = _decode(tree["state"], file), _decode(tree["extra"], file)
            if not isinstance(state, dict) or not isinstance(extra, dict):
                raise ValueError("it describes no state")
            return state, extra
    except FileNotFoundError as error:
        raise RecordError("no such checkpoint", value=str(path)) from error
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"cannot read the checkpoint {path}", value=str(error), allowed="a whole file") from error


def state_bytes(state: dict[str, Any]) -> int:
    """What the tensors of a state take in a checkpoint."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(state))


# A tensor becomes {"tensor": its name in the file}, a dictionary {"dict": [[key, value], ...]}, since JSON knows no
# keys but texts; lists and plain values stay what they are.


def _encode(value: Any, found: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(found))
        # A copy, since safetensors refuses tensors that share memory, as tied weights do.
        found[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_plain(k), _encode(v, found)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(v, found) for v in value]
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
