"""A workload whose metric falls, by the command line: estimated, planned, trained, reported on a simulated board."""

from __future__ import annotations

import json

import pytest

from wattune.cli import main
from wattune.records import LearningCurve, Plan, SampleEfficiency, TrainingRecord

FORECAST = """
name = "forecast"
task = "regression"
input_shape = [24, 1]
batch_sizes = [8, 32]
budget_samples = 6400
evaluate_every = 32
metric = "METRIC"
target = TARGET
model = "lower_is_better:Forecaster"
optimizer = { name = "adam", learning_rate = 5e-3, reference_batch_size = 32 }

[data]
source = "factory"
factory = "lower_is_better:waves"
options = { noise = 0.05 }

[proxy.data]
source = "factory"
factory = "lower_is_better:waves"
"""
MODULE = """
import numpy as np
from torch import nn


class Forecaster(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 1))


def waves(noise=0.0):
    draws = np.random.default_rng(0)
    phases = draws.uniform(0, 7, (1200, 1))
    values = np.sin(phases + np.arange(25) / 3) + noise * draws.standard_normal((1200, 25))
    x, y = values[:, :24, None].astype(np.float32), values[:, 24:].astype(np.float32)
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])
"""
DEVICE = ["--device", "sim:jetson-nano"]

pytestmark = pytest.mark.slow


def workload(folder, metric="mse", target=0.015, budget_samples=6400):
    path = folder / "forecast.toml"
    text = FORECAST.replace("METRIC", metric).replace("TARGET", str(target)).replace("6400", str(budget_samples))
    path.write_text(text)
    (folder / "lower_is_better.py").write_text(MODULE)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One whole run, and the estimate alone, as a user would."""
    folder = tmp_path_factory.mktemp("forecast")
    file = workload(folder)
    for arguments in (
        ["run", file, *DEVICE, "--cap", "4.2W", "--set", "seeds=2", "--set", "processes=1", "-o", str(folder / "run")],
        ["estimate", file, "--seeds", "1", "--processes", "1", "-o", str(folder / "efficiency.json")],
    ):
        assert main(arguments) == 0, arguments
    return folder


def test_proxy_runs_end_when_the_error_is_low_enough(folder):
    curves = [LearningCurve.load(path) for path in (folder / "efficiency-curves").glob("b*.json")]
    assert len(curves) == 2
    for curve in curves:
        assert (curve.metric, curve.target, curve.reached) == ("mse", 0.015, True)
        before, last = [e.metric for e in curve.evaluations[:-1]], curve.evaluations[-1].metric
        assert last <= 0.015 < min(before)
    efficiency = SampleEfficiency.load(folder / "efficiency.json")
    assert {point.censored for point in efficiency.points} == {0}
    assert all(point.samples and point.samples < 6400 for point in efficiency.points)


def test_the_training_ends_when_the_error_is_low_enough(folder):
    training = TrainingRecord.load(folder / "run" / "training.json")
    assert (training.reached, training.ended) == (True, "target reached")
    metrics = [evaluation.metric for evaluation in training.evaluations]
    assert metrics[-1] <= 0.015 < min(metrics[:-1])
    assert training.plan.batch_size == Plan.load(folder / "run" / "plan.json").batch_size
    assert training.plan.predicted_s


def test_a_target_that_no_error_falls_to_is_not_reached(wattune, folder, tmp_path):
    file = workload(tmp_path, "mae", 1e-9, budget_samples=1600)
    plan = folder / "run" / "plan.json"
    code, _, err = wattune("train", plan, file, *DEVICE, "-o", tmp_path / "training.json")
    assert code == 3
    assert "target not reached" in err[-1]
    assert "not 1e-09" in err[-1]
    record = json.loads((tmp_path / "training.json").read_text())
    assert (record["reached"], record["samples"]) == (False, 1600)
    assert record["evaluations"][-1]["metric"] < record["evaluations"][0]["metric"]
