from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import proxy_runs as made

from wattune.errors import InputError, TargetNotReached, WorkloadError
from wattune.proxy import curve, estimate, sweep
from wattune.proxy.estimate import run_cost
from wattune.records import SampleEfficiency


@pytest.mark.slow
def test_the_proxy_is_trained_and_the_workload_is_named(tmp_path):
    workload = made.with_proxy()
    got = estimate(workload, seeds=2, folder=tmp_path, processes=1)
    assert got.workload == "points"
    assert [p.batch_size for p in got.points] == [8, 16, 32]
    assert all(p.runs == 2 for p in got.points)
    assert got.reference_batch_size == 32
    assert all(p.low < p.relative_samples < p.high for p in got.points[:-1])
    assert len(list(tmp_path.iterdir())) == 6
    assert got.points == curve(sweep(workload.proxy, seeds=[0, 1], folder=None, processes=1), workload="points").points
    assert got.critical_batch_size > 0
    assert got.critical_log_sd > 0
    assert got.provenance.data == workload.proxy.data_fingerprint()
    assert SampleEfficiency.parse(got.dump()) == got


def test_warnings_about_the_proxy_come_through_progress():
    lines = []
    proxy = made.workload("proxy", data=made.other_points, evaluate_every=128)
    estimate(made.workload(proxy=proxy), seeds=1, processes=1, progress=lambda *line: lines.append(line))
    assert lines[0][:2] == (0, 3)
    assert "warning" in lines[0][2]
    assert "evaluate_every" in lines[0][2]
    assert lines[1][2].startswith("3 proxy runs, by their budgets as long as 3 training runs: paid back after 30 if")


@pytest.mark.parametrize(("length", "ends"), [(1.0, "use wattune.capped or wattune guard"), (0.1, "saves 10% of each")])
def test_the_cost_is_said_and_a_single_run_is_sent_to_the_session(length, ends):
    text = run_cost(6, 12, length)
    assert text.startswith("about 6 proxy runs (12 at most), by their budgets as long as")
    assert f"paid back after {60 * length:.0f} " in text
    assert text.endswith(ends)
    assert ("or by a run 60 times as long" in text) == (length == 1.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "no proxy"),
        ({"proxy": made.workload("proxy", target=None)}, "no target"),
        ({"proxy": made.workload("proxy", batch_sizes=(8, 32))}, "batch sizes"),
    ],
)
def test_a_workload_without_a_usable_proxy_is_refused(changes, says):
    with pytest.raises(WorkloadError, match=says):
        estimate(made.workload(**changes))


def test_a_proxy_target_that_is_not_reached_is_refused():
    proxy = made.workload("proxy", target=1.0, budget_samples=64)
    with pytest.raises(TargetNotReached, match="no run of proxy reached the target"):
        estimate(made.workload(proxy=proxy), seeds=1, processes=1)


def test_no_seeds_are_refused():
    with pytest.raises(InputError, match="seeds"):
        estimate(made.with_proxy(), seeds=0)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_proxy_with_the_targets_own_data_is_a_whole_run(is_whole):
    workload = made.workload(batch_size=16)
    proxy = made.workload("proxy") if is_whole else made.workload("proxy", data=made.other_points)
    got = estimate(replace(workload, proxy=proxy), seeds=1, processes=1)
    assert got.whole_runs == is_whole
    assert got.own_batch_size == 16
    assert len(got.observations) == 3
