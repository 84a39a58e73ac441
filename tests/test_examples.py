"""The examples run for a few steps, each as its README says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*command, cwd):
    """Run a command with the programs of this environment on the path; gives what it printed."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def session(folder):
    """The record of a session."""
    return json.loads((folder / "session.json").read_text())


def test_a_vision_transformer_is_fine_tuned(tmp_path):
    script = EXAMPLES / "vision-transformer/finetune.py"
    sizes = ["--samples", "32", "--batch-size", "8", "--epochs", "1"]
    printed = run(sys.executable, script, "--device", "sim:jetson-orin-nano", "--cap", "8W", *sizes, cwd=tmp_path)
    assert "epoch 1: loss" in printed
    assert session(tmp_path)["samples"] == 32


def test_a_language_model_gets_its_adapters(tmp_path):
    script = EXAMPLES / "language-model/finetune_lora.py"
    sizes = ["--steps", "3", "--layers", "2"]
    printed = run(sys.executable, script, "--device", "sim:jetson-orin-nano", "--cap", "9W", *sizes, cwd=tmp_path)
    assert "tokens/s" in printed
    assert session(tmp_path)["samples"] == 3 * 8
    assert (tmp_path / "adapters/adapter_model.safetensors").exists()


@pytest.mark.parametrize(("words", "said"), [(["nothing"], "'nothing' (choose from"), (["skorch", "lines"], "plain")])
def test_a_trainer_s_program_refuses_what_it_has_not(words, said):
    done = subprocess.run([sys.executable, EXAMPLES / "trainers/train.py", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr.splitlines()[-1]


def test_a_detector_learns_to_find_objects(tmp_path):
    script = EXAMPLES / "object-detection/detect.py"
    sizes = ["--samples", "500", "--epochs", "8"]
    printed = run(sys.executable, script, "--device", "sim:jetson-nano", "--cap", "4.2W", *sizes, cwd=tmp_path)
    found = [int(line.split()[2].rstrip("%")) for line in printed.splitlines() if line.startswith("epoch ")]
    assert len(found) == 8
    assert max(found) > 10
    assert session(tmp_path)["samples"] == 8 * 500


def test_a_loss_without_a_gradient_is_learned(tmp_path):
    printed = run(sys.executable, EXAMPLES / "black-box-loss/throw.py", "--steps", "60", cwd=tmp_path)
    misses = [float(line.split()[-4]) for line in printed.splitlines()]
    assert misses[-1] < 0.5 * misses[0]


def test_what_lies_between_engines_is_trained(tmp_path):
    printed = run(sys.executable, EXAMPLES / "engines/engines.py", "--steps", "20", cwd=tmp_path)
    assert [line.split(" (")[0] for line in printed.splitlines()] == ["head", "last two parts", "AsyncFGD", "twin"]


@pytest.mark.parametrize("option", ["--directions", "--steps"])
def test_an_example_refuses_a_count_of_zero_in_one_line(option):
    script = EXAMPLES / "black-box-loss/throw.py"
    done = subprocess.run([sys.executable, script, option, "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"error: argument {option}: 0; allowed: 1 or more\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_notebook_runs_and_is_stored_without_outputs(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "notebook/capped.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert {cell.execution_count for cell in code} == {None}
    for cell in code:
        cell.source = cell.source.replace("EPOCHS = 30", "EPOCHS = 2")
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "sim:jetson-nano under a cap of 4 W" in printed
    assert "W at most (simulated)" in printed
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)


def test_a_board_trains_on_solar_power(tmp_path):
    printed = run(sys.executable, EXAMPLES / "solar/solar.py", cwd=tmp_path)
    record = session(tmp_path)
    assert printed.startswith(f"{40 * 2048} samples in ")
    assert record["above_cap_s"] < 3  # a lowering that nobody announced costs a window at most
    pauses = [one["pause"] for one in record["cap_intervals"]]
    last_night = len(pauses) - 1 - pauses[::-1].index("the cap is 0 W")
    assert None in pauses[:last_night]
    assert None in pauses[last_night:]


def test_a_board_rests_until_its_battery_has_recovered(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "solar")
    from solar import SolarCap

    panel, gauge = tmp_path / "power_now", tmp_path / "capacity"
    panel.write_text("6500000\n")
    cap, watts = SolarCap(panel, gauge), []
    for percent in (40, 29, 31, 49, 50, 31, 29):
        gauge.write_text(f"{percent}\n")
        watts.append(cap(0.0))
    assert watts == [6, 0, 0, 0, 6, 6, 0]
    gauge.write_text("80\n")
    panel.write_text("3900000\n")
    assert cap(0.0) == 0
