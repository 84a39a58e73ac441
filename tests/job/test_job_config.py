"""The one list of a run's arguments: what a text means, what does not go together, and its four readers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import wattune
from wattune.cap import PowerCap
from wattune.cap_source import CalledCap, CapTrace
from wattune.devices.spec_options import split_options
from wattune.errors import InputError, OutputError
from wattune.goal import Goal
from wattune.job.config import NOT_SAVED, RunConfig
from wattune.job.folder import RunArguments, RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "run-arguments.md"
DEVICE = "sim:jetson-nano"
SERVED = {"server": "http://x", "model": "m", "data": "d.npz"}


def read(**given):
    return RunConfig.read(given)


# --------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("given", "cap"),
    [
        ({"cap": "10W"}, PowerCap(10.0)),
        ({"cap": "10W@module"}, PowerCap(10.0)),
        ({"cap": "12500mW@supply"}, PowerCap(12.5, "supply")),
        ({"cap": "12 W @ Supply"}, PowerCap(12.0, "supply")),
        ({"cap": "none"}, PowerCap()),
        ({"cap": None}, PowerCap()),
        ({"cap_w": 4}, PowerCap(4.0)),
        (
            {"cap": "9W", "margin": "200mW", "max_temp": "72.5 °c", "cap_window": "2s"},
            PowerCap(9.0, "module", 0.2, 72.5, 2.0),
        ),
        ({"cap": 9, "margin": 0.2, "max_temp": 72.5, "cap_window": 2}, PowerCap(9.0, "module", 0.2, 72.5, 2.0)),
        ({"cap": PowerCap(9.0, "supply", 0.2, 80.0, "peak")}, PowerCap(9.0, "supply", 0.2, 80.0, "peak")),
        ({"cap": CapTrace(PowerCap(margin_w=0.1), (0.0,), (5.0,))}, CapTrace(PowerCap(margin_w=0.1), (0.0,), (5.0,))),
    ],
)
def test_a_cap_with_its_parts(given, cap):
    assert read(**given).whole_cap == cap


def test_a_callable_is_a_cap_that_changes():
    cap = read(cap=lambda time_s: 5.0, margin=0.1).whole_cap
    assert isinstance(cap, CalledCap)
    assert (cap.watts(0.0), cap.form.margin_w) == (5.0, 0.1)


def test_of_several_caps_the_lowest_holds(tmp_path):
    caps, watched = tmp_path / "caps.csv", tmp_path / "watts"
    caps.write_text("seconds,watts\n0,5\n9,3\n")
    watched.write_text("4.5")
    assert read(cap=["5W", "none", 4]).whole_cap == PowerCap(4.0)
    assert read(cap=["none"]).whole_cap == PowerCap()
    with pytest.raises(InputError, match=r"cap_w: \[\]"):  # a list without a cap is no answer
        read(cap=[])
    assert str(read(cap=[str(caps)]).whole_cap) == str(caps)
    trace = read(cap=[str(caps), "4W"], margin="0.1W")
    assert [trace.whole_cap.watts(time_s) for time_s in (0.0, 9.0)] == [4.0, 3.0]
    assert trace.whole_cap.form.margin_w == 0.1
    config = read(device=DEVICE, cap=[str(caps), f"watch:{watched}", PowerCap(4.8, margin_w=0.2)], cap_range="4W..7W")
    both = config.whole_cap
    assert [both.watts(time_s) for time_s in (0.0, 9.0)] == [4.5, 3.0]
    assert both.form.margin_w == 0.2
    assert (min(both.shares), max(both.shares)) == (3.0, 4.8)  # 4 to 7 W are expected
    again = RunConfig.read(config.saved())
    assert (again.saved(), str(again.whole_cap)) == (config.saved(), str(both))


@pytest.mark.parametrize(
    ("given", "goal"),
    [
        ({}, Goal()),
        ({"goal": "edp"}, Goal("edp")),
        ({"max_slowdown": "5%"}, Goal("energy", 0.05)),
        ({"max_slowdown": 0.05}, Goal("energy", 0.05)),
        ({"deadline": "90min"}, Goal("energy", deadline_s=5400.0)),
        ({"energy": "50Wh"}, Goal(energy_j=180_000.0)),
        ({"price_per_kwh": "0.3"}, Goal("cost", price_per_kwh=0.3)),
        ({"goal": Goal("energy", 0.05)}, Goal("energy", 0.05)),
    ],
)
def test_a_goal_with_its_bound(given, goal):
    assert read(**given).whole_goal == goal


def test_the_options_of_a_device_become_part_of_its_name(tmp_path):
    root = tmp_path / "a&b #1"
    (root / "sys").mkdir(parents=True)
    assert read(device="jetson").device == "jetson"
    assert read(device="jetson", knobs="gpu,cpu").device == "jetson?knobs=gpu%2Ccpu"
    assert read(device="agent:/run/a.sock", knobs="gpu").device == "agent:/run/a.sock?knobs=gpu"
    device = read(device="cpu", sysfs_root=root, meter="external:plug").device
    assert split_options(device, "?", ("root", "meter"), device="cpu")[1] == {
        "root": str(root),
        "meter": "external:plug",
    }


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stratgy": "full"}, "unknown argument of a run: stratgy; did you mean strategy?"),
        ({"latency": "50ms"}, "latency is not an argument of a run any more; see docs/decisions/0012-what-goes.md"),
        ({"strategy": "half"}, "strategy: half; allowed: 'full', 'staircase' or 'guided'"),
        ({"goal": "speed"}, "goal: speed; allowed: 'time', 'energy'"),
        ({"seed": -1}, "seed: -1; allowed: 0 or more"),
        ({"seed": 2**32}, "seed: 4294967296; allowed: below"),
        ({"seeds": 0}, "seeds: 0; allowed: 1 or more"),
        ({"seeds": "1.5"}, "seeds: 1.5; allowed: a whole number"),
        ({"seeds": True}, "seeds: True; allowed: a number"),
        ({"compare": "perhaps"}, "compare: perhaps; allowed: true or false"),
        ({"price_per_kwh": "nan"}, "price_per_kwh: nan; allowed: a finite number"),
        ({"cap": "10W@wall"}, "10W@wall; allowed: watts above zero"),
        ({"cap": -1.0}, "-1.0; allowed: a positive number of watts"),
        ({"margin": "-0.1W"}, "margin: -0.1W; allowed: watts of 0 or more"),
        ({"margin": -0.1}, "margin: -0.1; allowed: 0 or more"),
        ({"max_temp": "150"}, "max_temp: 150; allowed: a temperature above zero and below 150"),
        ({"cap_window": "soon"}, "cap_window: soon; allowed: a time above zero"),
        ({"deadline": "50"}, "deadline: 50; allowed: a time above zero"),
        ({"max_slowdown": "5"}, "max_slowdown: 5; allowed: 5% or 0.05, since"),
        ({"energy": "-5J"}, "energy: -5J; allowed: an energy above zero"),
        ({"max_slowdown": "-5%"}, "max_slowdown: -5%; allowed: a share above zero"),
        ({"cap_range": "7W..4W"}, "7W..4W; allowed: two numbers of watts"),
        ({"cap": 5, "cap_range": "4W..7W"}, "a range of caps; allowed: with watch:FILE"),
        ({"cap": ["CAPS", 5], "cap_range": "4W..7W"}, "a range of caps; allowed: with watch:FILE"),
        ({"cap": ["CAPS", 5], "cap_stale": "9s"}, "cap_stale: 9 s; allowed: with watch:FILE"),
        (
            {"cap": ["5W", "4W@supply"]},
            "caps at the sensor and at the supply together; allowed: all of them at the same",
        ),
        ({"goal": "cost"}, "a price and the goal cost; allowed: both"),
        ({"goal": "time", "max_slowdown": "5%"}, "max_slowdown with the goal time"),
        ({"max_slowdown": "5%", "deadline": "1h"}, "the bounds of a goal: max_slowdown, deadline_s; allowed: one"),
        *(({key: "1"}, f"{key} without a server: 1") for key in ("model", "name", "token_file")),
        ({"data": "1"}, "data without a server or a command: 1"),
        *(
            ({key: "8"}, f"{key} without a command")
            for key in ("batch_sizes", "metric", "samples", "rate", "proxy_data")
        ),
        ({"lower_is_better": True}, "lower_is_better without a command; allowed: with a command"),
        ({"command": "c {batch_size}", "workload": "f"}, "workload with a command: f"),
        ({"command": "c {batch_size}", "algorithm": "backprop"}, "algorithm with a command: backprop"),
        ({"command": "c {batch_size}", "batch_sizes": "8;16"}, "batch_sizes: 8;16; allowed: positive numbers"),
        ({**SERVED, "workload": "f"}, "workload with a server: f"),
        ({"server": "http://x", "data": "d"}, "model is missing"),
        ({"server": "http://x", "model": "m"}, "data is missing"),
        ({"server": "http://x", "model": "m", "command": "c {batch_size}"}, "server with a command: http://x"),
        ({**SERVED, "seeds": 101}, "seeds: 101; allowed: 1 to 100 with a server"),
        ({"strategy": "full", "profile": "p.json"}, "strategy: full; allowed: none if a profile is given"),
        ({"carbon": "c", "tariff": "t", "deadline": "1h"}, "a forecast of carbon and one of the price"),
        ({"carbon": "c.csv"}, "a forecast without a deadline: c.csv"),
        ({"device": DEVICE, "meter": "m"}, f"meter with this device: {DEVICE}; allowed: auto, jetson"),
        ({"device": "nvidia:0", "sysfs_root": "ROOT"}, "sysfs_root with this device: nvidia:0"),
        ({"device": "cpu", "knobs": "gpu"}, "knobs with this device: cpu; allowed: auto, agent, jetson"),
        ({"device": "cpu", "sysfs_root": "/nowhere"}, "sysfs_root: /nowhere; allowed: a folder with sys/... in it"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_in_one_line(given, said, tmp_path):
    (tmp_path / "sys").mkdir()
    caps = tmp_path / "caps.csv"
    caps.write_text("seconds,watts\n0,5\n9,4\n")
    meant = {"CAPS": caps, "ROOT": tmp_path}
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        read(**{key: meant_of(value, meant) for key, value in given.items()})
    assert "\n" not in str(caught.value)


def meant_of(value, meant):
    if isinstance(value, list):
        return [meant_of(one, meant) for one in value]
    return meant.get(value, value) if isinstance(value, str) else value


def test_the_columns_may_be_of_one_of_two_tables(tmp_path):
    caps, grid = tmp_path / "caps.csv", tmp_path / "grid.csv"
    caps.write_text("seconds,watts\n0,5\n60,4\n")
    grid.write_text("time,gco2_per_kwh\n2024-07-01Z,1\n2024-07-02Z,2\n")
    given = {"device": DEVICE, "carbon": grid, "deadline": "2min", "columns": "time=Zeit"}
    assert "has no column 'Zeit'" in read(cap=str(caps), **given).intensity.note
    with pytest.raises(InputError, match=r"grid\.csv has no column: Zeit"):
        assert read(cap=5, **given).intensity


# --------------------------------------------------------------------------------------------------------- readers


@pytest.mark.parametrize(
    "given",
    [
        {"cap": "12.5W@supply", "margin": "0.1W", "max_temp": 80, "cap_window": "peak", "goal": "edp", "seeds": 2},
        {"cap": "none", "strategy": "full", "reference": False, "workload": Path("w.toml"), "algorithm": "backprop"},
        {**SERVED, "cap": 4.2, "name": "nano", "target": 0.9, "compare": True},
        {"cap": 5, "carbon": Path("grid.csv"), "deadline": "2min"},
    ],
    ids=str,
)
def test_what_is_saved_is_read_as_the_same(given):
    config = read(device=DEVICE, **given)
    again = RunConfig.read(config.saved())
    assert again.saved() == config.saved()
    assert (again.whole_cap, again.whole_goal) == (config.whole_cap, config.whole_goal)
    for key in RunConfig.model_fields.keys() - {*NOT_SAVED, "goal"}:
        assert str(getattr(again, key)) == str(getattr(config, key))


def test_a_folder_remembers_what_is_not_given_again(tmp_path):
    before = read(device=DEVICE, cap="12W@supply", margin=0.2, max_temp=80, seed=3)
    RunFolder(tmp_path).claim(RunArguments(arguments=before.saved(), highest_w=12.0), resume=False)
    again = RunConfig.of_run({"output": tmp_path, "resume": True, "seed": 4, "processes": 1})
    assert (again.device, again.whole_cap, again.seed, again.processes) == (DEVICE, before.whole_cap, 4, 1)


def test_nothing_is_resumed_where_nothing_began(tmp_path):
    with pytest.raises(OutputError, match="resume needs output"):
        RunConfig.of_run({"resume": True})
    with pytest.raises(OutputError, match="no run to resume"):
        RunConfig.of_run({"output": tmp_path / "none", "resume": True})
    for given, missing in (({"cap": 5}, "device"), ({"device": DEVICE}, "cap")):
        with pytest.raises(InputError, match=f"{missing} is missing"):
            RunConfig.of_run(given)


def test_a_workload_file_may_have_the_arguments_of_a_run(tmp_path):
    small = (Path(__file__).parents[1] / "cli" / "small.toml").read_text()
    table = f'\n[run]\ndevice = "{DEVICE}"\ncap = "5W"\nseeds = 2\nmax-slowdown = "5%"\n'
    both, alone = tmp_path / "both.toml", tmp_path / "alone.toml"
    both.write_text(small + table)
    alone.write_text(table + 'workload = "other.toml"\n')
    config = RunConfig.of_run({"workload": both, "seeds": 3})
    assert (config.workload, config.device, config.seeds, config.max_slowdown) == (both, DEVICE, 3, 0.05)
    assert wattune.load_workload(both).name == "small"
    assert RunConfig.of_run({"workload": alone}).workload == "other.toml"
    both.write_text(small + "\n[run]\nsede = 3\n")
    with pytest.raises(InputError, match="did you mean seed"):
        RunConfig.of_run({"workload": both})


def test_the_command_line_takes_the_rest_by_set(wattune_command, tmp_path):
    shown = wattune_command("run", "--help")[1]
    options = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", shown, re.MULTILINE))
    assert len(options) <= 24, "16, and 8 of a program"
    advanced = set(re.findall(r"\w+", shown.partition("run-arguments.md:")[2].partition("--json")[0]))
    named = {option.removeprefix("--").replace("-", "_") for option in options} | advanced | {"workload"}
    assert named >= RunConfig.model_fields.keys()
    for setting, said in (
        ("sede=1", "did you mean"),
        ("seeds", "KEY=VALUE"),
        ("seeds=x", "seeds: x; allowed: a whole number"),
    ):
        code, out, err = wattune_command("run", "--device", DEVICE, "--cap", "5W", "--set", setting)
        assert (code, out, len(err)) == (2, "", 1)
        assert said in err[0]
    twice = ("--set", "seeds=1", "--set", "seeds=2")
    assert "twice: seeds" in wattune_command("run", "--device", DEVICE, "--cap", "5W", *twice)[2][0]


def test_the_page_has_every_argument():
    rows = [f"| `{key}` | {field.description} |" for key, field in RunConfig.model_fields.items()]
    missing = [row for row in rows if row not in PAGE.read_text()]
    assert not missing, "\n".join(missing)


def test_reading_arguments_loads_nothing_heavy():
    code = (
        "import sys; from wattune.job.config import RunConfig; RunConfig.read({'cap': '5W', 'seeds': '2'}); "
        "heavy = {'torch', 'numpy', 'wattune.records', 'wattune.devices', 'rich'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture
def wattune_command(capsys):
    from wattune.cli import main

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err.splitlines()

    return call
