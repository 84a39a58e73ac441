"""Stacked runs: the same curves as separate runs, or a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support import stackable as made

from wattune.algorithms import load_checkpoint, open_algorithm
from wattune.algorithms.traced import Untraceable
from wattune.proxy import estimate, next_runs, stacked_runs, sweep
from wattune.proxy.run import CHECKPOINT_EVERY, ProxyRun
from wattune.proxy.stacked_runs import TOLERANCE, RunUnit, RunUnits, check_stack, train_unit
from wattune.sample_efficiency.scheduler import MAX_RUNS, RunScheduler
from wattune.workloads import Loaders, Model, OptimizerRule


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    """Check the results alone: how fast these runs are depends on the machine."""
    monkeypatch.setattr(stacked_runs, "MIN_WORK_S", 0.0)
    monkeypatch.setattr(stacked_runs, "LONG_STEP_S", 1e9)
    monkeypatch.setattr(stacked_runs, "MIN_FACTOR", 1e-9)


def runs(count, *, batch_size=8, folder=None, budget=None, workload=None):
    fingerprint = (workload or made.workload()).fingerprint()
    return tuple(ProxyRun(fingerprint, batch_size, seed, "backprop", folder, budget) for seed in range(count))


def described(curve):
    """All of a curve but the time, its losses to five digits."""
    values = curve.model_dump(exclude={"provenance", "evaluations"})
    points = [(point.samples, point.metric, pytest.approx(point.loss, rel=1e-5)) for point in curve.evaluations]
    return values, points


def check_same(workload, stacked, *, factor=2.0):
    for one, run in zip(train_unit(workload, RunUnit(stacked, factor)), stacked, strict=True):
        assert described(one) == described(replace(run, folder=None).train(workload))


OPTIMIZERS = [
    OptimizerRule("adam", learning_rate=1e-2, reference_batch_size=32),
    OptimizerRule("adamw", learning_rate=1e-2, reference_batch_size=32, weight_decay=0.1),
    OptimizerRule("sgd", learning_rate=0.1, reference_batch_size=32, momentum=0.9, weight_decay=1e-3),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda rule: rule.name)
def test_stacked_runs_have_the_curves_of_separate_runs(optimizer):
    workload = made.workload(optimizer=optimizer)
    check_same(workload, runs(3, workload=workload))


@pytest.mark.slow
def test_the_runs_end_at_their_targets_one_after_the_other_and_the_last_one_alone():
    workload = made.workload()
    ends = [curve.samples for curve in train_unit(workload, RunUnit(runs(4), 2.0))]
    assert len(set(ends)) > 1
    check_same(workload, runs(4), factor=4.0)
    check_same(workload, runs(4), factor=1.0)


def test_the_budget_of_a_request_ends_stacked_runs():
    workload = made.workload(target=1.0, metric="accuracy")
    stacked = runs(2, budget=200, workload=workload)
    curves = train_unit(workload, RunUnit(stacked, 2.0))
    assert [(curve.samples, curve.budget_samples, curve.reached) for curve in curves] == [(200, 200, False)] * 2
    check_same(workload, stacked)


def test_a_diverging_run_ends_and_the_others_go_on():
    workload = made.workload(model=made.diverging_with_seed_1)
    stacked = runs(3, workload=workload)
    check_same(workload, stacked)
    ends = [len(curve.evaluations) for curve in train_unit(workload, RunUnit(stacked, 2.0))]
    assert ends[1] == 0 < min(ends[0], ends[2])


MODELS = {
    "convolutions": made.convolutions,
    "an activation in place": made.in_place,
    "shared weights": made.Tied,
    "frozen layers": Model(made.perceptron, train_only=("2",)),
    "a frozen body with a new head": Model(made.perceptron, reinitialise=("2",), train_only=("2",)),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_models_that_can_be_stacked(model):
    workload = made.workload(model=model, target=None, budget_samples=512)
    assert check_stack(workload, "backprop", runs(3, workload=workload)[0], 3).difference <= TOLERANCE
    check_same(workload, runs(3, workload=workload))


def sgd_in_two_groups(module, batch_size):
    first, *others = module.parameters()
    groups = [{"params": [first], "lr": 0.02}, {"params": others, "weight_decay": 0.1}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def test_each_parameter_group_keeps_its_options():
    workload = made.workload(optimizer=sgd_in_two_groups)
    assert check_stack(workload, "backprop", runs(2, workload=workload)[0], 2).difference <= TOLERANCE
    check_same(workload, runs(2, workload=workload))


def rmsprop(module, batch_size):
    return torch.optim.RMSprop(module.parameters(), lr=1e-3)


class Clipped(torch.optim.SGD):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        return super().step(closure)


def clipped(module, batch_size):
    return Clipped(module.parameters(), lr=0.1)


REFUSED = {
    "batch normalisation": ({"model": made.normalised}, "operations that change buffers"),
    "dropout": ({"model": made.dropping}, "draws random numbers"),
    "control flow": ({"model": made.Branching}, "cannot be traced"),
    "another optimizer": ({"optimizer": rmsprop}, "its optimizer is RMSprop"),
    "a changed optimizer": ({"optimizer": clipped}, "its optimizer is Clipped"),
    "a low data type": ({"data_type": "bf16"}, "its data type is bf16"),
    "a loss of its own state": ({"loss": made.Annealed()}, "differ from separate ones"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_models_that_cannot_be_stacked_are_refused(changes, reason):
    workload = made.workload(**changes)
    with pytest.raises(Untraceable, match=reason):
        check_stack(workload, "backprop", runs(2, workload=workload)[0], 2)


def test_other_algorithms_and_loaders_are_refused():
    with pytest.raises(Untraceable, match="the algorithm is forward-gradient"):
        check_stack(made.workload(), "forward-gradient", runs(2)[0], 2)
    data = made.points()
    loaders = Loaders(lambda batch_size, seed: [tuple(part[:batch_size] for part in data.train)], [data.test])
    workload = made.workload(data=loaders)
    with pytest.raises(Untraceable, match="loaders"):
        check_stack(workload, "backprop", runs(2, workload=workload)[0], 2)


def test_stacks_are_only_checked_for_steps_short_enough_and_runs_long_enough(monkeypatch):
    monkeypatch.setattr(stacked_runs, "StackPrograms", None)
    workload = made.workload()
    monkeypatch.setattr(stacked_runs, "LONG_STEP_S", 0.0)
    assert check_stack(workload, "backprop", runs(2)[0], 2) == (0.0, None)
    monkeypatch.setattr(stacked_runs, "LONG_STEP_S", 1e9)
    monkeypatch.setattr(stacked_runs, "MIN_WORK_S", 1e9)
    assert check_stack(workload, "backprop", runs(2)[0], 2) == (0.0, None)


def test_checkpoints_of_stacked_runs_continue_separate_runs(tmp_path, monkeypatch):
    workload = made.workload(target=None, budget_samples=64 * (2 * CHECKPOINT_EVERY + 1))
    stacked = runs(2, folder=tmp_path, workload=workload)
    whole = train_unit(workload, RunUnit(stacked, 2.0))
    for run in stacked:
        run.curve_path.unlink()

    class Killed(BaseException):
        pass

    def killed(self, *arguments, checkpoint=ProxyRun._checkpoint):
        checkpoint(self, *arguments)
        if self.seed == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ProxyRun, "_checkpoint", killed)
        with pytest.raises(Killed):
            train_unit(workload, RunUnit(stacked, 2.0))
    for run, curve in zip(stacked, whole, strict=True):
        state, extra = load_checkpoint(run.checkpoint_path)
        separate = open_algorithm("backprop", workload, 8, seed=run.seed)
        steps = separate.run(workload.batches(8, seed=run.seed))
        for _ in range(extra["samples"] // 8):
            next(steps)
        torch.testing.assert_close(state, separate.state_dict(), rtol=1e-5, atol=1e-5)
        assert RunUnits(workload, "backprop").units([run], 1, print) == [RunUnit((run,))]
        assert described(run.train(workload)) == described(curve)


@pytest.mark.slow
def test_units_hold_the_seeds_of_a_batch_size_with_one_unit_for_each_process():
    fingerprint = made.workload().fingerprint()
    requested = [ProxyRun(fingerprint, size, seed, "backprop", None) for size in (8, 16) for seed in range(5)]
    lines = []

    def widths(processes):
        units = RunUnits(made.workload(), "backprop").units(requested, processes, lines.append)
        assert [run for unit in units for run in unit.runs] == requested
        return [len(unit.runs) for unit in units]

    assert widths(1) == widths(2) == [5, 5]
    assert widths(3) == [3, 2, 3, 2]
    assert widths(10) == [1] * 10
    assert lines[0].startswith("batch size 8: 5 runs as one program, ")
    many = [ProxyRun(fingerprint, 8, seed, "backprop", None) for seed in range(20)]
    assert [len(unit.runs) for unit in RunUnits(made.workload(), "backprop").units(many, 1, print)] == [8, 8, 4]


def test_a_refused_model_is_trained_in_separate_runs_and_the_reason_is_reported_once():
    lines = []
    workload = made.workload(model=made.normalised, target=None, budget_samples=64)
    curves = sweep(workload, seeds=[0, 1], folder=None, processes=1, progress=lambda *line: lines.append(line[2]))
    assert [line for line in lines if "separately" in line] == [
        "each run is trained separately: the model has operations that change buffers, as in batch normalisation"
    ]
    separate = [
        ProxyRun(workload.fingerprint(), c.batch_size, c.seed, "backprop", None).train(workload) for c in curves
    ]
    assert list(map(described, curves)) == list(map(described, separate))


@pytest.mark.slow
def test_a_sweep_in_stacks_gives_the_curves_of_separate_runs(tmp_path):
    workload = made.workload()
    lines = []
    how = {"seeds": [0, 1, 2], "processes": 2, "progress": lambda *line: lines.append(line)}
    curves = sweep(workload, folder=tmp_path, **how)
    assert [line[:2] for line in lines if "as one program" in line[2]] == [(0, 9)] * 3
    separate = [
        ProxyRun(workload.fingerprint(), c.batch_size, c.seed, "backprop", None).train(workload) for c in curves
    ]
    assert list(map(described, curves)) == list(map(described, separate))
    assert len(list(tmp_path.iterdir())) == 9
    assert list(map(described, sweep(workload, folder=tmp_path, **how))) == list(map(described, curves))


def test_the_first_batch_sizes_get_several_seeds_at_once():
    runs, requests = [], []
    scheduler = RunScheduler((8, 16, 32, 64))
    curve = sweep(made.workload(), batch_sizes=[32], seeds=[0], folder=None)[0]
    while request := next_runs(scheduler, runs, together=1, seeds_at_once={8: 3, 16: 3, 32: 3, 64: 1}.__getitem__):
        requests.append([(run.batch_size, run.seed) for run in request])
        runs += [curve.model_copy(update={"batch_size": run.batch_size, "seed": run.seed}) for run in request]
    assert [len(request) for request in requests] == [1, 3, 3, *[1] * (len(requests) - 3)]
    assert [requests[0][0], requests[1][-1][1]] == [(64, 0), 2]
    assert len({run for request in requests for run in request}) == len(runs) <= MAX_RUNS


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "seeds"), [(0.0, {0, 1, 2}), (1e9, {0})])
def test_an_estimate_trains_three_seeds_at_once_if_a_stack_is_fast_enough(monkeypatch, tmp_path, factor, seeds):
    monkeypatch.setattr(stacked_runs, "SEEDS_FACTOR", factor)
    workload = made.workload(proxy=made.workload())
    efficiency = estimate(workload, folder=tmp_path, processes=1)
    first = {path.name for path in tmp_path.glob("b032-*.json")}
    assert first >= {f"b032-s{seed}.json" for seed in seeds}
    assert sum(point.runs for point in efficiency.points) == len(list(tmp_path.iterdir())) <= MAX_RUNS
    if len(seeds) == 1:
        assert not {f"b032-s{seed}.json" for seed in (1, 2)} & first
