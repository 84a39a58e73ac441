"""Who loads what, seen in the modules of a fresh process; and every name that is opened by string can be opened."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import typer

cli = importlib.import_module("wattune.cli.main")  # the name in the package is the function

HEAVY = ("torch", "sklearn", "scipy", "pydantic", "rich")


def loaded(code: str, cwd=None) -> set[str]:
    """The top-level modules that a fresh process has after ``code``."""
    tell = "\nimport sys\nprint('\\n'.join({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True, cwd=cwd, check=True)
    return set(done.stderr.split())


def test_importing_wattune_loads_next_to_nothing():
    assert loaded("import wattune").isdisjoint(HEAVY)


@pytest.mark.slow
def test_no_help_loads_a_record_or_numbers():
    code = """
import sys
from wattune.cli import main
from wattune.cli.main import COMMANDS

for command in [(), *((name,) for name in COMMANDS)]:
    assert main([*command, "--help"]) == 0
    heavy = {"wattune.records", "numpy", "torch", "httpx", "scipy", "sklearn", "rich", "sqlalchemy"} & {*sys.modules}
    assert not heavy, (command, heavy)
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_help_of_all_commands_imports_no_command():
    code = "import sys; from wattune.cli import main; main(['--help']); assert 'wattune.cli.run' not in sys.modules"
    assert loaded(code).isdisjoint(HEAVY)


def test_help_has_the_first_line_of_each_command():
    commands = typer.main.get_command(cli._app(cli.COMMANDS)).commands
    lines = {name: " ".join(command.help.split("\n\n")[0].split()) for name, command in commands.items()}
    assert list(lines.items()) == list(cli.COMMANDS.items())


@pytest.mark.slow
def test_devices_and_plans_need_no_torch(tmp_path):
    assert loaded("from wattune.cli import main; assert main(['devices']) == 0").isdisjoint({"torch"})
    code = "from wattune.cli import main; assert main(['plan', 'a', 'b', '--cap', '4']) == 2"
    assert loaded(code, cwd=tmp_path).isdisjoint({"torch", "sklearn"})
    code = """
import json, sys
from pathlib import Path
from wattune.cli import main
cells = [{"batch_size": 8, "clock_mhz": 100, "step_s": 1, "power_mean_w": 2, "power_peak_w": 3, "steps": 5}]
Path("p.json").write_text(json.dumps({"record": "profile", "device": "d", "workload": "w", "cells": cells}))
points = [{"batch_size": 8, "relative_samples": 1}]
efficiency = {"record": "efficiency", "workload": "w", "reference_batch_size": 8, "points": points}
Path("e.json").write_text(json.dumps(efficiency))
sys.stderr = open("/dev/null", "w")
assert main(["plan", "p.json", "e.json", "--cap", "4"]) == 0
sys.stderr = sys.__stderr__
"""
    assert loaded(code, cwd=tmp_path).isdisjoint({"torch", "sklearn"})


@pytest.mark.slow
def test_the_modules_of_the_fast_tests_load_no_framework_beside_torch():
    code = (
        "import pytest; assert not pytest.main(['--collect-only', '-qq', '-p', 'no:cacheprovider', '-m', 'not slow'])"
    )
    assert loaded(code, cwd=Path(__file__).parent.parent).isdisjoint({"lightning", "transformers", "ray"})


@pytest.mark.slow
def test_packages_that_need_only_numbers_load_no_torch():
    rooms = ("records", "errors", "planning", "reporting", "devices", "remote")
    assert "torch" not in loaded("\n".join(f"import wattune.{room}" for room in rooms))


# -------------------------------------------------------------------------------------- names that are opened by string


def registered() -> list[str]:
    from wattune.algorithms import ALGORITHMS
    from wattune.devices import OPENERS

    return sorted({*ALGORITHMS.values(), *OPENERS.values()})


@pytest.mark.parametrize("place", registered())
def test_every_registered_name_exists(place):
    module, _, name = place.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_known_device_opens():
    from wattune.devices import known_devices, open_device

    known = known_devices()
    assert {"sim:jetson-nano", "sim:jetson-tx2-nx"} <= {device.spec for device in known}
    for entry in known:
        if entry.problems:
            continue  # a machine's own counters, say, that may not be read without root
        device = open_device(entry.spec)
        assert device.knobs == entry.knobs
        device.close()


@pytest.mark.slow
def test_every_algorithm_opens():
    from wattune.algorithms import ALGORITHMS, open_algorithm
    from wattune.workloads import example_workload

    for name in ALGORITHMS:
        # The example has batch normalisation, behind which activities cannot be perturbed.
        text = f"{name}:perturb=weights" if name == "async-fgd" else name
        algorithm = open_algorithm(text, example_workload().without_weights(), 8)
        assert algorithm.name.partition(":")[0] == name
        assert algorithm.work().samples == 8


def test_every_model_is_built_by_its_name(tmp_path):
    from wattune.workloads import load_workload
    from wattune.workloads.models import MODELS

    for name in MODELS:
        text = name == "character-transformer"
        (tmp_path / "w.toml").write_text(
            f'name = "w"\nmodel = "{name}"\nbudget_samples = 1000\n'
            + ('task = "language"\ninput_shape = [32]\n' if text else "input_shape = [3, 32, 32]\n")
            + ('data = { source = "text", train = "none.txt" }\n' if text else 'data = { source = "digits" }\n')
        )
        workload = load_workload(tmp_path / "w.toml")
        assert sum(p.numel() for p in workload.model(0).parameters()) > 1000
