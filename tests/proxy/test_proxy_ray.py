"""The same estimate over a Ray cluster, in processes of its own: Ray leaves sockets and threads behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattune.cli import main
from wattune.errors import InputError
from wattune.proxy import estimate, ray_cluster
from wattune.workloads import example_workload

WORKLOAD = """
name = "digits"
input_shape = [1, 8, 8]
budget_samples = 16384
evaluate_every = 128
batch_sizes = [8, 16, 32, 64]
target = 0.5
[model]
name = "small-cnn"
options = { classes = 5, channels = 1, width = 16 }
[data]
source = "digits"
size = 8
classes = [0, 1, 2, 3, 4]
[optimizer]
name = "adam"
learning_rate = 1.5e-4
[proxy]
target = 0.95
data = { source = "digits", size = 8, classes = [5, 6, 7, 8, 9] }
"""
"""Runs of one to three seconds."""


def written(folder):
    path = folder / "workload.toml"
    path.write_text(WORKLOAD)
    return path


def command(path, record, *options):
    return [sys.executable, "-m", "wattune", "estimate", str(path), "-o", str(record), *options]


def undated(record):
    return {**record, "provenance": {**record["provenance"], "created_at": None}}


def training(pid):
    """Processes below this one that are at a run for Ray."""
    below, found = {pid}, []
    for entry in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            title = Path(f"/proc/{entry}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat[1]) in below:
            below.add(entry)
            found += [entry] if title.startswith(b"ray::_train") else []
    return found


@pytest.mark.slow
def test_a_cluster_gives_the_same_record_even_if_a_process_is_killed(tmp_path):
    path, record, said = written(tmp_path), tmp_path / "ray.json", tmp_path / "said"
    with said.open("w") as output:
        process = subprocess.Popen(command(path, record, "--executor", "ray"), stdout=output, stderr=output)
    try:
        until_s = time.monotonic() + 300
        # In the middle: some runs are done, others are not.
        while len(list(tmp_path.glob("ray-curves/*.json"))) < 2 or not (now := training(process.pid)):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < until_s
            time.sleep(0.05)
        os.kill(now[0], signal.SIGKILL)
        assert process.wait(240) == 0, said.read_text()
    finally:
        process.kill()
        process.wait()
    alone = tmp_path / "alone.json"
    done = subprocess.run(command(path, alone, "--processes", "2"), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    by_cluster, by_processes = (undated(json.loads(file.read_text())) for file in (record, alone))
    assert by_cluster == by_processes
    assert by_cluster["strategy"] == "pooled"


PROGRAM = """
import os, sys, time
with open(f"/proc/{os.getppid()}/cmdline") as parent, open("parents", "a") as parents:
    print(parent.read()[:11], file=parents)
for samples in range(0, 48000, 800):
    print(f"acc {samples / (8000 + 125 * int(sys.argv[1]))} of {samples}", flush=True)
    time.sleep(0.005)
"""


@pytest.mark.slow
def test_every_run_of_a_program_is_made_on_the_cluster(tmp_path):
    """Those of a later choice too."""
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ["--command", f"{sys.executable} -S train.py {{batch_size}}", "--batch-sizes", "8,16,32,64"]
    words += ["--metric", "acc ([0-9.]+)", "--samples", "of ([0-9]+)", "--target", "0.9", "--executor", "ray"]
    done = subprocess.run(
        [sys.executable, "-m", "wattune", "estimate", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    parents = (tmp_path / "parents").read_text().splitlines()
    assert parents == len(list(tmp_path.glob("efficiency-curves/*.json"))) * ["ray::_train"]


@pytest.mark.parametrize("executor", ["dask", "ray:", "rays", ""])
def test_an_unknown_executor_is_refused(executor):
    with pytest.raises(InputError, match=r"executor.*allowed: cuda, ray or ray:ADDRESS"):
        estimate(example_workload(), executor=executor)


def test_a_missing_ray_is_reported_in_one_line(monkeypatch):
    monkeypatch.setattr("wattune.proxy.executor.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Ray is not installed: ray; pip install 'wattune\[cluster\]'"):
        estimate(example_workload(), executor="ray")


@pytest.mark.slow
def test_an_address_without_a_cluster_is_refused_at_once(tmp_path):
    options = ["--executor", "ray:127.0.0.1:9"]
    done = subprocess.run(
        command(written(tmp_path), tmp_path / "e.json", *options), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    # That is the answer to one attempt of our own; Ray itself would try for minutes, and say something else.
    assert "wattune: no Ray cluster at 127.0.0.1:9: [Errno 111] Connection refused" in done.stderr


class Connected:
    """Stands for Ray in a process that has connected already: what else is asked of it fails."""

    def is_initialized(self):
        return True


def test_an_existing_connection_is_used_and_left_open(monkeypatch):
    ours = Connected()
    monkeypatch.setattr("wattune.proxy.executor.find_spec", lambda name: ours)
    monkeypatch.setitem(sys.modules, "ray", ours)
    with ray_cluster.connected("ray:127.0.0.1:9") as ray:
        assert ray is ours


def test_processes_and_a_cluster_exclude_each_other(tmp_path, capsys):
    options = ["--executor", "ray", "--processes", "2", "-o", str(tmp_path / "e.json")]
    assert main(["estimate", str(written(tmp_path)), *options]) == 2
    assert "--processes and --executor cannot be combined" in capsys.readouterr().err
