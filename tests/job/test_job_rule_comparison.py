"""The rules against each other on learning curves that are known, so that nothing has to be trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
from tests.support.profiles import board

from wattune.algorithms import open_algorithm
from wattune.cap import PowerCap
from wattune.cap_source import CapTrace
from wattune.devices import open_device
from wattune.errors import InputError, RecordError
from wattune.job.rule_comparison import METHOD, compare_rules
from wattune.planning import RULES, pick, plan
from wattune.profiling import profile
from wattune.records import EfficiencyPoint, Evaluation, LearningCurve, SampleEfficiency
from wattune.training import price
from wattune.workloads import load_workload

SMALL = Path(__file__).parent.parent / "cli" / "small.toml"
CAP_W = 4.2
SEEDS = (3, 5)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workload():
    return load_workload(SMALL)


@pytest.fixture(scope="module")
def table(workload):
    return profile(open_device("sim:jetson-nano"), workload, strategy="full")


@pytest.fixture(scope="module")
def expected():
    """What a proxy said: the small batch needs a third. The target will say otherwise."""
    points = (EfficiencyPoint(batch_size=8, relative_samples=0.3), EfficiencyPoint(batch_size=32, relative_samples=1.0))
    return SampleEfficiency(workload="small", target=0.9, reference_batch_size=32, points=points)


def trained(folder, workload, needed):
    """Leave learning curves as if the target had been trained: {(batch size, seed): samples, None if censored}."""
    every, budget = workload.evaluate_every, workload.budget_samples
    folder.mkdir(exist_ok=True)
    for (batch_size, seed), samples in needed.items():
        grid = range(every, (samples or budget) + 1, every)
        values = [Evaluation(samples=at, metric=0.5) for at in grid]
        if samples:
            values[-1] = Evaluation(samples=samples, metric=0.95)
        LearningCurve(
            workload=workload.name,
            batch_size=batch_size,
            seed=seed,
            target=workload.target,
            reached=samples is not None,
            samples=samples or budget,
            budget_samples=budget,
            evaluations=tuple(values),
            fingerprint=workload.fingerprint(),
        ).save(folder / f"b{batch_size:03d}-s{seed}.json")
    return folder


def compared(workload, table, expected, folder, **changes):
    arguments = {"cap": PowerCap(CAP_W), "seeds": SEEDS, "folder": folder, "processes": 1, **changes}
    record = compare_rules(open_device("sim:jetson-nano"), workload, table, expected, **arguments)
    return record, {row.rule: row for row in record.rows}


@pytest.fixture(scope="module")
def usual(workload, table, expected, tmp_path_factory):
    """On the target the large batch needs fewer samples than the proxy said."""
    needed = {(8, 3): 1920, (8, 5): 2560, (32, 3): 960, (32, 5): 1280}
    folder = trained(tmp_path_factory.mktemp("curves"), workload, needed)
    return compared(workload, table, expected, folder), folder


def test_records_of_different_algorithms_are_refused_before_training(workload, table, expected, tmp_path):
    last = table.model_copy(update={"algorithm": "backprop:last=1"})
    with pytest.raises(RecordError, match="belongs to another training algorithm: backprop; allowed: backprop:last=1"):
        compared(workload, last, expected, tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_rule_has_a_row(usual):
    (record, rows), _ = usual
    assert [row.rule for row in record.rows] == list(RULES)
    assert record.seeds == SEEDS
    assert record.cap_w == CAP_W
    assert record.provenance.kind == "simulated"
    assert record.method == METHOD
    assert "trained once" in METHOD
    assert "priced at every clock" in METHOD
    for row in rows.values():
        assert (row.runs, row.censored) == (2, 0)


def test_each_rule_trains_at_its_own_pick(usual, table, expected):
    (_, rows), _ = usual
    for rule in RULES:
        if rule != "fastest":
            choice = pick(rule, table, expected, PowerCap(CAP_W).at_sensor(table.supply, table.sensor_window_s))
            assert (rows[rule].batch_size, rows[rule].clock_mhz) == (choice.batch_size, choice.clock_mhz)
    assert rows["wattune"].batch_size == 8
    assert rows["fastest"].batch_size == 32  # by the target's own runs


def test_time_and_energy_are_those_of_pricing_each_seed(usual, workload):
    (_, rows), folder = usual
    for row in rows.values():
        point = row.point
        priced = [
            price(
                LearningCurve.load(folder / f"b{row.batch_size:03d}-s{seed}.json"),
                open_device("sim:jetson-nano"),  # a board of its own each time: the order does not matter
                workload,
                point,
                cap_w=CAP_W,
            )
            for seed in SEEDS
        ]
        assert row.time_s == mean(run.time_s for run in priced)
        assert row.time_std_s == pytest.approx(stdev(run.time_s for run in priced))
        assert row.energy_j == mean(run.energy_j for run in priced)
        assert row.power_peak_w == max(run.power_peak_w for run in priced)


def test_speed_up_and_distance_follow_from_the_times(usual):
    (_, rows), _ = usual
    ours, fastest = rows["wattune"].time_s, rows["fastest"].time_s
    assert rows["wattune"].speed_up == 1
    assert rows["fastest"].above_fastest == 0
    assert fastest < ours
    for row in rows.values():
        assert row.speed_up == row.time_s / ours
        assert row.above_fastest == row.time_s / fastest - 1
        assert row.why_not is None


def test_a_censored_seed_leaves_no_mean(workload, table, expected, tmp_path):
    needed = {(8, 3): 1920, (8, 5): None, (32, 3): 960, (32, 5): 1280}
    _, rows = compared(workload, table, expected, trained(tmp_path / "c", workload, needed))
    ours = rows["wattune"]
    assert (ours.batch_size, ours.runs, ours.censored) == (8, 2, 1)
    assert ours.time_s is ours.energy_j is ours.speed_up is ours.above_fastest is None
    assert ours.why_not == "1 of 2 seeds did not reach the target"
    large = rows["largest batch, own clock"]
    assert large.time_s > 0
    assert large.speed_up is None


def test_the_fastest_is_unknown_if_no_seed_reaches_the_target(workload, table, expected, tmp_path):
    needed = dict.fromkeys([(8, 3), (8, 5), (32, 3), (32, 5)])
    _, rows = compared(workload, table, expected, trained(tmp_path / "c", workload, needed))
    assert rows["fastest"].batch_size is None
    assert rows["fastest"].why_not
    assert rows["wattune"].censored == 2


def test_a_rule_that_exceeds_the_cap_is_not_trained(workload, table, expected, usual):
    _, folder = usual
    hungry = [c.model_copy(update={"power_peak_w": 9.0}) if c.batch_size == 32 else c for c in table.cells]
    table = table.model_copy(update={"cells": tuple(hungry)})
    _, rows = compared(workload, table, expected, folder)
    row = rows["largest batch, own clock"]
    assert row.batch_size == 32
    assert row.time_s is None
    assert row.runs == 0
    assert "exceeds the cap" in row.why_not


def test_one_seed_has_no_deviation(workload, table, expected, usual):
    _, folder = usual
    _, rows = compared(workload, table, expected, folder, seeds=[3])
    assert rows["wattune"].time_s > 0
    assert rows["wattune"].time_std_s is None


def test_a_baseline_keeps_its_row_where_sizes_that_no_probe_measured_do_not_fit(workload, table, expected, tmp_path):
    large = replace(workload, batch_sizes=(8, 32, 48, 64))
    points = [(8, 0.3), (32, 1.0), (48, 1.5), (64, 2.0)]
    curve = tuple(EfficiencyPoint(batch_size=size, relative_samples=samples) for size, samples in points)
    expected = expected.model_copy(update={"points": curve})
    few = tuple(cell for cell in table.cells if cell.batch_size == 8)
    guided = table.model_copy(update={"cells": few, "strategy": "guided"})
    needed = [open_algorithm("backprop", large, size).work().peak_memory_bytes for size in (32, 48)]
    made = board().board.memory
    device = board(memory={"size_mib": made.system_mib + made.context_mib + sum(needed) / 2**21})
    folder = trained(tmp_path / "c", large, {(8, 3): 1920, (32, 3): 960})
    asked = {"cap": PowerCap(CAP_W), "seeds": [3], "folder": folder, "processes": 1}
    rows = {row.rule: row for row in compare_rules(device, large, guided, expected, **asked).rows}
    assert rows["largest batch, own clock"].batch_size == rows["largest batch, fixed clock"].batch_size == 32
    assert rows["wattune"].batch_size == 8


def test_a_cap_that_changes_is_refused_on_a_real_board_before_anything_is_trained(workload, table, expected, tmp_path):
    device = open_device("sim:jetson-nano")
    device.executes_steps = True
    cap = CapTrace(caps_w=(CAP_W,))
    with pytest.raises(InputError, match=r"comparing with a cap that changes.*simulated or a replayed"):
        compare_rules(device, workload, table, expected, cap=cap, seeds=[0], folder=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_under_a_cap_that_changes_every_rule_follows_it(usual, workload, table, expected):
    (constant, at_one), folder = usual
    _, at_first = compared(workload, table, expected, folder, cap=CapTrace(caps_w=(CAP_W,)))
    for rule, row in at_one.items():
        assert (at_first[rule].point, at_first[rule].why_not) == (row.point, row.why_not)
        if row.time_s is not None:
            assert at_first[rule].time_s == pytest.approx(row.time_s, rel=0.1, abs=0.3)
    caps = CapTrace(times_s=(0.0, 0.5, 2.5, 4.0), caps_w=(CAP_W, 0.0, 3.6, CAP_W), name="caps.csv")
    record, rows = compared(workload, table, expected, folder, cap=caps)
    assert (record.caps, record.cap_w, constant.caps) == ("caps.csv", CAP_W, None)
    for rule, row in rows.items():
        if row.time_s is not None:
            assert row.time_s > at_first[rule].time_s
            assert row.power_peak_w < CAP_W + 0.3
    assert rows["fastest"].time_s <= min(row.time_s for row in rows.values() if row.time_s is not None)
    assert rows["wattune"].point == plan(table, expected, cap=caps).point
