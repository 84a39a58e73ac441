"""``wattune estimate`` from recorded runs and from the proxy, with and without step times."""

from __future__ import annotations

import json

import pytest
from tests.support.cli_records import PROFILE, SMALL, written

from wattune.records import SampleEfficiency

HEAD = "workload,batch_size,seed,samples_to_target,reached,samples_budget"


def runs(workload="flowers", sizes=(8, 32, 128), extra=""):
    return [
        f"{workload},{size},{seed},{1000 * (1 + size / 100) * (1 + 0.02 * (-1) ** seed):.1f},1,9000{extra}"
        for size in sizes
        for seed in range(3)
    ]


@pytest.fixture
def table(tmp_path):
    return written(tmp_path, "runs.csv", "\n".join([HEAD, *runs()]) + "\n")


def test_json_prints_the_record_and_nothing_else(wattune, table, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    arguments = ("estimate", "--from-runs", table, "--step-times", "8=0.1,32=0.15,128=0.5", "--json")
    code, out, err = wattune(*arguments)
    assert (code, err) == (0, [])
    said = json.loads(out)
    record = SampleEfficiency.parse(said)
    assert record.reference_batch_size == 128
    assert (said["runs_used"], said["censored"], said["misfit"]) == (9, 0, False)
    assert set(said["p_best"]) == {"8", "32", "128"}
    assert str(said["best"]) == max(said["p_best"], key=said["p_best"].get) == "32"
    assert 0 <= said["expected_regret"] < 0.1
    assert not list((tmp_path / "here").iterdir())
    again = json.loads(wattune(*arguments)[1])
    assert {**again, "provenance": None} == {**said, "provenance": None}


def test_without_step_times_nothing_is_best(wattune, table):
    said = json.loads(wattune("estimate", "--from-runs", table, "--json")[1])
    assert said["p_best"] is said["best"] is said["expected_regret"] is None


def test_the_table_says_runs_and_chances(wattune, refused, table, tmp_path):
    path = tmp_path / "e.json"
    code, out, _ = wattune("estimate", "--from-runs", table, "--step-times", "8=0.1,32=0.15,128=0.5", "-o", path)
    assert code == 0
    assert "best on the device: batch size" in out
    assert "runs; " in out
    assert SampleEfficiency.load(path).runs_used == 9
    refused("estimate", "--from-runs", table, "-o", path)


def test_a_model_of_another_size_is_warned_of(wattune, table, tmp_path):
    like, larger, smaller = (
        wattune("estimate", "--from-runs", table, "--model-ratio", ratio, "-o", tmp_path / f"{ratio}.json")[1]
        for ratio in (2, 8, 0.125)
    )
    assert "times the parameters" not in like
    assert "has 8 times the parameters of the model of the runs: it probably likes larger batch sizes" in larger
    assert "has 0.125 times the parameters of the model of the runs: it probably likes smaller batch sizes" in smaller


def test_step_times_from_a_profile_under_a_cap(wattune, refused, table, tmp_path):
    profile = written(tmp_path, "profile.json", PROFILE)
    free, capped = (
        json.loads(wattune("estimate", "--from-runs", table, "--profile", profile, *cap, "--json")[1])
        for cap in ((), ("--cap", "2.9W"))
    )
    assert free["p_best"].keys() == {"8", "32", "128"}
    # At 128 the least power of a setting is 3.78 W.
    assert capped["p_best"].keys() == {"8", "32"}
    assert "stays under the cap: 1 W" in refused("estimate", "--from-runs", table, "--profile", profile, "--cap", "1W")


def test_figures_at_the_edge_are_figures(wattune, tmp_path):
    lines = [HEAD, "a,1,0,1e-8,1,", "a,9007199254740991,0,1e17,1,1e17", "a,64,0,,0,1e17"]
    table = written(tmp_path, "runs.csv", "\n".join(lines))
    code, out, err = wattune("estimate", "--from-runs", table, "--step-times", "1=1e-8,64=1e8", "--json")
    assert (code, err) == (0, [])
    assert json.loads(out)["best"] == 1


def test_one_of_several_workloads(wattune, refused, tmp_path):
    lines = [f"{HEAD},target_accuracy", *runs("a", extra=",0.8"), *runs("b", extra=",0.8"), *runs("b", extra=",0.9")]
    table = written(tmp_path, "runs.csv", "\n".join(lines))
    assert "workload=b target_accuracy=0.9" in refused("estimate", "--from-runs", table)
    said = json.loads(wattune("estimate", "--from-runs", table, "--where", "workload=b", "--target", 0.8, "--json")[1])
    assert (said["workload"], said["target"], said["runs_used"]) == ("b", 0.8, 9)
    assert wattune("estimate", "--from-runs", table, "--target", 0.9, "--json")[0] == 0


def test_runs_without_a_target_are_chosen_as_the_error_proposes(wattune, tmp_path):
    lines = [f"{HEAD},target_accuracy", *runs("a", extra=","), *runs("a", extra=",0.9")]
    table = written(tmp_path, "runs.csv", "\n".join(lines))
    assert "target_accuracy=; target_accuracy=0.9" in wattune("estimate", "--from-runs", table)[2][0]
    said = json.loads(wattune("estimate", "--from-runs", table, "--where", "target_accuracy=", "--json")[1])
    assert (said["target"], said["runs_used"]) == (None, 9)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from-runs", "none.csv"], "cannot read none.csv"),
        (["--from-runs", "TABLE", "--seeds", "3"], "--seeds cannot be combined with --from-runs"),
        (["--from-runs", "TABLE", "--strategy", "full"], "--strategy cannot be combined with --from-runs"),
        (["--from-runs", "TABLE", "--resume", "-o", "e.json"], "--resume cannot be combined with --from-runs"),
        (["--from-runs", "TABLE", "some.toml"], "WORKLOAD cannot be combined with --from-runs"),
        (["--from-runs", "TABLE", "--runs", "3"], "--runs cannot be combined with --from-runs"),
        (["--from-runs", "TABLE", "--model-ratio", "0"], "--model-ratio: 0"),
        (["--runs", "13"], "runs: 13; allowed: 2 to 12"),
        (["--runs", "2", "--seeds", "2"], "runs: 2; allowed: none with the full strategy"),
        (["--from-runs", "TABLE", "--where", "workload"], "--where"),
        (["--from-runs", "TABLE", "--where", "color=red"], "no such column: color"),
        (["--from-runs", "TABLE", "--target", "0.8"], "without targets"),
        (["--from-runs", "TABLE", "--target", "nan"], "target: nan"),
        (["--from-runs", "TABLE", "--step-times", "8"], "--step-times: 8"),
        (["--from-runs", "TABLE", "--step-times", "8="], "--step-times: 8="),
        (["--from-runs", "TABLE", "--step-times", "8=-1"], "--step-times: 8=-1"),
        (["--from-runs", "TABLE", "--step-times", "8=nan"], "--step-times"),
        (["--from-runs", "TABLE", "--step-times", "8=0.1,8=0.2"], "twice: 8"),
        (["--from-runs", "TABLE", "--step-times", "16=0.1"], "without runs: 16"),
        (
            ["--from-runs", "TABLE", "--step-times", "8=0.1", "--profile", "p.json"],
            "--step-times and --profile cannot be combined",
        ),
        (["--from-runs", "TABLE", "--profile", "p.json"], "p.json"),
        (["--from-runs", "TABLE", "--cap", "4W"], "--cap needs --profile"),
        (["--target", "0.8"], "--target needs --from-runs"),
        (["--where", "workload=a"], "--where needs --from-runs"),
        (["--model-ratio", "6"], "--model-ratio needs --from-runs"),
        (["--strategy", "some"], "unknown strategy"),
        (["--strategy", "pooled", "--seeds", "2"], "seeds"),
        (["--strategy", "full", "--step-times", "8=0.1"], "step times"),
    ],
)
def test_invalid_options_are_refused_in_one_line(wattune, table, tmp_path, monkeypatch, arguments, says):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = wattune("estimate", *(table if word == "TABLE" else word for word in arguments))
    assert (code, out) == (2, "")
    assert len(err) == 1
    assert says in err[0]
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.slow
def test_the_proxy_is_trained_a_few_times(wattune, tmp_path):
    path = tmp_path / "e.json"
    code, out, _ = wattune("estimate", SMALL, "--processes", 1, "-o", path)
    record = SampleEfficiency.load(path)
    assert code == 0
    assert record.strategy == "pooled"
    assert len(list((tmp_path / "e-curves").iterdir())) == record.runs_used >= 2
    assert record.stopped_because in out
    assert wattune("estimate", SMALL, "-o", path, "--resume")[0] == 0


@pytest.mark.slow
def test_the_own_batch_size_of_the_workload_is_one_of_the_runs(wattune, tmp_path):
    workload = tmp_path / "own.toml"
    workload.write_text(
        SMALL.read_text().replace("batch_sizes = [8, 32]", "batch_sizes = [8, 16, 32]\nbatch_size = 16")
    )
    path = tmp_path / "e.json"
    code, out, err = wattune(
        "estimate", workload, "--step-times", "8=0.01,16=0.011,32=0.02", "--processes", "1", "-o", path
    )
    assert code == 0
    assert "about 6 proxy runs (12 at most)" in err[0]
    record = SampleEfficiency.load(path)
    assert record.own_batch_size == 16
    assert any(run.batch_size == 16 for run in record.observations)
    assert len(record.observations) == record.runs_used
    assert record.best == 16 or record.p_faster >= 0.9
    assert any(words in out for words in ("is yours", "yours is kept", "faster than yours"))


def test_without_an_own_batch_size_there_is_nothing_to_compare_with(wattune, table, tmp_path):
    _, out, _ = wattune(
        "estimate", "--from-runs", table, "--step-times", "8=0.1,32=0.15,128=0.5", "-o", tmp_path / "e.json"
    )
    assert "no batch size of yours to compare with" in out
