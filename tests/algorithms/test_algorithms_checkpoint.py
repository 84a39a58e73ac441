"""Checkpoints: what goes in comes out, and a broken file says so."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from wattune.algorithms import load_checkpoint, save_checkpoint, state_bytes
from wattune.errors import OutputError, RecordError

TYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.uint8, torch.uint16, torch.bool),
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 999)))) * 100
    made = values.to(draw(st.sampled_from(TYPES)))
    return made.t() if made.dim() == 2 and draw(st.booleans()) else made


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text() | st.integers() | st.none() | st.booleans()
nested = st.recursive(
    tensors() | plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return [*map(repr, a)] == [*map(repr, b)] and all(
            same(x, y) for x, y in zip(a.values(), b.values(), strict=True)
        )
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(state=st.dictionaries(keys, nested, max_size=5), extra=st.dictionaries(st.text(), nested, max_size=3))
def test_a_state_survives_the_round_trip(tmp_path: Path, state: dict[Any, Any], extra: dict[str, Any]) -> None:
    path = tmp_path / "checkpoint"
    assert save_checkpoint(path, state, extra=extra) == path
    found_state, found_extra = load_checkpoint(path)
    assert same(state, found_state)
    assert same(extra, found_extra)


def test_values_outside_json_survive_the_round_trip(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", {"a": (0.9, 0.999), "b": [math.inf, -math.inf, math.nan]}, extra={})
    state, _ = load_checkpoint(path)
    assert state["a"] == [0.9, 0.999]
    assert state["b"][:2] == [math.inf, -math.inf]
    assert math.isnan(state["b"][2])


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    weight = torch.arange(12.0).view(3, 4)
    state, _ = load_checkpoint(save_checkpoint(tmp_path / "c", {"a": weight, "b": weight, "c": weight[1:]}, extra={}))
    assert torch.equal(state["a"], weight)
    assert torch.equal(state["b"], weight)
    assert torch.equal(state["c"], weight[1:])


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.float32, b"bytes"])
def test_other_values_are_refused_and_nothing_is_written(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match="a checkpoint holds"):
        save_checkpoint(tmp_path / "c", {"value": value}, extra={})
    assert list(tmp_path.iterdir()) == []


def refused(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = save_checkpoint(tmp_path / "c", {"weight": torch.randn(100, 10)}, extra={"samples": 7})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "cannot read the checkpoint" in refused(path)


def test_files_that_are_not_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    assert "no such checkpoint" in refused(path)
    path.write_text("{}")
    assert "cannot read" in refused(path)
    save_file({"weight": torch.zeros(3)}, path)
    assert "not a wattune checkpoint" in refused(path)
    assert "cannot read" in refused(tmp_path)


@pytest.mark.parametrize(
    "tree",
    [
        "",
        "[]",
        "{}",
        json.dumps({"state": {"tensor": "7"}, "extra": None}),
        json.dumps({"state": {"dict": [1]}, "extra": None}),
        json.dumps({"state": {"else": 1}, "extra": None}),
        json.dumps({"state": {"dict": [[[1], 2]]}, "extra": None}),
        json.dumps({"state": {"dict": []}, "extra": 5}),
        json.dumps({"state": [], "extra": {"dict": []}}),
    ],
)
def test_a_malformed_description_is_refused(tmp_path: Path, tree: str) -> None:
    path = tmp_path / "c"
    save_file({"0": torch.zeros(3)}, path, metadata={"wattune": "checkpoint", "version": "1", "tree": tree})
    refused(path)


@pytest.mark.parametrize("kind", [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint32])
def test_rarer_numbers_are_saved(tmp_path: Path, kind: torch.dtype) -> None:
    values = torch.arange(6).reshape(2, 3).to(torch.complex64 if kind.is_complex else torch.float32)
    made = (values * 1j).conj() if kind.is_complex else values.to(kind)
    found = load_checkpoint(save_checkpoint(tmp_path / "c", {"weight": made}, extra={}))[0]["weight"]
    assert found.dtype == kind
    assert torch.equal(found.to(torch.complex64), made.to(torch.complex64))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_file({}, path, metadata={"wattune": "checkpoint", "version": "4", "tree": "{}"})
    assert "allowed: 1 to 3" in refused(path)


def test_a_file_of_the_first_version_is_read(tmp_path: Path) -> None:
    """Its tree lies in the metadata."""
    tree = json.dumps({"state": {"dict": [["weight", {"tensor": "0"}]]}, "extra": {"dict": [["samples", 7]]}})
    path = tmp_path / "c"
    save_file({"0": torch.ones(3)}, path, metadata={"wattune": "checkpoint", "version": "1", "tree": tree})
    state, extra = load_checkpoint(path)
    assert torch.equal(state["weight"], torch.ones(3))
    assert extra == {"samples": 7}


@pytest.mark.slow
def test_a_history_of_any_length_is_saved(tmp_path: Path) -> None:
    """The header of a safetensors file may have 100 MB."""
    history = "x" * 101_000_000
    assert load_checkpoint(save_checkpoint(tmp_path / "c", {}, extra={"history": history}))[1] == {"history": history}


PROGRAM = """
import resource, torch
from wattune.algorithms import save_checkpoint

state = {{n: torch.ones(2**22, dtype=torch.float32)for n in range(32)}}  # 512 MiB
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save_checkpoint({path!r}, state, extra={{}})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**19)
"""


@pytest.mark.slow
def test_a_checkpoint_takes_no_second_copy_of_the_state(tmp_path: Path) -> None:
    program = PROGRAM.format(path=str(tmp_path / "c"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout) < 0.1


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_checkpoint(tmp_path / "c", {"weight": torch.ones(3)}, extra={})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        save_checkpoint(path, {"weight": torch.zeros(3)}, extra={})
    assert torch.equal(load_checkpoint(path)[0]["weight"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]


def test_state_bytes_is_what_the_tensors_take() -> None:
    assert state_bytes({"a": [torch.zeros(3, 2)], 1: {"b": torch.zeros(5, dtype=torch.int64)}, "c": 7}) == 24 + 40
