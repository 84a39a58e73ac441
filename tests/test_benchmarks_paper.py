"""The paper's evaluation: targets, curves cut at them, the replayed tables, and what the text says of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.paper import measured, replay
from benchmarks.paper.families import FAMILIES, WAYS
from benchmarks.paper.published import CELLS, NANO, RESNET18, SOUND
from benchmarks.paper.sections import markdown, results
from benchmarks.paper.training import cut, smoothed, target_of
from hypothesis import given
from hypothesis import strategies as st

from wattune.records import Evaluation, LearningCurve, provenance
from wattune.workloads.models import CharacterTransformer

pytestmark = pytest.mark.slow

NO_LIMITS = {device: dict.fromkeys(("P1", "P2", "none")) for device in dict.fromkeys(c.device for c in CELLS)}


def curve(metrics: list[float], batch_size: int = 8, seed: int = 0) -> LearningCurve:
    evaluations = tuple(Evaluation(samples=100 * i, metric=m, loss=1.0) for i, m in enumerate(metrics, start=1))
    return LearningCurve(
        workload="made",
        batch_size=batch_size,
        seed=seed,
        metric="accuracy",
        reached=False,
        samples=100 * len(metrics),
        budget_samples=100 * len(metrics),
        evaluations=evaluations,
        provenance=provenance("measured"),
    )


# -------------------------------------------------------------------------------------------------------------- targets


def test_a_target_lies_nine_tenths_of_the_way_to_the_batch_size_that_ends_worst() -> None:
    found = [curve([0.1, 0.9], 8), curve([0.3, 0.7], 128)]
    assert target_of(found) == pytest.approx(0.2 + 0.9 * 0.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1))
def test_a_cut_curve_ends_where_it_first_reaches_the_target(metrics: list[float], target: float) -> None:
    found = cut(curve(metrics), target)
    before = metrics[: len(found.evaluations) - found.reached]
    assert all(metric < target for metric in before)
    assert found.reached == any(metric >= target for metric in metrics)
    assert found.evaluations[-1].samples == 100 * (len(before) + found.reached)
    assert max(100 * len(before), 100) <= found.samples <= found.evaluations[-1].samples


def test_samples_are_interpolated_and_smoothed_over_the_same_samples_at_every_batch_size() -> None:
    assert cut(curve([0.1, 0.3, 0.7]), 0.4).samples == 225
    assert cut(curve([0.7, 0.3, 0.1]), 0.2, higher_is_better=False).samples == 250
    means = [one.metric for one in smoothed(curve([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])).evaluations]
    assert means == [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.5]  # six evaluations in 512 samples, the newest among them


# ------------------------------------------------------------------------------------------------------------- families


def _tiny(_: int) -> torch.nn.Module:
    return CharacterTransformer(layers=1, heads=2, width=16)


def test_a_family_is_measured_from_its_data_to_the_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    letters = random.Random(0)
    for name in ("wikitext2/valid", "wikitext2/test", "tinyshakespeare/train", "tinyshakespeare/test"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        words = letters.choices(("to", "be", "or", "not", "that", "is"), k=8000)
        (tmp_path / f"{name}.txt").write_text(" ".join(words), encoding="utf-8")
    [transformer] = [one for one in FAMILIES if one.kind == "text"]
    small = replace(
        transformer,
        network=_tiny,
        pretraining_samples=512,
        sets=("Shakespeare", "Python's asyncio"),
        batch_sizes=(64, 128),
        budget_samples=1536,
    )
    monkeypatch.setattr(measured, "FAMILIES", (small,))
    monkeypatch.setattr(measured, "WORK", tmp_path / "work")
    monkeypatch.setattr("benchmarks.timing.RESULTS", tmp_path)
    assert main(["paper", "measured", "--data", str(tmp_path), "--processes", "1"]) == 0
    found = (tmp_path / "paper_measured.json").read_text(encoding="utf-8")
    text = markdown({"measured": json.loads(found)})
    assert f"- {transformer.name}: ours is " in text

    monkeypatch.setattr("wattune.proxy.run.open_algorithm", None)  # finished runs are never repeated
    again = measured.Measured(small, tmp_path, None)
    assert {name: len(runs) for name, runs in again.curves.items()} == dict.fromkeys(small.sets, 6)


# -------------------------------------------------------------------------------------------------------------- replay


def test_without_limits_every_free_choice_is_at_the_highest_clock() -> None:
    found = replay.replay(NO_LIMITS)
    for table in found["tables"]:
        clocks = {row["clock_mhz"] for row in table["rows"] if row["method"] in replay.CHOICES}
        assert clocks == {921.6 if table["device"] == NANO else 1300.5}


def test_the_kept_replay_is_what_its_limits_give() -> None:
    kept = results()["replay"]
    anew = json.loads(json.dumps(replay.replay(kept["caps_w"])))
    for one, other in zip(anew["tables"], kept["tables"], strict=True):
        for new, old in zip(one["rows"], other["rows"], strict=True):
            assert (new["batch_size"], new.get("clock_mhz")) == (old["batch_size"], old.get("clock_mhz"))
            assert new["time_s"] == pytest.approx(old["time_s"])


def test_the_largest_published_speed_up_is_met_within_five_percent() -> None:
    largest = results()["replay"]["summary"]["largest"]
    assert largest["published"] == pytest.approx(2.33, abs=0.005)
    assert largest["replayed"] == pytest.approx(largest["published"], rel=0.05)


def test_every_point_that_differs_from_the_paper_has_a_reason() -> None:
    summary = results()["replay"]["summary"]
    assert all(one["why"] for one in summary["different_points"])
    assert summary["same_points"] + len(summary["different_points"]) == len(SOUND)


def test_the_proxy_of_resnet18_gives_the_baseline_its_batch_size() -> None:
    relative = results()["replay"]["proxies"][RESNET18]["relative"]
    assert min(relative, key=relative.__getitem__) == "8"


# ----------------------------------------------------------------------------------------------------------------- text


def test_the_text_names_the_worst_cell_of_each_family() -> None:
    def cells(*above: float | None) -> dict[str, Any]:
        pairs = (("a", "a"), ("a", "b"), ("b", "a"), ("b", "b"))
        return {
            "matrix": [{"proxy": p, "target": t, "above_fastest": x} for (p, t), x in zip(pairs, above, strict=True)]
        }

    made = {"family": "made", "ways": {WAYS[True]: {"P1": cells(0.0, 0.3, None, 0.0), "none": cells(0, 0.0, 0.004, 0)}}}
    text = markdown({"measured": results()["measured"] | {"families": [made]}})
    assert "made: ours is slower than the fastest in 2 of 3 cells off the diagonal, by 30.0% at most" in text
    assert "(proxy a; target b; P1)" in text
