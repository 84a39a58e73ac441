from __future__ import annotations

import csv
import io
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.errors import InputError, RecordError
from wattune.records import SampleEfficiency
from wattune.sample_efficiency.choice import given_times
from wattune.sample_efficiency.recorded_runs import chosen_runs, curve_from_runs, read_runs
from wattune.tables import Layout, parse_columns

SIZES = (8, 16, 32, 64)


def rows(workload="flowers", seeds=3, critical=100.0, budget=9000.0, **more):
    draws = np.random.default_rng(len(workload))
    for size in SIZES:
        for seed in range(seeds):
            needed = round(1000 * (1 + size / critical) * math.exp(0.08 * draws.normal()), 1)
            yield {
                "workload": workload,
                "batch_size": size,
                "seed": seed,
                "samples_to_target": needed if needed <= budget else "",
                "reached": int(needed <= budget),
                "samples_budget": budget,
                **more,
            }


def written(path, table, *, end="\n", start=""):
    text = io.StringIO()
    table = list(table)
    writer = csv.DictWriter(text, table[0], lineterminator=end)
    writer.writeheader()
    writer.writerows(table)
    path.write_bytes((start + text.getvalue()).encode())
    return path


def changed(table, place, **cells):
    return [{**row, **(cells if at == place else {})} for at, row in enumerate(table)]


@pytest.fixture
def table(tmp_path):
    return tmp_path / "runs.csv"


def test_a_curve_uses_all_runs_by_default(table):
    curve = curve_from_runs(chosen_runs(read_runs(written(table, rows())), {}))
    assert [point.batch_size for point in curve.points] == list(SIZES)
    assert curve.reference_batch_size == 64
    assert curve.workload == "flowers"
    assert curve.strategy == "pooled"
    assert (curve.runs_used, curve.censored, curve.misfit) == (12, 0, False)
    assert curve.p_best is curve.best is curve.expected_regret is None
    for point in curve.points:
        truth = (1 + point.batch_size / 100) / 1.64
        assert point.low * 0.9999 <= truth <= point.high * 1.0001
        assert point.relative_samples == pytest.approx(truth, rel=0.08)
        assert point.samples == pytest.approx(1640 * truth, rel=0.1)
        assert point.runs == 3
    assert np.array(curve.covariance).shape == (4, 4)
    assert curve.covariance[3] == (0, 0, 0, 0)
    assert SampleEfficiency.parse(curve.dump()) == curve
    assert curve.provenance.kind == "recorded"


def test_step_times_add_the_best_batch_size_and_its_probability(table):
    runs = chosen_runs(read_runs(written(table, rows())), {})
    curve = curve_from_runs(runs, log_step_times=given_times({8: 0.1, 16: 0.11, 32: 0.13, 64: 0.5}))
    assert curve.best == 32
    assert curve.p_best[32] > 0.99
    assert sum(curve.p_best.values()) == pytest.approx(1.0)
    assert 0 <= curve.expected_regret < 0.001
    with pytest.raises(InputError, match="without runs: 7"):
        curve_from_runs(runs, log_step_times=given_times({7: 0.1}))


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans(), st.booleans(), st.sampled_from(["{}", "{}.0", " {} "]))
def test_the_form_of_the_file_changes_nothing(tmp_path_factory, rng, windows, mark, form):
    folder = tmp_path_factory.mktemp("runs")
    plain = read_runs(written(folder / "a.csv", rows()))
    table = [{**row, "batch_size": form.format(row["batch_size"]), "extra": rng.random()} for row in rows()]
    table = [{**row, "reached": rng.choice(["1", "true", "True", "TRUE", "1.0"])} for row in table]
    columns = list(table[0])
    rng.shuffle(columns)
    rng.shuffle(table)
    other = read_runs(
        written(
            folder / "b.csv",
            [{column: row[column] for column in columns} for row in table],
            end="\r\n" if windows else "\n",
            start="\ufeff" if mark else "",
        )
    )
    assert {run.observation for run in other} == {run.observation for run in plain}
    assert curve_from_runs(other).points == curve_from_runs(plain).points


@pytest.mark.parametrize(("reached", "samples"), [("0", ""), ("false", ""), ("False", "nan"), ("0.0", "")])
def test_an_empty_cell_is_a_censored_run(table, reached, samples):
    runs = read_runs(written(table, changed(rows(), 11, reached=reached, samples_to_target=samples)))
    assert runs[-1].observation.samples == 9000
    assert not runs[-1].observation.reached
    curve = curve_from_runs(runs)
    assert curve.censored == 1
    assert curve.points[-1].censored == 1
    assert curve.points[-1].samples > curve_from_runs(runs[:-1]).points[-1].samples


def test_a_batch_size_whose_runs_were_all_censored_has_no_value(table):
    curve = curve_from_runs(read_runs(written(table, rows(budget=1500.0, seeds=4, critical=80.0))))
    assert curve.points[-1].relative_samples is None
    assert curve.points[-1].censored == curve.points[-1].runs == 4
    assert curve.reference_batch_size == 32
    with pytest.raises(InputError, match="at an allowed batch size"):
        curve_from_runs(read_runs(table), log_step_times=given_times({64: 0.1}))


def test_several_workloads_are_listed_and_one_is_chosen(table):
    several = [*rows("a", target_accuracy=0.8), *rows("b", target_accuracy=0.8), *rows("b", target_accuracy="0.90")]
    runs = read_runs(written(table, several))
    with pytest.raises(InputError) as caught:
        chosen_runs(runs, {})
    assert "workload=a target_accuracy=0.8; workload=b target_accuracy=0.8; workload=b target_accuracy=0.90" in str(
        caught.value
    )
    assert "--where" in str(caught.value)
    assert {run.key["workload"] for run in chosen_runs(runs, {"workload": "a"})} == {"a"}
    assert len(chosen_runs(runs, {"workload": "b", "target_accuracy": "0.9"})) == 12
    assert len(chosen_runs(runs, {}, 0.9)) == 12
    assert curve_from_runs(chosen_runs(runs, {}, 0.9)).target == 0.9
    with pytest.raises(InputError, match="workload=a; workload=b"):
        chosen_runs(runs, {}, 0.8)
    with pytest.raises(InputError, match=r"no run with this workload: c; allowed: a, b"):
        chosen_runs(runs, {"workload": "c"})
    with pytest.raises(InputError, match=r"no such column: role"):
        chosen_runs(runs, {"role": "proxy"})
    with pytest.raises(InputError, match=r"no run with this target: 0\.7; allowed: target_accuracy 0\.8, 0\.90"):
        chosen_runs(runs, {}, 0.7)


def test_a_target_is_an_accuracy_or_else_a_quantile(table):
    both = [*rows(target_accuracy=0.71, target_quantile=0.8), *rows(target_accuracy=0.8, target_quantile=0.95)]
    runs = read_runs(written(table, both))
    assert {run.key["target_quantile"] for run in chosen_runs(runs, {}, 0.8)} == {"0.95"}
    assert {run.key["target_accuracy"] for run in chosen_runs(runs, {}, 0.95)} == {"0.8"}
    with pytest.raises(InputError, match="without targets"):
        chosen_runs(read_runs(written(table, rows())), {}, 0.8)


def test_learning_rates_are_compared_as_numbers(table):
    runs = read_runs(written(table, [*rows(learning_rate_at_32="1e-3"), *rows(learning_rate_at_32="0.002")]))
    assert len(chosen_runs(runs, {"learning_rate_at_32": "0.001"})) == 12
    with pytest.raises(InputError, match=r"learning_rate_at_32=1e-3; learning_rate_at_32=0\.002"):
        chosen_runs(runs, {})


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"reached": 1, "samples_to_target": ""}, "line 3 contradicts itself"),
        ({"reached": 0}, "line 3 contradicts itself"),
        ({"samples_to_target": 9000.5}, "at most samples_budget, 9000"),
        ({"reached": "maybe"}, "line 3, reached: maybe"),
        ({"reached": ""}, "line 3, reached"),
        ({"samples_to_target": -5}, "samples_to_target: -5"),
        ({"samples_to_target": "inf"}, "samples_to_target: inf"),
        ({"samples_to_target": "many"}, "samples_to_target: many"),
        ({"samples_budget": 0}, "samples_budget: 0"),
        ({"samples_budget": "", "reached": 0, "samples_to_target": ""}, "samples_budget of a run"),
        ({"batch_size": 0}, "batch_size: 0"),
        ({"batch_size": 8.5}, "batch_size: 8.5"),
        ({"batch_size": ""}, "batch_size"),
        ({"seed": "x"}, "seed: x"),
        ({"workload": " "}, "workload"),
        ({"seed": 0}, "line 3 is a duplicate run"),
    ],
)
def test_an_invalid_row_is_refused(table, cells, says):
    with pytest.raises(RecordError) as caught:
        read_runs(written(table, changed(rows(), 1, **cells)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b"trial_id,config/batch_size,config/seed,samples_to_target,done\na,8,0,1200,False\n",
            "line 2 contradicts itself: reached is False, samples_to_target: 1200",
        ),
        (
            b"workload,batch_size\n",
            "must have each of these columns exactly once: seed, samples_to_target; found: work",
        ),
        (b"workload,batch_size,seed,samples_to_target,reached,samples_budget\n\n \n", "no runs"),
        (b"workload,batch_size,seed,seed,samples_to_target,reached,samples_budget\n", "once: seed"),
    ],
)
def test_a_file_that_is_not_a_table_of_runs_is_refused(table, content, says):
    table.write_bytes(content)
    with pytest.raises(RecordError, match=says):
        read_runs(table)


def test_runs_of_a_tracker_are_read_by_their_columns(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text("number,params_batch_size,user_attrs_seen,state,params_lr\n0,32,5000.0,1,0.1\n1,128,,0,0.1\n")
    with pytest.raises(RecordError, match=r"once: seed, samples_to_target; found: .* may be meant: seed=number; name"):
        read_runs(path)
    columns = parse_columns("seed=number, samples_to_target=user_attrs_seen")
    with pytest.raises(RecordError, match="line 3, samples_budget of a run that did not reach"):
        read_runs(path, Layout(columns))
    path.write_text(path.read_text().replace("1,128,,0,0.1\n", "1,128,9000,1,0.2\n"))
    runs = read_runs(path, Layout(columns))
    assert [(run.key["workload"], *run.observation[:3]) for run in runs] == [
        ("export", 32, 5000, True),
        ("export", 128, 9000, True),
    ]
    path.write_text(path.read_text().replace(",1,0.1", ",CA,0.1"))
    with pytest.raises(RecordError, match="line 2, reached: CA; allowed: 1, 0, true, false, or a state such as fin"):
        read_runs(path, Layout({**columns, "reached": "State"}))


@pytest.mark.parametrize("header", ["State", "status", "reached", "How it ended"])
@pytest.mark.parametrize(
    ("state", "samples", "budget", "observed"),
    [
        *((state, "3000", "", (3000, True)) for state in ("finished", "COMPLETE", "completed")),
        *((state, "3000", "", (3000, False)) for state in ("crashed", "PRUNED", "FAIL", "failed", "killed", "running")),
        ("crashed", "3000", "9000", (3000, False)),
        ("PRUNED", "", "9000", (9000, False)),
        ("finished", "", "9000", (9000, False)),
    ],
)
def test_only_runs_that_a_tracker_calls_finished_reached_the_target(table, header, state, samples, budget, observed):
    table.write_text(
        f"Name,{header},config.batch_size,config.seed,config.state,metrics.samples_to_target,samples_budget\n"
        f"a,finished,32,0,x,1000,\nb,{state},64,0,x,{samples},{budget}\n"
    )
    layout = Layout({"reached": header} if header.startswith("How") else {})
    assert [run.observation[1:3] for run in read_runs(table, layout)] == [(1000, True), observed]


def test_too_few_runs_are_refused(table):
    one = [row for row in rows() if row["batch_size"] == 8]
    with pytest.raises(InputError, match="one batch size only"):
        curve_from_runs(read_runs(written(table, one)))
    with pytest.raises(InputError, match="all censored"):
        curve_from_runs(read_runs(written(table, rows(budget=10.0))))


def outcome(path):
    """The error that the file causes; None if it can be read."""
    try:
        curve_from_runs(chosen_runs(read_runs(path), {}))
    except InputError as error:
        return str(error)
    return None


def test_any_change_of_the_file_is_refused_in_one_line_or_read(tmp_path):
    rng = random.Random(0)
    whole = written(tmp_path / "a.csv", rows()).read_bytes()
    errors = []
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.choice(b'0123456789.,-x\n\r\0"\xff ')
        (tmp_path / "b.csv").write_bytes(data)
        errors.append(outcome(tmp_path / "b.csv"))
    refused = [text for text in errors if text is not None]
    assert 20 < len(refused) < 130
    assert not any("\n" in text for text in refused)
