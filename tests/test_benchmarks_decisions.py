"""The decisions benchmark's own arithmetic: what it reads, what its rivals do, and how it scores."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from benchmarks.decisions import (
    command,
    estimators,
    mlperf_part,
    scoring,
    sweeps,
    traces,
)
from benchmarks.decisions.boards import Cell, Rig
from benchmarks.decisions.estimators import Bank
from benchmarks.decisions.generators import BATCH_SIZES, board
from benchmarks.decisions.guided_way import guided_way
from benchmarks.decisions.profiling_part import cell_under_cap, score
from benchmarks.decisions.sweeps import Run
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

COLUMNS = (
    "family,workload,role,learning_rate_at_32,target_quantile,target_accuracy,batch_size,seed,samples_to_target,"
    "reached,samples_budget"
)


def runs(samples: dict[int, float], seeds: int = 5, spread: float = 0.0) -> dict[int, list[Run]]:
    draw = random.Random(0)
    return {b: [Run(n * math.exp(spread * draw.gauss(0, 1)), True) for _ in range(seeds)] for b, n in samples.items()}


# ------------------------------------------------------------------------------------------------------------ reading


def test_a_table_of_runs_is_read_by_key(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = ["a,up,proxy,0.001,0.8,0.7,4,0,100.5,1,900", "a,up,proxy,0.001,0.8,0.7,8,0,,0,900"]
    rows += ["a,down,target,0.001,0.8,0.6,4,0,200,1,900", "a,down,target,0.001,0.8,0.6,8,0,300,1,900"]
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    [(proxy, target)] = sweeps.pairs(sweeps.read(path))
    assert proxy.runs == {4: [Run(100.5, True, 0)], 8: [Run(900.0, False, 0)]}
    assert target.key.workload == "down"
    assert target.batch_sizes == (4, 8)


def test_the_round_with_the_most_batch_sizes_stands_for_its_benchmark(tmp_path: Path) -> None:
    lines = ["round,benchmark,batch_size,optimizer,seed,to_converge,record,hyper"]
    lines += [f"r1,bert,{size},,{seed},{size + seed},," for size in (4, 8, 16, 32) for seed in (0, 1)]
    lines += [f"r0,bert,{size},,0,{size},," for size in (4, 8)] + ["r1,rnnt,4,,0,5,,"]
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    found = mlperf_part.read(tmp_path)
    assert {name: list(runs) for name, runs in found.items()} == {"bert": [4, 8, 16, 32]}
    assert found["bert"][8] == [Run(8, True, 0), Run(9, True, 1)]
    (tmp_path / "runs.csv").write_text("\n".join([*lines, "r1,bert,64,,0,64000,,"]) + "\n")
    with pytest.raises(ValueError, match="epochs beside samples"):
        mlperf_part.read(tmp_path)


def test_the_truth_of_runs_that_all_reached_is_their_geometric_mean() -> None:
    found = sweeps.truth({4: [Run(100, True), Run(400, True)], 8: [Run(300, True), Run(300, True)]})
    assert found[4] == pytest.approx(200)
    assert found[8] == pytest.approx(300)


def test_a_censored_run_raises_the_truth_above_its_budget_taken_as_samples() -> None:
    reached = [Run(100, True), Run(110, True), Run(95, True)]
    naive = math.exp(np.mean(np.log([100, 110, 95, 120])))
    found = sweeps.truth({4: [*reached, Run(120, False)], 8: reached})
    assert naive < found[4] < 200


def test_what_most_runs_miss_is_not_relied_on() -> None:
    found = sweeps.truth({4: [Run(100, True), Run(120, True)], 8: [Run(100, True), Run(500, False)]})
    assert found[8] == math.inf


# ------------------------------------------------------------------------------------------------------------- rivals


def test_a_bank_ends_runs_at_their_budget() -> None:
    bank = Bank(runs({4: 100, 8: 200}))
    assert bank.make(4) == Run(100, True)
    assert bank.make(8, most=50) == Run(50, False)


def test_ours_makes_twelve_runs_at_most_and_knows_what_it_decided_from() -> None:
    bank = Bank(runs(dict.fromkeys((4, 8, 16, 32, 64, 128), 1000.0), 12, spread=0.3))
    found = estimators.ours(bank, {4: 1.3, 8: 1.2, 16: 1.15, 32: 1.1, 64: 1.05, 128: 1.0})
    assert 3 <= len(bank.made) <= 12
    assert found.curve is not None
    assert found.expected_regret is not None


# ------------------------------------------------------------------------------------------------------------- boards


def test_a_rig_counts_true_power_over_the_cap_and_stops_once_the_mean_is_surely_above_it() -> None:
    place = board("table", 3)
    top = Cell(128, place.clocks_mhz[-1])
    rig = Rig(place, place.cap_w(0.1), 0)
    found = rig.probe(top)
    assert isinstance(found, float)
    assert found > rig.cap_w
    assert rig.over == [pytest.approx(float(place.power_w[-1, -1]) * (1 - place.cold) / rig.cap_w - 1)]


@given(st.integers(0, 300), st.floats(0.25, 0.9))
@settings(max_examples=25, deadline=None)
def test_the_best_cell_is_the_fastest_under_the_cap(seed: int, share: float) -> None:
    place = board("table", seed)
    cap_w, samples = place.cap_w(share), {size: 1 + size / 100 for size in BATCH_SIZES}
    best = place.best(cap_w, samples)
    assert best is not None
    assert place.power_w[place.place(best)] <= cap_w
    cells = [Cell(size, clock) for size in BATCH_SIZES for clock in place.clocks_mhz]
    allowed = [cell for cell in cells if place.power_w[place.place(cell)] <= cap_w]
    assert min(place.cost(cell, samples) for cell in allowed) == pytest.approx(place.cost(best, samples))


def test_a_pick_over_the_cap_is_charged_the_clock_below_that_keeps_it() -> None:
    place = board("table", 3)
    at = Cell(128, place.clocks_mhz[6])
    cap_w = float(place.power_w[place.place(at)]) - 1e-6
    lower = cell_under_cap(place, cap_w, at)
    assert lower is not None
    assert lower.clock_mhz < at.clock_mhz
    assert place.power_w[place.place(lower)] <= cap_w


def test_a_guided_profile_picks_a_cell_that_is_not_far_from_the_best() -> None:
    place, samples = board("table", 3), {size: 1 + size / 200 for size in BATCH_SIZES}
    cap_w = place.cap_w(0.6)
    rig = Rig(place, cap_w, 0)
    pick = guided_way(rig, samples)
    assert pick is not None
    assert rig.probes <= 16
    assert -0.2 < score(place, cap_w, samples, rig, pick)["regret"] < 0.5


# ------------------------------------------------------------------------------------------------------------ scoring


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=8), st.integers(2, 5))
@settings(deadline=None)
def test_repeating_a_case_in_its_group_makes_nothing_surer(values: list[float], times: int) -> None:
    once = scoring.spread_of_mean(values, range(len(values)))
    again = scoring.spread_of_mean(values * times, list(range(len(values))) * times)
    assert again == pytest.approx(once, abs=1e-12)


def test_traces_are_split_and_judged_on_the_other_trainings(tmp_path: Path) -> None:
    power = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    power += [f"a,net,{b},adam,{w},{100 / b**0.5 * 100 / w},{w}" for b in (16, 64, 256) for w in (100, 150)]
    (tmp_path / "summary_power_gpu.csv").write_text("\n".join(power) + "\n")
    lines = ["dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"]
    for size, epochs in ((16, 20), (64, 24), (256, 90)):
        lines += [f"a,net,{size},adam,1e-3,{run},0.5,{epochs + run}" for run in range(4)]
    lines += ["a,net,256,adam,1e-3,9,0.4,50", "a,net,256,adam,1e-3,9,0.5,nan"]
    (tmp_path / "summary_train.csv").write_text("\n".join(lines) + "\n")
    [(_, found)] = [item for item in traces.read_runs(tmp_path).items() if item[0][1] == 0.5]
    assert found[256][-1] == Run(50.0, False)
    rows = traces.cases(tmp_path)
    ours = [row for row in rows if row["way"] == "ours"]
    assert {row["limit_w"] for row in ours} == {100, 150}
    assert {row["batch_size"] for row in ours} == {64}
    figures = traces.summary(rows)
    assert figures["gain"]["largest batch"]["worst"] > 1
    json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize("arguments", [["wrong"], ["gpus"], ["gpus", "pipeline"]])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert "error: " in capsys.readouterr().err
