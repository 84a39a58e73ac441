"""What proxy runs say of the first tenth of a training."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from tests.efficiency import efficiency_made as made

from wattune.decisions.curve import Observation
from wattune.decisions.noise import EARLY_OFFSET, EARLY_SD
from wattune.efficiency import curve_from_runs, estimate, read_runs
from wattune.efficiency.beginning import TRANSFER_SD, progress_band, with_critical, with_first_tenth
from wattune.planning import plan as make_plan
from wattune.records import (
    EfficiencyCurve,
    EfficiencyPoint,
    Evaluation,
    LearningCurve,
    Plan,
    ProfileCell,
    ProfileTable,
)


def run(share, *, samples=6400, every=64, begin=0.1, target=0.9, reached=True, batch_size=8, seed=0):
    """A run that has made so much of its way after 640 samples, on straight lines."""
    grid = list(range(every, samples + 1, every))
    metrics = np.interp(grid, [every, 640, samples], [begin, begin + share * (target - begin), target])
    return LearningCurve(
        workload="proxy",
        batch_size=batch_size,
        seed=seed,
        target=target,
        reached=reached,
        samples=samples,
        budget_samples=samples,
        evaluations=tuple(Evaluation(samples=n, metric=m) for n, m in zip(grid, metrics.tolist(), strict=True)),
    )


def curve(samples=6400.0, **changes):
    point = EfficiencyPoint(batch_size=8, relative_samples=1.0, samples=samples)
    return EfficiencyCurve(workload="proxy", reference_batch_size=8, points=(point,), **changes)


def test_the_mean_share_of_the_way_and_its_band():
    shares = [0.2, 0.3, 0.4]
    tenth = with_first_tenth(curve(), [run(share, seed=i) for i, share in enumerate(shares)]).first_tenth
    assert (tenth.from_samples, tenth.runs, tenth.noise_scale) == (64, 3, None)
    assert tenth.progress == pytest.approx(0.3)
    reach = math.hypot(2.92 * 0.1 * math.sqrt(1 + 1 / 3), 1.6449 * TRANSFER_SD)
    assert tenth.progress_high - 0.3 == pytest.approx(0.3 - tenth.progress_low) == pytest.approx(reach, rel=1e-3)


def test_a_smaller_metric_that_is_better_gives_the_same():
    up = with_first_tenth(curve(), [run(0.2), run(0.5, seed=1)]).first_tenth
    down = [run(share, begin=3.0, target=0.5, seed=i) for i, share in enumerate((0.2, 0.5))]
    found = with_first_tenth(curve(), down).first_tenth
    assert found.model_dump() == pytest.approx(up.model_dump())


def test_a_run_that_missed_the_target_counts():
    """Its beginning was as it was: the mean over those that arrived would be of the fast ones."""
    runs = [run(0.4), run(0.2, seed=1, reached=False)]
    assert with_first_tenth(curve(), runs).first_tenth.progress == pytest.approx(0.3)


def test_one_run_has_no_band():
    tenth = with_first_tenth(curve(), [run(0.4)]).first_tenth
    assert (tenth.progress, tenth.progress_low, tenth.runs) == (pytest.approx(0.4), None, 1)


@pytest.mark.parametrize(
    ("known", "runs"),
    [
        (curve(), []),
        (curve(None), [run(0.4)]),
        (curve(), [run(0.4, every=640)]),  # the first evaluation is that of the tenth
        (curve(), [run(0.4, samples=600)]),  # it diverged before
        (curve(), [run(0.4).model_copy(update={"target": None})]),
    ],
)
def test_what_is_not_known_is_left_out(known, runs):
    assert with_first_tenth(known, runs).first_tenth is None


def test_the_noise_scale_that_belongs_to_a_critical_batch_size():
    tenth = with_first_tenth(curve(critical_batch_size=200.0, critical_log_sd=0.5)).first_tenth
    assert tenth.progress is None
    assert tenth.noise_scale == pytest.approx(200 * math.exp(-EARLY_OFFSET))
    spread = math.log(tenth.noise_scale_high / tenth.noise_scale_low)
    assert spread == pytest.approx(2 * 1.6449 * math.hypot(0.5, EARLY_SD))


@pytest.mark.parametrize("critical", [30.0, 120.0, 1000.0])
def test_the_critical_batch_size_that_made_the_runs_is_found(critical):
    draws = np.random.default_rng(0)
    sizes = (4, 8, 16, 32, 64, 128)
    runs = [
        Observation(b, 5000 * (1 + b / critical) * math.exp(0.03 * draws.normal()), True, seed)
        for b in sizes
        for seed in range(5)
    ]
    points = tuple(EfficiencyPoint(batch_size=b, relative_samples=1.0 if b == 128 else 0.5) for b in sizes)
    found = with_critical(EfficiencyCurve(workload="made", reference_batch_size=128, points=points), runs)
    assert abs(math.log(found.critical_batch_size / critical)) < 2 * found.critical_log_sd
    assert found.critical_log_sd < 1.3  # what is believed before any run


def test_the_band_holds_nine_of_ten():
    draws = np.random.default_rng(1)
    inside = 0
    for _ in range(4000):
        *shares, other = draws.normal(0.3, 0.08, size=6)
        low, high = progress_band(shares)
        inside += low <= other + draws.normal(0, TRANSFER_SD) <= high
    # Student's t of five is wider than the normal distribution that the two parts are added up as.
    assert 0.89 < inside / 4000 < 0.95
    assert NormalDist().cdf(1.6449) == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize("arguments", [{"strategy": "pooled"}, {"seeds": 2}])
def test_an_estimate_says_what_a_plan_then_carries(arguments):
    found = estimate(made.with_proxy(evaluate_every=32), processes=1, **arguments)
    assert found.critical_batch_size > 0
    assert found.first_tenth.noise_scale_low < found.first_tenth.noise_scale < found.first_tenth.noise_scale_high
    assert EfficiencyCurve.parse(found.dump()) == found
    cells = tuple(ProfileCell(batch_size=b, step_s=0.01 * b, power_mean_w=3, power_peak_w=4) for b in (8, 16, 32))
    plan = make_plan(ProfileTable(device="board", workload="points", cells=cells), found, cap_w=5.0)
    assert plan.first_tenth == found.first_tenth
    assert Plan.parse(plan.dump()).first_tenth == found.first_tenth


def test_recorded_runs_tell_the_noise_scale_alone(tmp_path):
    rows = ["workload,batch_size,seed,samples_to_target,reached,samples_budget"]
    rows += [f"made,{b},{seed},{1000 + 10 * b + seed},1,9000" for b in (8, 32, 128) for seed in range(2)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows) + "\n")
    found = curve_from_runs(read_runs(path))
    assert found.first_tenth.progress is None
    assert found.first_tenth.noise_scale == pytest.approx(found.critical_batch_size * math.exp(-EARLY_OFFSET))


def test_older_records_know_nothing_of_it():
    old = curve().dump()
    assert EfficiencyCurve.parse(old).first_tenth is None
    assert EfficiencyCurve.parse(old).critical_batch_size is None
    assert Plan.parse({"record": "plan", "version": 1, "batch_size": 8}).first_tenth is None
