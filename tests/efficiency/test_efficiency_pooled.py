from __future__ import annotations

import math

import pytest
from tests.efficiency import efficiency_made as made

from wattune.efficiency import CHECKPOINT_EVERY, estimate, given_times
from wattune.efficiency.beginning import observed
from wattune.efficiency.relation import interval
from wattune.efficiency.runs import Run
from wattune.errors import InputError, Interrupted, UnknownName, WorkloadError
from wattune.records import EfficiencyCurve, LearningCurve


def test_few_runs_give_all_batch_sizes(tmp_path):
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
    assert got.provenance.kind == "measured"
    assert got.provenance.data == made.workload("proxy", data=made.other_points).data_fingerprint()
    assert EfficiencyCurve.parse(got.dump()) == got
    assert all(total == 12 for _, total, _ in lines)


def test_a_rerun_goes_the_same_way(tmp_path, monkeypatch):
    first = estimate(made.with_proxy(), folder=tmp_path, processes=1)
    monkeypatch.setattr(Run, "train", None)
    again = estimate(made.with_proxy(), folder=tmp_path, processes=1)
    assert again.points == first.points
    assert again.stopped_because == first.stopped_because


def test_an_interrupted_one_goes_on(tmp_path, monkeypatch):
    whole = estimate(made.with_proxy(), processes=1)
    train, done = Run.train, []

    def failing(self, workload):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(self)
        return train(self, workload)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "train", failing)
        with pytest.raises(Interrupted, match="2 of 12 runs"):
            estimate(made.with_proxy(), folder=tmp_path, processes=1)
    assert len(list(tmp_path.iterdir())) == 2
    assert estimate(made.with_proxy(), folder=tmp_path, processes=1).points == whole.points


@pytest.mark.slow
def test_two_at_a_time_over_processes(tmp_path):
    got = estimate(made.with_proxy(), folder=tmp_path, processes=2)
    again = estimate(made.with_proxy(), processes=2)
    assert again.points == got.points
    assert 3 <= got.runs_used <= 12


def test_batch_sizes_without_a_chance_are_not_trained(tmp_path):
    times = given_times({8: 10.0, 16: 0.016, 32: 0.03})
    got = estimate(made.with_proxy(), log_step_times=times, folder=tmp_path, processes=1)
    assert got.at(8).runs == 0
    assert not list(tmp_path.glob("b008*"))
    assert got.best in (16, 32)
    assert got.p_best[8] == 0
    assert got.expected_regret < 0.2


def test_a_single_candidate_needs_no_training():
    got = estimate(made.with_proxy(), log_step_times=given_times({16: 0.01}), processes=1)
    assert (got.runs_used, got.best, got.expected_regret) == (0, 16, 0)
    assert "only one batch size" in got.stopped_because
    assert all(point.samples is None for point in got.points)


def test_a_target_that_is_not_reached_is_refused():
    proxy = made.workload("proxy", target=1.0, budget_samples=64)
    with pytest.raises(WorkloadError, match="no run of proxy reached the target"):
        estimate(made.workload(proxy=proxy), processes=1)


def test_the_strategies_do_not_mix():
    assert estimate(made.with_proxy(), seeds=1, processes=1).strategy == "full"
    with pytest.raises(InputError, match="seeds"):
        estimate(made.with_proxy(), strategy="pooled", seeds=2)
    with pytest.raises(InputError, match="step times"):
        estimate(made.with_proxy(), strategy="full", log_step_times=given_times({8: 0.1}))
    with pytest.raises(UnknownName, match="full, pooled"):
        estimate(made.with_proxy(), strategy="some")


def test_a_run_that_was_given_up_early_is_made_to_its_end_where_it_is_wanted(tmp_path):
    workload = made.workload(target=0.999, budget_samples=512)
    short = Run(workload.fingerprint(), 8, 0, "backprop", tmp_path, 128)
    given_up = short.train(workload)
    assert (given_up.samples, given_up.budget_samples, given_up.reached) == (128, 128, False)
    assert short.finished(workload) == given_up
    whole = Run(workload.fingerprint(), 8, 0, "backprop", tmp_path)
    assert whole.finished(workload) is None
    got = whole.train(workload)
    assert got.budget_samples == 512
    assert got.evaluations[:2] == given_up.evaluations
    assert short.finished(workload) == got
    assert CHECKPOINT_EVERY > 2


def test_what_a_learning_curve_says():
    curve = Run(made.workload().fingerprint(), 16, 0, "backprop", None).train(made.workload())
    assert curve.reached
    seen = observed(curve)
    assert (seen.batch_size, seen.samples, seen.reached, seen.seed) == (16, curve.samples, True, 0)
    assert seen.spacing == pytest.approx(interval(curve) / curve.samples / math.sqrt(12))
    diverged = LearningCurve(workload="w", batch_size=16, seed=0, reached=False, samples=64, budget_samples=2048)
    assert observed(diverged)[:3] == (16, 2048, False)


@pytest.mark.parametrize("given", [{}, {8: 0.0}, {0: 1.0}, {8: math.nan}, {8: math.inf}])
def test_step_times_that_are_none_are_refused(given):
    with pytest.raises(InputError, match="step time"):
        given_times(given)
