"""``--device replay:TABLE.csv`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli_records import SMALL

from wattune.records import ProfileTable

TABLE = """\
batch_size,clock_mhz,step_s,power_w
16,300,0.064,6.1
16,600,0.035,8.4
16,900,0.026,12.9
32,300,0.118,6.4
32,600,0.062,9.2
32,900,0.044,14.3
64,300,0.225,6.6
64,600,0.117,9.8
64,900,0.081,15.4
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "T.csv").write_text(TABLE)
    return "replay:T.csv"


def test_the_pick_and_its_cost(wattune, table):
    code, out, _ = wattune("profile", "--device", table, "--cap", "12W", "--strategy", "guided", "--json")
    assert code == 0
    record = json.loads(out)
    assert (record["device"], record["provenance"]["kind"]) == ("T", "replayed")
    pick = record["guided"]["pick"]
    assert pick["clock_mhz"] == 600
    assert f"{pick['batch_size']},600,{pick['step_s']:.3f}," in TABLE
    assert pick["power_mean_w"] <= pick["power_peak_w"] <= 12
    assert 0 < record["cost"]["probes"] <= 9
    assert 0 < record["cost"]["time_s"] < 60
    again = json.loads(wattune("profile", "--device", table, "--cap", "12W", "--strategy", "guided", "--json")[1])
    assert again["cells"] == record["cells"]


def test_the_same_as_text(wattune, table):
    code, out, _ = wattune("profile", "--device", f"{table}?noise=0.01", "--cap", "12W", "--strategy", "guided")
    assert code == 0
    assert "recorded workload on T" in out
    assert "at 600 MHz" in out
    assert "a step at" in out
    assert "Profiling took" in out
    arguments = ("profile", "--device", f"{table}?noise=0.01", "--cap", "12W", "-o", "profile.json", "--resume")
    assert wattune(*arguments)[0] == 0
    assert wattune("profile", "--device", table, "-o", "profile.json", "--resume")[0] == 2  # with other noise
    assert wattune("plan", "profile.json", "--cap", "12W", "--batch-size", "32")[0] == 0


def test_training_needs_a_profile_of_the_workload(wattune, refused, table):
    assert wattune("profile", "--device", table, "-o", "profile.json")[0] == 0
    assert wattune("plan", "profile.json", "--cap", "12W", "--batch-size", "32", "-o", "plan.json")[0] == 0
    assert "model" in refused("train", "plan.json", SMALL, "--device", table)


@pytest.mark.parametrize(
    ("device", "arguments", "said"),
    [
        ("replay:T.csv?loud=1", (), "not an option"),
        ("replay:T.csv?noise=many", (), "noise"),
        ("replay:none.csv", (), "none.csv"),
        ("replay:T.csv", ("--reference",), "--reference"),
        ("replay:T.csv", (SMALL, "--algorithm", "forward-gradient"), "algorithm"),
        ("replay:T.csv", ("--command", "echo {batch_size} {steps}", "--batch-sizes", "8"), "cannot run programs"),
    ],
)
def test_bad_input_is_one_line(refused, table, device, arguments, said):
    assert said in refused("profile", *arguments, "--device", device)
    assert not Path("profile.json").exists()


def test_a_record_of_before_has_no_figures_at_its_pick(wattune, table, tmp_path):
    assert wattune("profile", "--device", table, "--cap", "12W", "--strategy", "guided", "-o", "p.json")[0] == 0
    record = json.loads(Path("p.json").read_text())
    for name in ("step_s", "power_mean_w", "power_peak_w"):
        del record["guided"]["pick"][name]
    assert ProfileTable.parse(record).dump() == record


@pytest.mark.parametrize("command", ["profile", "run"])
@pytest.mark.parametrize("device", ["replay:T.csv", "sim:jetson-nano"])
def test_watts_that_are_milliwatts_are_refused_before_anything_is_done(refused, table, tmp_path, command, device):
    assert "times what this board draws at most; 12000mW?" in refused(command, "--device", device, "--cap", "12000W")
    assert {path.name for path in tmp_path.iterdir()} == {"T.csv"}
