"""Training algorithms and the limit of memory, on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.cli_records import EFFICIENCY, PROFILE, SMALL, written

from wattune.records import Plan, ProfileTable, SampleEfficiency, TrainingRecord

DEVICE = ["--device", "sim:jetson-nano"]
CHECKPOINTED, FGD = "backprop:checkpoint=auto", "forward-gradient"


def profile_of(algorithm: str, *, slower: float, sample_mb: float) -> dict[str, Any]:
    cells = [
        {**c, "step_s": c["step_s"] * slower, "memory_bytes": (10 + sample_mb * c["batch_size"]) * 1e6}
        for c in PROFILE["cells"]
    ]
    return {**PROFILE, "algorithm": algorithm, "cells": cells}


def samples_of(algorithm: str, times: float) -> dict[str, Any]:
    points = [{**p, "samples": p["samples"] * times} for p in EFFICIENCY["points"]]
    return {**EFFICIENCY, "algorithm": algorithm, "points": points}


@pytest.fixture
def records(tmp_path):
    """A profile with its curve, and what goes behind --also."""
    own = [
        written(tmp_path, "backprop.json", profile_of("backprop", slower=1.0, sample_mb=2.0)),
        written(tmp_path, "samples.json", EFFICIENCY),
    ]
    others = [
        written(tmp_path, "forward-samples.json", samples_of(FGD, 40.0)),  # in any order
        written(tmp_path, "checkpointed.json", profile_of(CHECKPOINTED, slower=1.3, sample_mb=0.5)),
        written(tmp_path, "forward.json", profile_of(FGD, slower=1.1, sample_mb=0.1)),
    ]
    return own, [part for path in others for part in ("--also", path)]


def test_a_plan_over_several_algorithms(wattune, records):
    own, also = records
    code, out, err = wattune("plan", *own, *also, "--cap", "4W", "--json")
    assert (code, err) == (0, [])
    found = Plan.parse(json.loads(out))
    assert (found.algorithm, found.memory_limit_bytes) == ("backprop", None)
    assert [one.algorithm for one in found.algorithms] == ["backprop", CHECKPOINTED, FGD]
    _, text, _ = wattune("plan", *own, *also, "--cap", "4W")
    assert text.splitlines()[0].endswith("backprop  [measured]")
    (line,) = [line for line in text.splitlines() if line.startswith(FGD)]
    assert " 44.00x" in line  # how much slower it would be


def test_a_memory_limit_chooses_what_fits_and_says_what_it_costs(wattune, refused, records):
    own, also = records
    code, text, _ = wattune("plan", *own, *also, "--cap", "4W", "--memory", "15MB")
    assert code == 0
    assert f"{CHECKPOINTED}  [" in text.splitlines()[0]
    assert " 14 MB  of the 15 MB allowed" in text
    assert "needs 26 MB, above the limit of 15 MB" in text
    code, text, _ = wattune("plan", *own, *also, "--cap", "4W", "--memory", "12MB")
    assert f"{FGD}  [" in text.splitlines()[0]
    assert f"{FGD.capitalize()} needs 20 times the samples that backprop needs at batch size 128; it was" in text
    assert f"backprop needs 26 MB, above the limit of 12 MB; {CHECKPOINTED} needs 14 MB" in text
    assert "memory limit: 1 MB" in refused("plan", *own, *also, "--cap", "4W", "--memory", "1MB")


def test_records_that_cannot_be_weighed(refused, records, tmp_path):
    own, also = records
    plan = written(tmp_path, "plan.json", {"record": "plan", "batch_size": 8})
    for extra, said in (
        (["--also", plan], "allowed: profile, efficiency"),
        (["--also", own[0]], "two profiles are of one training algorithm"),
        (["--also", str(tmp_path / "none.json")], "none.json"),
        (also[2:], "there is no efficiency record of the profile's training algorithm: forward-gradient"),
    ):
        assert said in refused("plan", *own, *extra, "--cap", "4W")
    assert "efficiency record" in refused("plan", own[0], *also, "--cap", "4W", "--batch-size", "8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile", *DEVICE, "--algorithm", "nonsense"], "unknown algorithm: nonsense; allowed: async-fgd, backprop"),
        (["profile", *DEVICE, "--algorithm", "backprop:checkpoint=1"], "2 or more, or auto"),
        (["profile", *DEVICE, "--algorithm", "backprop:depth=1"], "once each: checkpoint=(2 or more, or auto)"),
        (["profile", *DEVICE, "--algorithm", "backprop:checkpoint=99"], "the number of the model's parts"),
        (
            ["profile", *DEVICE, "--algorithm", "forward-gradient", "--command", "x {batch_size}"],
            "algorithm with a command",
        ),
        (["profile", *DEVICE, "--algorithm", "", "-o", "p.json"], "unknown algorithm: ; allowed"),
        (["estimate", "--algorithm", "nonsense"], "unknown algorithm: nonsense"),
        (
            ["estimate", "--algorithm", "forward-gradient", "--from-runs", "runs.csv"],
            "--algorithm cannot be combined with --from-runs",
        ),
        (
            ["estimate", "--algorithm", "backprop", "--from-runs", "runs.csv"],
            "--algorithm cannot be combined with --from-runs",
        ),
        (["run", *DEVICE, "--cap", "4W", "--set", "algorithm=nonsense"], "unknown algorithm: nonsense"),
    ],
)
def test_algorithms_that_cannot_be(wattune, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    workload = [] if {"--command", "--from-runs"} & set(arguments) else [str(SMALL)]
    code, out, err = wattune(arguments[0], *workload, *arguments[1:])
    assert (code, out) == (2, "")
    assert said in err[-1]


@pytest.mark.slow
def test_a_finished_record_of_another_algorithm_is_not_gone_on_with(wattune, refused, tmp_path):
    path = tmp_path / "profile.json"
    arguments = ["profile", SMALL, *DEVICE, "--no-reference", "--steps", "1", "-o", path]
    assert wattune(*arguments, "--algorithm", CHECKPOINTED)[0] == 0
    assert ProfileTable.load(path).algorithm == CHECKPOINTED
    assert "another training algorithm: backprop:checkpoint=auto; allowed: backprop" in refused(*arguments, "--resume")
    assert wattune(*arguments, "--algorithm", CHECKPOINTED, "--resume")[0] == 0


@pytest.mark.slow
def test_from_profiles_to_a_training_with_the_algorithm_that_fits(wattune, tmp_path):
    paths = {name: tmp_path / f"{name}.json" for name in ("backprop", "checkpointed", "samples", "plan", "t", "other")}
    common = [SMALL, *DEVICE, "--no-reference", "--steps", "1"]
    assert wattune("profile", *common, "-o", paths["backprop"])[0] == 0
    _, text, _ = wattune("profile", *common, "--algorithm", CHECKPOINTED, "-o", paths["checkpointed"])
    assert f"small with {CHECKPOINTED} on sim:jetson-nano" in text
    assert "memory" in text
    assert wattune("estimate", SMALL, "--seeds", "1", "--processes", "1", "-o", paths["samples"])[0] == 0
    assert SampleEfficiency.load(paths["samples"]).algorithm == "backprop"
    plain = min(c.memory_bytes for c in ProfileTable.load(paths["backprop"]).cells)
    limit = f"{0.99 * plain:.0f}"
    records = [paths["backprop"], paths["samples"], "--also", paths["checkpointed"]]
    assert wattune("plan", *records, "--cap", "4.2W", "--memory", limit, "-o", paths["plan"])[0] == 0
    code, text, _ = wattune("train", paths["plan"], SMALL, *DEVICE, "-o", paths["t"])
    assert code == 0
    done = TrainingRecord.load(paths["t"])
    assert (done.plan.algorithm, done.reached) == (CHECKPOINTED, True)
    assert f"{CHECKPOINTED}  [" in text.splitlines()[0]
    wide = tmp_path / "wide.json"
    assert wattune("plan", *records, "--cap", "4.2W", "-o", wide)[0] == 0
    assert Plan.load(wide).algorithm == "backprop"
    assert wattune("train", wide, SMALL, *DEVICE, "-o", paths["other"])[0] == 0
    other = TrainingRecord.load(paths["other"])
    # The same samples to the target: the gradients are those of backprop.
    assert other.samples == done.samples


@pytest.mark.slow
def test_a_run_with_an_algorithm(wattune, refused, tmp_path):
    folder = tmp_path / "run"
    arguments = ["run", SMALL, *DEVICE, "--cap", "4.2W", "--set", "seeds=1", "--set", "reference=no", "-o", folder]
    assert wattune(*arguments, "--set", f"algorithm={CHECKPOINTED}")[0] == 0
    done = TrainingRecord.load(folder / "training.json")
    assert done.plan.algorithm == ProfileTable.load(folder / "profile.json").algorithm == CHECKPOINTED
    assert SampleEfficiency.load(folder / "efficiency.json").algorithm == "backprop"
    assert "another algorithm" in refused("run", "-o", folder, "--resume", "--set", "algorithm=backprop")
    assert wattune("run", "-o", folder, "--resume")[0] == 0
    assert "that of the given profile" in refused(
        *arguments[:-1], tmp_path / "new", "--profile", folder / "profile.json", "--set", "algorithm=backprop"
    )
