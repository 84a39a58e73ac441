"""Series and graphs that are made, or read from the user's files."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from wattune.datasets.graphs import Graphs
from wattune.datasets.series import Series, mackey_glass
from wattune.errors import InputError, WorkloadError
from wattune.workloads import load_workload
from wattune.workloads.metrics import METRICS, Metric

FORECAST = """
name = "forecast"
task = "regression"
input_shape = [12, 1]
batch_sizes = [8, 32]
budget_samples = 256
target = 0.05

[model]
name = "gru"
options = { width = 8 }

[data]
source = "series"
"""

GRAPHS = """
name = "graphs"
input_shape = [30, 2]
batch_sizes = [8, 32]
budget_samples = 256
target = 0.8

[model]
name = "graph-network"
options = { nodes = 15, width = 8, rounds = 2 }

[data]
source = "graphs"
nodes = 15
samples = 120
"""


def written(folder, text):
    path = folder / "workload.toml"
    path.write_text(text)
    return path


class TestSeries:
    @settings(max_examples=50, deadline=None)
    @given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 7), st.sampled_from([0.1, 0.3, 0.5]))
    def test_pieces_and_what_follows_them(self, length, horizon, stride, share):
        data = Series(length, horizon=horizon, stride=stride, steps=300, standardise=False, test_share=share)()
        series = torch.from_numpy(mackey_glass(300)).float()
        cut = 300 - int(300 * share)
        for (x, y), part in ((data.train, series[:cut]), (data.test, series[cut:])):
            assert len(x) == (len(part) - length - horizon) // stride + 1
            assert x.shape[1:] == (length, 1)
            assert y.shape[1:] == (horizon,)
            for at in (0, len(x) - 1):
                begin = at * stride
                assert torch.equal(x[at, :, 0], part[begin : begin + length])
                assert torch.equal(y[at], part[begin + length : begin + length + horizon])

    def test_it_is_standardised_by_the_training_part_alone(self):
        series = np.concatenate([np.arange(80.0), np.full(20, 1e6)])
        data = Series(4, steps=100)
        object.__setattr__(data, "_synthetic", lambda: series[:, None])
        found = data()
        assert found.train[0][0, 0, 0] == pytest.approx((0 - 39.5) / np.arange(80).std(), rel=1e-6)
        assert found.test[0].min() > 1000

    def test_the_first_steps_are_those_of_shorter_ones(self, monkeypatch):
        monkeypatch.setattr("wattune.datasets.series.TRANSIENT_STEPS", 0)
        found, delay, parts = mackey_glass(100), 17, 100
        x = [1.2] * (delay * parts + 1)
        for _ in range(100 * parts):
            delayed = x[-1 - delay * parts]
            x.append(x[-1] + (0.2 * delayed / (1 + delayed**10) - 0.1 * x[-1]) / parts)
        wanted = x[delay * parts + parts :: parts]
        assert found == pytest.approx(wanted, abs=0.01)

    @pytest.mark.parametrize("shape", [(200,), (200, 3)])
    def test_the_users_own(self, tmp_path, shape):
        series = np.random.default_rng(0).normal(size=shape).cumsum(0)
        np.savez(tmp_path / "own.npz", series=series)
        values = shape[1] if len(shape) == 2 else 1
        text = FORECAST.replace("[12, 1]", f"[12, {values}]").replace('"series"', '"series"\nfile = "own.npz"')
        workload = load_workload(written(tmp_path, text.replace("width = 8", f"width = 8, inputs = {values}")))
        workload.check()
        first = series[:160].reshape(160, -1)
        x, y = workload.loaded.train
        assert x[0].numpy() == pytest.approx((first[:12] - first.mean(0)) / first.std(0), abs=1e-4)
        assert y[0].item() == pytest.approx((first[12, 0] - first[:, 0].mean()) / first[:, 0].std(), abs=1e-4)

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"values": np.ones(100)}, "lacks the array: series; allowed: series; it has values"),
            ({"series": np.ones((10, 2, 2))}, "shape (steps,) or (steps, values)"),
            ({"series": np.array(["a", "b"])}, "allowed: numbers with the shape"),
            ({"series": np.array([1.0, np.nan] * 60)}, "NaN"),
            ({"series": np.ones(100)}, "a constant series"),
            ({"series": np.arange(20.0)}, "the test part of the series is too short: 4 steps"),
            (b"nothing", "cannot read"),
            (None, "no such data file"),
        ],
    )
    def test_an_unusable_series_is_refused_in_one_line(self, tmp_path, arrays, words):
        if isinstance(arrays, bytes):
            (tmp_path / "own.npz").write_bytes(arrays)
        elif arrays is not None:
            np.savez(tmp_path / "own.npz", **arrays)
        with pytest.raises(WorkloadError) as caught:
            Series(12, file=tmp_path / "own.npz")()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            ("[12, 1]", "[12]", "input_shape of a series: [12]; allowed: [length of a piece, values at each step]"),
            ("[12, 1]", "[12, 2]", "does not accept inputs of shape (12, 2)"),
            ('"series"', '"series"\nhorizon = 0', "horizon of the series: 0"),
            ('"series"', '"series"\nhorizon = 2', "the model's output, (1,)"),
            ('"series"', '"series"\nsteps = 9999999', "at most 1000000"),
            ('"series"', '"series"\nnoise = -1', "noise: -1"),
            ('"series"', '"series"\nstandardise = 1', "true or false"),
            ('"series"', '"series"\ntest_share = 1', "below 1"),
            ('"series"', '"series"\nsize = 8', "unknown key in [data] from series: size"),
            ("target = 0.05", "target = -0.5", "target of the metric loss: -0.5"),
            ("target = 0.05", 'target = 0\nmetric = "mse"', "target of the metric mse: 0"),
        ],
    )
    def test_a_file_that_is_wrong_is_refused_in_one_line(self, tmp_path, before, after, words):
        assert before in FORECAST
        with pytest.raises(InputError) as caught:
            load_workload(written(tmp_path, FORECAST.replace(before, after, 1))).check()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_the_forecast_in_the_docs_works(self, tmp_path):
        text = (Path(__file__).parents[2] / "docs" / "workload-file.md").read_text()
        (forecast,) = (part for part in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if '"gru"' in part)
        workload = load_workload(written(tmp_path, forecast))
        workload.check()
        assert workload.check_proxy() == []
        assert (workload.metric.name, workload.metric.direction) == ("mse", "min")
        mean = workload.metric.score(torch.zeros_like(workload.loaded.train[1]), workload.loaded.train[1])
        assert float(mean) == pytest.approx(1, abs=0.05)  # of forecasting the mean


class TestErrors:
    @given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20), st.floats(1e-3, 1e3))
    def test_lower_is_better(self, values, target):
        for name in ("loss", "mse", "mae"):
            metric = METRICS[name]
            assert [metric.reached(value, target) for value in values] == [value <= target for value in values]
            assert not metric.reached(float("nan"), target)

    def test_mse_and_mae_are_numpys(self):
        output, target = torch.randn(9, 1), torch.randn(9)
        for name, wanted in (("mse", F.mse_loss(output[:, 0], target)), ("mae", F.l1_loss(output[:, 0], target))):
            assert float(METRICS[name].score(output, target)) == pytest.approx(float(wanted))

    def test_a_metric_of_the_users_own_can_be_below_zero(self):
        Metric("likelihood", "min", lambda output, target: 0.0).check_target(-3.0)


class TestGraphs:
    @settings(max_examples=25, deadline=None)
    @given(st.integers(4, 20), st.data())
    def test_every_graph_has_its_nodes_and_edges(self, nodes, draws):
        edges = draws.draw(st.integers(nodes - 1, nodes * (nodes - 1) // 2))
        x, y = Graphs(edges, nodes=nodes, samples=12)().train
        assert x.shape == (10, edges, 2)
        assert set(y.tolist()) <= {0, 1, 2}
        for graph in x.long().tolist():
            pairs = {tuple(sorted(edge)) for edge in graph}
            assert len(pairs) == edges  # no edge twice
            assert all(0 <= one < other < nodes for one, other in pairs)

    def test_degrees_are_those_of_their_kinds(self):
        x, y = Graphs(48, samples=300)().train
        spread = {kind: [] for kind in range(3)}
        for graph, label in zip(x.long(), y.tolist(), strict=True):
            spread[label].append(torch.bincount(graph.flatten(), minlength=24).float().std().item())
        uniform, ring, preferential = (np.mean(spread[kind]) for kind in range(3))
        assert ring < 0.8 * uniform < 0.8 * preferential

    def test_a_seed_makes_the_same_graphs(self):
        one, same, other = (Graphs(20, nodes=9, samples=9, seed=seed)() for seed in (0, 0, 1))
        assert torch.equal(one.train[0], same.train[0])
        assert not torch.equal(one.train[0], other.train[0])

    def test_a_network_learns_to_tell_them_apart(self, tmp_path):
        workload = load_workload(written(tmp_path, GRAPHS.replace("samples = 120", "samples = 480")))
        workload.check()
        model = workload.model(0)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _, (x, y) in zip(range(200), workload.batches(32, seed=0), strict=False):
            optimizer.zero_grad()
            workload.loss(model(x), y).backward()
            optimizer.step()
        assert workload.evaluate(model) > 0.6  # a third by chance

    @pytest.mark.parametrize(
        ("before", "after", "words"),
        [
            ("[30, 2]", "[30]", "input_shape of a graph: [30]; allowed: [edges of a graph, 2]"),
            ("[30, 2]", "[3, 2]", "edges of the graphs: 3; allowed: 14 to 105 for 15 nodes"),
            ("[30, 2]", "[106, 2]", "14 to 105 for 15 nodes"),
            ("nodes = 15\n", "nodes = 3\n", "nodes of the graphs: 3"),
            ("samples = 120", "rewired = 2", "rewired: 2"),
            ("samples = 120", "edges = 20", "unknown key in [data] from graphs: edges"),
        ],
    )
    def test_a_file_that_is_wrong_is_refused_in_one_line(self, tmp_path, before, after, words):
        assert before in GRAPHS
        with pytest.raises(InputError) as caught:
            load_workload(written(tmp_path, GRAPHS.replace(before, after, 1))).check()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
