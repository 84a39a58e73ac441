"""A fleet on Flower whose model, profiles and curve are lent by a real server, which runs in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():  # Flower's own imports use what others have deprecated
    warnings.simplefilter("ignore")
    if os.environ.get("WATTUNE_REQUIRE_FLOWER"):
        import flwr
    else:
        flwr = pytest.importorskip("flwr", reason="needs Flower in an environment of its own: make test-flower")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from tests.support.flower_fleet import InProcessGrid
from tests.support.server.served import model as served
from tests.support.server.serving import serving
from torch.nn import functional

import wattune
from wattune.errors import InputError
from wattune.integrations.flower import FleetStrategy, PowerCapMod, lent_workload
from wattune.remote import Client

ROOT = Path(__file__).parents[2]
BOARDS = ("sim:jetson-nano", "sim:jetson-agx-orin")
ALONE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}

OFFER = """
import sys
from pathlib import Path
from tests.server.test_server_serve import offered
offered(Path(sys.argv[1]))
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with a model, with profiles of two boards, and with a worker that estimates its curve."""
    python = os.environ.get("WATTUNE_SERVER_PYTHON")
    if python is None:
        pytest.skip("needs the server's own environment: make test-flower")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    store = tmp_path / "store"
    subprocess.run([python, "-c", OFFER, str(store)], env={**os.environ, **environment}, cwd=ROOT, check=True)
    with serving(store, "--workers", "1", environment=environment, python=python) as own:
        with Client(own.url) as client:
            workload = lent_workload({"wattune-model": json.dumps(client.model("digits").dump())})
            for board in BOARDS:
                assert client.publish_profile(wattune.profile(board, workload, reference=False), device="bench")
        yield own


def client_app(mod: PowerCapMod) -> ClientApp:
    """A ClientApp that knows neither the model nor its recipe."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        workload, size = lent_workload(config), config["batch-size"]
        network = workload.model(0)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = workload.optimizer(network, size)
        draw = torch.Generator().manual_seed(context.node_id)
        for _ in range(config["local-steps"]):
            images = torch.randn(size, *workload.input_shape, generator=draw)
            functional.cross_entropy(network(images), torch.randint(5, (size,), generator=draw)).backward()
            optimizer.step()
            optimizer.zero_grad()
        content = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def grid_of(*boards: str) -> InProcessGrid:
    return InProcessGrid(
        {node: client_app(PowerCapMod(None, device=board)) for node, board in enumerate(boards, start=1)}
    )


@pytest.mark.slow
def test_a_server_lends_the_model_the_profiles_and_the_curve(server):
    grid = grid_of(*BOARDS, "sim:jetson-tx2-nx")
    strategy = FleetStrategy(local_steps=8, batch_size=8, server=server.url, model="digits", keep_recipe=False, **ALONE)
    arrays = strategy.lent_arrays()
    assert list(arrays) == list(lent_workload({"wattune-model": json.dumps(served().dump())}).model(0).state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
    # Nobody has published a profile of the third board.
    assert {part.name for part in strategy.plan.parts} == {"1", "2"}
    # Such boards take hardly longer for a larger batch: the curve decides how far that helps, at as many samples.
    assert strategy.batch_size > 8
    assert strategy.local_steps == max(1, round(64 / strategy.batch_size))
    assert {part.point.batch_size for part in strategy.plan.parts} == {strategy.batch_size}
    assert result.train_metrics_clientapp[1]["wattune-steps"] == 2 * strategy.local_steps

    kept = FleetStrategy(local_steps=8, batch_size=8, server=server.url, model="digits", **ALONE)
    kept.start(grid=grid_of(*BOARDS), initial_arrays=arrays, num_rounds=1)
    assert (kept.batch_size, kept.local_steps) == (8, 8)
    with pytest.raises(InputError, match="no client made an offer"):
        FleetStrategy(local_steps=8, batch_size=8, server=server.url, model="digits", **ALONE).start(
            grid=grid_of("sim:jetson-tx2-nx"), initial_arrays=arrays, num_rounds=1
        )


def test_a_server_without_a_model_and_a_curve_without_a_server_are_one_line():
    with pytest.raises(InputError, match=r"^a wattune server without a model"):
        FleetStrategy(local_steps=8, batch_size=8, server="http://127.0.0.1:1")
    with pytest.raises(InputError, match=r"^keep_recipe=False without a curve; give a server"):
        FleetStrategy(local_steps=8, batch_size=8, keep_recipe=False)
    with pytest.raises(InputError, match=r"^no arrays are lent; give FleetStrategy a server"):
        FleetStrategy(local_steps=8, batch_size=8).lent_arrays()
    with pytest.raises(InputError, match=r"^the message has no model; give FleetStrategy a server"):
        lent_workload({})
