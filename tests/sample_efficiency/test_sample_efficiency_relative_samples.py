from __future__ import annotations

import math
import random
from statistics import mean

import pytest
from scipy.stats import t as student

from wattune.errors import RecordError, TargetNotReached
from wattune.proxy import curve
from wattune.records import Evaluation, LearningCurve

BUDGET = 10_000


def run(batch_size, seed, samples, *, reached=True, every=100, **changes):
    grid = range(every, samples + 1, every)
    evaluations = [Evaluation(samples=n, metric=0.5) for n in grid]
    fields = {"workload": "proxy", "target": 0.9, "budget_samples": BUDGET, "fingerprint": "f"} | changes
    return LearningCurve(
        batch_size=batch_size, seed=seed, reached=reached, samples=samples, evaluations=tuple(evaluations), **fields
    )


def test_samples_are_relative_to_the_largest_batch():
    got = curve([run(8, 0, 1000), run(8, 1, 2000), run(32, 0, 2000), run(32, 1, 4000)], workload="mine")
    assert got.workload == "mine"
    assert got.reference_batch_size == 32
    assert got.at(32).relative_samples == 1
    assert got.at(32).samples == 3000
    assert got.at(8).relative_samples == pytest.approx(0.5)
    assert got.at(8).samples_std == pytest.approx(707.1, abs=0.1)
    assert (got.at(8).runs, got.at(8).censored) == (2, 0)


def test_the_band_is_students_t_on_the_logarithms():
    samples = {8: (1000, 1200, 1100), 32: (2000, 2600, 2200)}
    runs = [run(b, s, n, every=20) for b, each in samples.items() for s, n in enumerate(each)]
    point = curve(runs, workload="mine").at(8)
    within = sum(sum((math.log(n) - mean(map(math.log, each))) ** 2 for n in each) for each in samples.values()) / (
        2 + 2
    )
    grid = sum(mean((20 / n) ** 2 for n in each) for each in samples.values()) / 12
    factor = math.exp(student.ppf(0.95, 4) * math.sqrt(within * 2 / 3 + grid))
    assert point.high == pytest.approx(point.relative_samples * factor, rel=1e-4)
    assert point.low == pytest.approx(point.relative_samples / factor, rel=1e-4)


def test_seeds_that_agree_still_leave_the_grid_open():
    point = curve([run(b, s, 1000) for b in (8, 32) for s in (0, 1)], workload="mine").at(8)
    assert point.relative_samples == 1
    assert 0.85 < point.low < 0.95
    assert 1.05 < point.high < 1.2


def test_one_seed_has_no_band():
    point = curve([run(8, 0, 1000), run(32, 0, 2000)], workload="mine").at(8)
    assert point.relative_samples == 0.5
    assert (point.low, point.high, point.samples_std) == (None, None, None)


def test_a_censored_run_counts_as_the_budget_that_it_used():
    runs = [run(8, 0, 2000), run(8, 1, BUDGET, reached=False), run(32, 0, 4000), run(32, 1, 4000)]
    point = curve(runs, workload="mine").at(8)
    assert point.relative_samples == pytest.approx(6000 / 4000)
    assert (point.runs, point.censored) == (2, 1)
    assert point.samples == 6000  # what a prediction has to count with, and a lower bound
    assert point.low is not None
    assert point.high is None


def test_a_run_that_diverged_counts_as_its_whole_budget():
    runs = [run(8, 0, 2000), run(8, 1, 300, reached=False), run(32, 0, 4000), run(32, 1, 4000)]
    assert curve(runs, workload="mine").at(8).relative_samples == pytest.approx(6000 / 4000)


def test_a_batch_size_that_never_reached_the_target_is_named():
    runs = [run(8, 0, 2000), run(32, 0, 4000), run(128, 0, BUDGET, reached=False)]
    got = curve(runs, workload="mine")
    assert got.reference_batch_size == 32
    point = got.at(128)
    assert (point.relative_samples, point.samples, point.low, point.high) == (None, None, None, None)
    assert (point.runs, point.censored) == (1, 1)


def test_a_reference_with_censored_runs_bounds_the_others_from_above_only():
    runs = [run(8, 0, 2000), run(8, 1, 2000), run(32, 0, 4000), run(32, 1, BUDGET, reached=False)]
    point = curve(runs, workload="mine").at(8)
    assert point.low is None
    assert point.high is not None


def test_a_target_that_no_run_reached_is_an_error_in_one_line():
    with pytest.raises(TargetNotReached, match=r"no run of proxy reached the target.*0\.9") as caught:
        curve([run(8, 0, BUDGET, reached=False)], workload="mine")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"workload": "other"}, {"target": 0.8}, {"fingerprint": "g"}, {"algorithm": "forward_gradient"}]
)
def test_curves_of_different_sweeps_are_refused(changes):
    with pytest.raises(RecordError, match="different"):
        curve([run(8, 0, 1000), run(8, 1, 1000, **changes)], workload="mine")


def test_no_curves_and_the_same_curve_twice_are_refused():
    with pytest.raises(RecordError, match="no learning curves"):
        curve([], workload="mine")
    with pytest.raises(RecordError, match="duplicate learning curve"):
        curve([run(8, 0, 1000), run(8, 0, 1000)], workload="mine")


def test_the_band_holds_the_truth_nine_times_in_ten():
    noise = random.Random(0)
    truth, held, trials = {8: 3000.0, 32: 4000.0, 128: 6000.0}, 0, 500
    for _ in range(trials):
        runs = []
        for batch_size, needed in truth.items():
            for seed in range(3):
                samples = math.ceil(needed * math.exp(noise.gauss(0, 0.1)) / 100) * 100
                runs.append(run(batch_size, seed, samples))
        point = curve(runs, workload="mine").at(8)
        held += point.low <= truth[8] / truth[128] <= point.high
    assert 0.87 <= held / trials <= 0.96
