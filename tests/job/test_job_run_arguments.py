"""The arguments of earlier runs: `data/runs` has the run.json of one run of each kind, as it was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wattune.cap import PEAK, PowerCap
from wattune.cap_source import CapSource, WatchedCap
from wattune.errors import InputError
from wattune.goal import TIME, Goal
from wattune.job.config import RunConfig
from wattune.job.folder import RunArguments

RUNS = Path(__file__).parent / "data" / "runs"
DIGITS = "72167a88dc668f6f"
"""Fingerprint of tests/cli/small.toml."""

MEANT = {
    "one-knob": {"cap": PowerCap(4.5), "seeds": 2, "seed": 5, "reference": False},
    "three-knobs": {"device": "sim:jetson-tx2", "cap": PowerCap(9.0), "goal": Goal("energy", 0.05), "seeds": None},
    "no-cap": {"cap": PowerCap(), "goal": Goal("edp"), "strategy": "full", "reference": True},
    "replay": {"device": "replay:T.csv?noise=0.01", "cap": PowerCap(12.0)},
    "jetson": {"device": "jetson?root=/board&knobs=gpu", "cap": PowerCap(12.0, max_temp_c=80.0)},
    "group": {"device": "sim:jetson-nano, sim:jetson-nano", "cap": PowerCap(9.0)},
    "supply": {"cap": PowerCap(6.25, "supply", margin_w=0.1)},
    "margin-window": {
        "cap": PowerCap(5.0, margin_w=0.2, window=2.0),
        "goal": Goal("time", energy_j=180_000.0),
        "strategy": "staircase",
    },
    "caps-csv": {"cap": PowerCap(5.0), "caps": "caps.csv", "strategy": "full"},
    "watched": {
        "cap": PowerCap(7.0, margin_w=0.1),
        "caps": "watch:cap.txt",
        "cap_range": "4.0W..7.0W",
        "strategy": "full",
    },
    "carbon": {"cap": PowerCap(5.0), "goal": Goal("energy", deadline_s=120.0), "carbon": "grid.csv"},
    "tariff": {"cap": PowerCap(5.0), "goal": Goal("energy", deadline_s=120.0), "tariff": "prices.csv"},
    "cost": {
        "cap": PowerCap(5.0, window=PEAK),
        "goal": Goal("cost", price_per_kwh=0.3, price_per_hour=0.02),
        "compare": True,
    },
    "async-fgd": {"cap": PowerCap(4.5), "algorithm": "async-fgd:modules=2"},
    "resumed": {"cap": PowerCap(4.2), "seeds": 2, "compare": True},
    "server": {
        "cap": PowerCap(4.2),
        "workload": None,
        "seeds": None,
        "fingerprint": "54866ef1318a6bb3",
        "server": "http://127.0.0.1:8484",
        "model": "small-digits",
        "data": "my.npz",
        "target": 0.9,
        "device_name": "nano",
    },
}
"""What each run was asked for, where it is not as in ``USUAL``."""

USUAL = {
    "device": "sim:jetson-nano",
    "workload": "small.toml",
    "caps": None,
    "cap_range": None,
    "goal": TIME,
    "carbon": None,
    "tariff": None,
    "seeds": 1,
    "seed": 0,
    "strategy": None,
    "reference": None,
    "compare": False,
    "algorithm": "backprop",
    "fingerprint": DIGITS,
    "server": None,
    "model": None,
    "data": None,
    "target": None,
    "device_name": None,
}


def test_each_file_has_its_meaning_here():
    assert {path.stem for path in RUNS.iterdir()} == {*MEANT, "battery", "beside"}


@pytest.mark.parametrize("name", MEANT)
def test_a_run_of_before_means_the_same(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "caps.csv").write_text("seconds,watts\n0,5\n0.5,4.2\n1,\n3,5\n")
    (tmp_path / "cap.txt").write_text("5\n")
    record = RunArguments.load(RUNS / f"{name}.json")
    config = RunConfig.read(record.arguments)
    cap = config.whole_cap
    is_moving = isinstance(cap, CapSource)
    means = {
        "cap": replace(cap.form, limit_w=record.highest_w) if is_moving else cap,
        "caps": str(cap) if is_moving else None,
        "cap_range": "{!r}W..{!r}W".format(*cap.range_w) if isinstance(cap, WatchedCap) and cap.range_w else None,
        "goal": config.whole_goal,
        "device_name": config.name,
        "fingerprint": record.fingerprint,
    }
    for key in USUAL.keys() - means.keys():
        value = getattr(config, key)
        means[key] = str(value) if isinstance(value, Path) else value
    assert means == USUAL | MEANT[name]
    assert RunConfig.read(config.saved()).saved() == config.saved()


@pytest.mark.parametrize(("name", "removed"), [("battery", "battery"), ("beside", "beside")])
def test_a_run_with_what_is_no_more_is_refused_by_name(name, removed, tmp_path):
    (tmp_path / "run.json").write_text((RUNS / f"{name}.json").read_text())
    with pytest.raises(InputError, match=f"^{removed} is not an argument of a run any more; see docs/decisions/0012"):
        RunConfig.of_run({"output": tmp_path, "resume": True})
