"""A fleet on Flower: real strategy, mod, messages and training, on simulated boards."""

from __future__ import annotations

import os
import warnings

import pytest

with warnings.catch_warnings():  # Flower's own imports use what others have deprecated
    warnings.simplefilter("ignore")
    if os.environ.get("WATTUNE_REQUIRE_FLOWER"):
        import flwr
    else:
        flwr = pytest.importorskip("flwr", reason="needs Flower in an environment of its own: make test-flower")

import numpy as np
from flwr.app import ArrayRecord
from tests.support.flower_fleet import (
    BATCH,
    InProcessGrid,
    arrays,
    client_app,
    mod_of,
    network,
    profile_of,
    train_steps,
)

from wattune.devices import open_device
from wattune.errors import InputError
from wattune.integrations.flower import FleetStrategy, PowerCapMod
from wattune.integrations.flower_steps import ObservedSteps

NANO, ORIN = "sim:jetson-nano", "sim:jetson-agx-orin"
ALONE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def grid_of(*mods: PowerCapMod | None) -> InProcessGrid:
    return InProcessGrid({node: client_app(mod) for node, mod in enumerate(mods, start=1)})


def start(grid: InProcessGrid, rounds: int = 1, **options):
    strategy = FleetStrategy(**{"local_steps": 40, "batch_size": BATCH, **ALONE, **options})
    return strategy, strategy.start(grid=grid, initial_arrays=arrays(), num_rounds=rounds)


def steps_sent(grid: InProcessGrid) -> list[dict[int, int]]:
    rounds: dict[int, dict[int, int]] = {}
    for message in grid.sent:
        config = message.content.config_records.get("config", {})
        if "local-steps" in config:
            rounds.setdefault(config["server-round"], {})[message.metadata.dst_node_id] = config["local-steps"]
    return list(rounds.values())


def test_a_round_ends_together_and_reports_seconds_and_joules():
    grid = grid_of(mod_of(NANO, 4.2), mod_of(ORIN, 20))
    strategy, result = start(grid, rounds=2)
    (first, second) = steps_sent(grid)
    assert sum(first.values()) == sum(second.values()) == 80
    assert first[2] > 2 * first[1]
    parts = strategy.plan.parts
    assert min(part.seconds for part in parts) > 0.8 * max(part.seconds for part in parts)
    metrics = result.train_metrics_clientapp[2]
    assert metrics["wattune-steps"] == 80
    assert metrics["wattune-seconds"] == pytest.approx(strategy.plan.seconds, rel=0.1)
    assert metrics["wattune-watts"] == pytest.approx(metrics["wattune-joules"] / metrics["wattune-seconds"])
    assert result.evaluate_metrics_clientapp[2]["accuracy"] > 0.5


def test_the_figures_of_a_client_are_those_of_its_board():
    table, steps = profile_of(NANO), 1500
    grid = grid_of(mod_of(NANO, 4.2))
    strategy, result = start(grid, local_steps=steps)
    (part,) = strategy.plan.parts
    cell = next(one for one in table.cells if one.point == part.point)
    metrics = result.train_metrics_clientapp[1]
    assert cell.power_peak_w <= 4.2
    assert metrics["wattune-seconds"] == pytest.approx(steps * cell.step_s, rel=0.01)
    assert metrics["wattune-joules"] == pytest.approx(steps * cell.step_s * cell.power_mean_w, rel=0.1)


def test_the_average_is_weighted_by_the_samples_that_were_trained_on():
    grid = grid_of(mod_of(NANO, 4.2), mod_of(ORIN, 20))
    _, result = start(grid, local_steps=10)
    (steps,) = steps_sent(grid)
    begin = [array.numpy() for array in arrays().values()]
    moved = [np.zeros_like(value) for value in begin]
    for node, count in steps.items():
        model = network()
        model.load_state_dict(arrays().to_torch_state_dict())
        train_steps(model, count, BATCH, seed=node)
        for total, value, first in zip(moved, model.state_dict().values(), begin, strict=True):
            total += (value.numpy() - first) * count / 20
    for value, first, total in zip(result.arrays.values(), begin, moved, strict=True):
        np.testing.assert_allclose(value.numpy(), first + total, rtol=1e-4, atol=1e-6)


def test_clients_without_a_point_a_mod_or_an_answer_take_no_part(caplog):
    grid = grid_of(mod_of(NANO, 4.2), mod_of(ORIN, 1.0), None, mod_of(NANO, 4.2))
    grid.silent.add(4)
    strategy, result = start(grid)
    assert list(steps_sent(grid)[0]) == [1]
    assert strategy.plan.left_out == {"2": "no measured point stays under its cap"}
    assert result.train_metrics_clientapp[1]["wattune-steps"] == 40


def test_clients_that_join_leave_or_fall_silent_are_normal():
    grid = grid_of(mod_of(NANO, 4.2), mod_of(NANO, 4.2))
    strategy = FleetStrategy(local_steps=40, batch_size=BATCH, **ALONE)
    strategy.start(grid=grid, initial_arrays=arrays(), num_rounds=1)
    grid.join(3, client_app(mod_of(NANO, 4.2)))
    grid.silent.add(2)
    strategy.start(grid=grid, initial_arrays=arrays(), num_rounds=2)
    before, after = steps_sent(grid)[-2:]
    assert set(before) == {1, 2, 3}
    assert after[2] < 0.7 * before[2]
    del grid.apps[1]
    strategy.start(grid=grid, initial_arrays=arrays(), num_rounds=1)
    assert set(steps_sent(grid)[0]) <= {1, 2, 3}
    assert {part.name for part in strategy.plan.parts} == {"2", "3"}


def test_a_round_without_a_client_is_refused_in_one_line():
    with pytest.raises(InputError, match="no client made an offer; add a PowerCapMod to their ClientApp"):
        start(grid_of(None))
    with pytest.raises(InputError, match="no client can take part in the round: 1: no measured point"):
        start(grid_of(mod_of(NANO, 1.0)))


def test_a_profile_of_another_board_is_refused():
    mod = PowerCapMod(4.2, profile=profile_of(NANO), device="sim:jetson-tx2-nx")
    _, result = start(grid_of(mod, mod_of(NANO, 4.2)))
    assert result.train_metrics_clientapp[1]["wattune-steps"] < 80  # that of the other client alone
    with pytest.raises(InputError, match="no client made an offer"):
        start(grid_of(PowerCapMod(4.2, profile=profile_of(NANO, (4,)), device=NANO)))


def test_steps_are_observed_without_changing_them():
    plain, observed = network(), network()
    observed.load_state_dict(plain.state_dict())
    train_steps(plain, 5, BATCH)
    device = open_device(NANO)
    with ObservedSteps(device, BATCH, lambda: None) as steps:
        train_steps(observed, 5, BATCH)
    assert steps.steps == 5
    assert device.now_s() > 0
    for one, other in zip(plain.state_dict().values(), observed.state_dict().values(), strict=True):
        assert one.equal(other)
    seconds = device.now_s()
    train_steps(observed, 5, BATCH)
    assert device.now_s() == seconds
    assert isinstance(arrays(), ArrayRecord)
