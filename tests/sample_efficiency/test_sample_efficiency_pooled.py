from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support import proxy_runs as made

from wattune.errors import InputError, Interrupted, TargetNotReached, UnknownName
from wattune.proxy import estimate
from wattune.proxy.run import CHECKPOINT_EVERY, ProxyRun
from wattune.records import EfficiencyPoint, LearningCurve, SampleEfficiency
from wattune.sample_efficiency.choice import given_times, observation_of, with_runs
from wattune.sample_efficiency.posterior import Observation
from wattune.sample_efficiency.relative_samples import last_interval


def test_a_few_runs_cover_all_batch_sizes(tmp_path):
    lines = []
    got = estimate(made.with_proxy(), folder=tmp_path, processes=1, progress=lambda *line: lines.append(line))
    assert got.strategy == "pooled"
    assert got.workload == "points"
    assert [p.batch_size for p in got.points] == [8, 16, 32]
    assert got.runs_used == len(list(tmp_path.iterdir())) == sum(p.runs for p in got.points)
    assert 3 <= got.runs_used <= 12
    assert got.stopped_because
    assert all(p.low < p.relative_samples < p.high for p in got.points[:-1])
    assert got.points[-1].relative_samples == 1
    assert got.target == 0.9
    assert got.critical_batch_size > 0
    assert got.critical_log_sd > 0
    assert got.provenance.kind == "measured"
    assert got.provenance.data == made.workload("proxy", data=made.other_points).data_fingerprint()
    assert SampleEfficiency.parse(got.dump()) == got
    assert all(total == 12 for _, total, _ in lines)


def test_a_rerun_requests_the_same_runs(tmp_path, monkeypatch):
    first = estimate(made.with_proxy(), folder=tmp_path, processes=1)
    monkeypatch.setattr(ProxyRun, "train", None)
    again = estimate(made.with_proxy(), folder=tmp_path, processes=1)
    assert again.points == first.points
    assert again.stopped_because == first.stopped_because


@pytest.mark.slow
def test_an_interrupted_estimate_resumes(tmp_path, monkeypatch):
    whole = estimate(made.with_proxy(), processes=1)
    train, done = ProxyRun.train, []

    def failing(self, workload):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(self)
        return train(self, workload)

    with monkeypatch.context() as patch:
        patch.setattr(ProxyRun, "train", failing)
        with pytest.raises(Interrupted, match="2 of 12 runs"):
            estimate(made.with_proxy(), folder=tmp_path, processes=1)
    assert len(list(tmp_path.iterdir())) == 2
    assert estimate(made.with_proxy(), folder=tmp_path, processes=1).points == whole.points


@pytest.mark.slow
def test_two_processes_give_the_same_points_in_every_run(tmp_path):
    got = estimate(made.with_proxy(), folder=tmp_path, processes=2)
    again = estimate(made.with_proxy(), processes=2)
    assert again.points == got.points
    assert 3 <= got.runs_used <= 12


def test_batch_sizes_that_cannot_be_best_are_not_trained(tmp_path):
    times = given_times({8: 10.0, 16: 0.016, 32: 0.03})
    got = estimate(made.with_proxy(), log_step_times=times, folder=tmp_path, processes=1)
    assert got.at(8).runs == 0
    assert not list(tmp_path.glob("b008*"))
    assert got.best in (16, 32)
    assert got.p_best[8] == 0
    assert got.expected_regret < 0.2


def test_a_target_that_is_not_reached_is_refused():
    proxy = made.workload("proxy", target=1.0, budget_samples=64)
    with pytest.raises(TargetNotReached, match="no run of proxy reached the target"):
        estimate(made.workload(proxy=proxy), processes=1)


def test_conflicting_strategy_arguments_are_refused():
    assert estimate(made.with_proxy(), seeds=1, processes=1).strategy == "full"
    with pytest.raises(InputError, match="seeds"):
        estimate(made.with_proxy(), strategy="pooled", seeds=2)
    with pytest.raises(InputError, match="step times"):
        estimate(made.with_proxy(), strategy="full", log_step_times=given_times({8: 0.1}))
    with pytest.raises(UnknownName, match="full, pooled"):
        estimate(made.with_proxy(), strategy="some")


def test_a_run_stopped_early_continues_under_a_larger_budget(tmp_path):
    workload = made.workload(target=0.999, budget_samples=512)
    short = ProxyRun(workload.fingerprint(), 8, 0, "backprop", tmp_path, 128)
    given_up = short.train(workload)
    assert (given_up.samples, given_up.budget_samples, given_up.reached) == (128, 128, False)
    assert short.finished(workload) == given_up
    whole = ProxyRun(workload.fingerprint(), 8, 0, "backprop", tmp_path)
    assert whole.finished(workload) is None
    got = whole.train(workload)
    assert got.budget_samples == 512
    assert got.evaluations[:2] == given_up.evaluations
    assert short.finished(workload) == got
    assert CHECKPOINT_EVERY > 2


def test_a_learning_curve_becomes_an_observation():
    curve = ProxyRun(made.workload().fingerprint(), 16, 0, "backprop", None).train(made.workload())
    assert curve.reached
    observation = observation_of(curve)
    assert (observation.batch_size, observation.samples, observation.reached, observation.seed) == (
        16,
        curve.samples,
        True,
        0,
    )
    assert observation.spacing == pytest.approx(last_interval(curve) / curve.samples / math.sqrt(12))
    diverged = LearningCurve(workload="w", batch_size=16, seed=0, reached=False, samples=64, budget_samples=2048)
    assert observation_of(diverged)[:3] == (16, 2048, False)


@pytest.mark.parametrize("critical", [30.0, 120.0, 1000.0])
def test_the_critical_batch_size_of_the_runs_is_recovered(critical):
    draws = np.random.default_rng(0)
    sizes = (4, 8, 16, 32, 64, 128)
    runs = [
        Observation(b, 5000 * (1 + b / critical) * math.exp(0.03 * draws.normal()), True, seed)
        for b in sizes
        for seed in range(5)
    ]
    points = tuple(EfficiencyPoint(batch_size=b, relative_samples=1.0 if b == 128 else 0.5) for b in sizes)
    curve = with_runs(SampleEfficiency(workload="points", reference_batch_size=128, points=points), runs)
    assert abs(math.log(curve.critical_batch_size / critical)) < 2 * curve.critical_log_sd
    assert curve.critical_log_sd < 1.3  # the prior's


def test_runs_of_one_batch_size_imply_no_critical_batch_size():
    points = (EfficiencyPoint(batch_size=8, relative_samples=1.0),)
    curve = SampleEfficiency(workload="points", reference_batch_size=8, points=points)
    assert with_runs(curve, [Observation(8, 5000.0, True, 0)]).critical_batch_size is None


@pytest.mark.parametrize("given", [{}, {8: 0.0}, {0: 1.0}, {8: math.nan}, {8: math.inf}])
def test_step_times_out_of_range_are_refused(given):
    with pytest.raises(InputError, match="step time"):
        given_times(given)
