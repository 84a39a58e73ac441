from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.support import proxy_runs as made
from tests.support.forked import Forked

from wattune.algorithms import open_algorithm
from wattune.errors import InputError, Interrupted, OutputError, RecordError, UnknownName
from wattune.proxy import sweep
from wattune.proxy.run import CHECKPOINT_EVERY, ProxyRun
from wattune.records import LearningCurve

ROOT = Path(__file__).parents[2]
SECONDS = 60


def without_wall_clock(curve):
    return curve.model_copy(update={"provenance": curve.provenance.model_copy(update={"created_at": None})})


def same(ones, others):
    return [without_wall_clock(one) for one in ones] == [without_wall_clock(other) for other in others]


@pytest.fixture(scope="module")
def curves():
    return sweep(made.workload(), seeds=[0, 1], folder=None, processes=1)


@pytest.mark.slow
def test_every_batch_size_and_seed_is_trained_once(curves):
    assert [(c.batch_size, c.seed) for c in curves] == [(b, s) for b in (8, 16, 32) for s in (0, 1)]
    for curve in curves:
        assert curve.reached
        assert curve.samples == curve.evaluations[-1].samples
        assert [e.samples for e in curve.evaluations] == list(range(64, curve.samples + 1, 64))
        assert curve.evaluations[-1].metric >= 0.9 > max(e.metric for e in curve.evaluations[:-1])
        assert curve.fingerprint == made.workload().fingerprint()
        assert curve.provenance.kind == "measured"
        assert curve.state_bytes > 3 * 4 * (12 * 32 + 32 * 4)


def test_seeds_differ_and_the_same_seed_does_not(curves):
    assert curves[0].evaluations != curves[1].evaluations
    assert same(sweep(made.workload(), batch_sizes=[8], seeds=[0], folder=None), [curves[0]])


@pytest.mark.slow
def test_curves_are_the_same_over_processes(curves, tmp_path):
    lines = []
    got = sweep(made.workload(), seeds=[0, 1], folder=tmp_path, processes=2, progress=lambda *line: lines.append(line))
    assert same(got, curves)
    assert [line[:2] for line in lines] == [(n, 6) for n in range(7)]
    assert lines[0][2] == "6 runs to train, 2 at a time"
    assert all("reached the target after" in line[2] for line in lines[1:])
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"b{b:03d}-s{s}.json" for b in (8, 16, 32) for s in (0, 1)]


def test_the_thread_count_of_this_process_is_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sweep(made.workload(), batch_sizes=[32], seeds=[0], folder=None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_only_missing_runs_are_trained(tmp_path, monkeypatch):
    lines = []

    def swept():
        lines.clear()
        options = {"batch_sizes": [8, 32], "seeds": [0], "folder": tmp_path, "processes": 1}
        return sweep(made.workload(), **options, progress=lambda *line: lines.append(line))

    first = swept()
    (tmp_path / "b008-s0.json").unlink()
    assert same(swept(), first)
    assert [line[:2] for line in lines] == [(1, 2), (1, 2), (2, 2)]
    assert [line[2] for line in lines][1] == "1 run to train, 1 at a time"
    monkeypatch.setattr(ProxyRun, "train", None)
    assert same(swept(), first)
    assert lines == [(2, 2, "2 of 2 runs already finished")]


def test_curves_of_another_workload_are_refused_and_left_alone(tmp_path):
    sweep(made.workload(), batch_sizes=[8], seeds=[0], folder=tmp_path, processes=1)
    before = (tmp_path / "b008-s0.json").read_bytes()
    with pytest.raises(RecordError, match=r"b008-s0\.json belongs to another training run"):
        sweep(made.workload(target=0.8), batch_sizes=[8], seeds=[0], folder=tmp_path, processes=1)
    assert (tmp_path / "b008-s0.json").read_bytes() == before


def test_a_broken_curve_is_refused(tmp_path):
    (tmp_path / "b008-s0.json").write_text('{"record": "curve", "vers')
    with pytest.raises(RecordError, match="not valid JSON"):
        sweep(made.workload(), batch_sizes=[8], seeds=[0], folder=tmp_path, processes=1)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 5, 6, 11])
def test_a_run_resumes_from_its_checkpoint(tmp_path, monkeypatch, stop):
    workload = made.workload(target=1.01, metric=made.Metric("accuracy", "max", accuracy))
    (whole,) = sweep(workload, batch_sizes=[8], seeds=[0], folder=None)
    evaluate, done = type(workload).evaluate, []

    def failing(self, module):
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append(1)
        return evaluate(self, module)

    with monkeypatch.context() as patch:
        patch.setattr(type(workload), "evaluate", failing)
        with pytest.raises(Interrupted):
            sweep(workload, batch_sizes=[8], seeds=[0], folder=tmp_path, processes=1)
    assert (tmp_path / "b008-s0.checkpoint").exists() == (stop >= CHECKPOINT_EVERY)
    saved = stop // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    calls = []
    monkeypatch.setattr(type(workload), "evaluate", lambda self, m: calls.append(1) or evaluate(self, m))
    (resumed,) = sweep(workload, batch_sizes=[8], seeds=[0], folder=tmp_path, processes=1)
    assert same([resumed], [whole])
    assert len(calls) == len(whole.evaluations) - saved
    assert [p.name for p in tmp_path.iterdir()] == ["b008-s0.json"]


def accuracy(outputs, targets):
    return (outputs.argmax(-1) == targets).float().mean().item()


def test_a_run_that_diverges_ends_and_counts_as_not_reached():
    (curve,) = sweep(made.workload(metric=made.DIVERGING), batch_sizes=[8], seeds=[0], folder=None)
    assert (curve.reached, curve.samples, curve.evaluations) == (False, 64, ())


def test_a_workload_that_cannot_be_pickled_is_trained_in_this_process():
    lines = []
    workload = made.workload(data=lambda: made.points())
    got = sweep(
        workload, batch_sizes=[8, 32], seeds=[0], folder=None, processes=2, progress=lambda *line: lines.append(line)
    )
    assert len(got) == 2
    assert "cannot be pickled" in lines[0][2]


OF_STDIN = """
from tests.support import proxy_runs as made
from wattune.proxy import sweep

def points():
    return made.points()

def show(*line):
    print(line[2])

print(len(sweep(made.workload(data=points), batch_sizes=[8, 32], seeds=[0], folder=None, processes=2, progress=show)))
"""


@pytest.mark.slow
def test_functions_of_a_notebook_or_stdin_are_trained_in_this_process():
    done = subprocess.run(
        [sys.executable, "-"], input=OF_STDIN, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "which other processes cannot import: training in this process" in lines[0]
    assert lines[-1] == "2"


def test_invalid_sweep_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match="nothing to train"):
        sweep(made.workload(), seeds=[], folder=None)
    with pytest.raises(UnknownName, match="backprop"):
        sweep(made.workload(), seeds=[0], folder=None, algorithm="forwardprop")
    with pytest.raises(InputError, match="processes"):
        sweep(made.workload(), seeds=[0], folder=None, processes=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        sweep(made.workload(), seeds=[0], folder=tmp_path / "file" / "curves")


def start(folder):
    return Forked(partial(made.sweep_slowly, folder), session=True)


def group(leader):
    """Processes of the leader's session that still live."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            processes.append(int(stat.parent.name))
    return processes


def wait_until(condition, seconds=SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def kill_during_a_run(folder, seconds):
    process = start(folder)
    wait_until(lambda: any(folder.glob("*.checkpoint")) or process.poll() is not None)
    time.sleep(seconds)
    process.kill()
    process.communicate()
    wait_until(lambda: not group(process.pid))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_killed_sweep_leaves_no_process_and_resumes(tmp_path, monkeypatch):
    moments = random.Random(0)
    for _ in range(2):
        kill_during_a_run(tmp_path, moments.uniform(0, 1))
        for path in tmp_path.glob("*.json"):
            LearningCurve.load(path)
    for says in ("4 4 batch size", "4 4 4 of 4 runs already finished"):
        process = start(tmp_path)
        output, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, "")
        assert says in output
    monkeypatch.setattr(made, "slow_score", lambda outputs, targets: 0.0)  # the same at once
    for curve in sweep(made.slow(), batch_sizes=[8], seeds=[0, 1], folder=None, processes=1):
        saved = LearningCurve.load(tmp_path / f"b008-s{curve.seed}.json")
        assert saved.evaluations == curve.evaluations


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("everybody", [True, False])
def test_ctrl_c_ends_the_sweep_at_once(tmp_path, everybody):
    process = start(tmp_path)
    wait_until(lambda: any(tmp_path.glob("*.checkpoint")))
    (os.killpg if everybody else os.kill)(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert "wattune.errors.Interrupted: interrupted after 0 of 4 runs" in errors
    assert errors.count("Traceback") <= 2  # this process only: KeyboardInterrupt, and Interrupted from it
    wait_until(lambda: not group(process.pid))


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_trained(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(InputError, match=r"the executor: cuda; allowed: a machine with a GPU.*"):
        sweep(made.workload(), batch_sizes=[8], seeds=[0], folder=tmp_path, executor="cuda")
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_only_on_the_kind_of_processor_that_it_began_on(tmp_path):
    workload = made.workload(target=1.01, metric=made.Metric("accuracy", "max", accuracy))
    run = ProxyRun(workload.fingerprint(), 8, 0, "backprop", tmp_path)
    algorithm = open_algorithm("backprop", workload, 8)
    run._checkpoint(algorithm, 0, [])
    with pytest.raises(RecordError, match=r"begun on another kind of processor: cpu; allowed: gpu"):
        replace(run, on="gpu")._resume(algorithm)
    assert run._resume(algorithm) == (0, [])
