"""A fleet on Flower: real strategy, mod, messages and training, on simulated boards."""

from __future__ import annotations

import json
import math
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
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
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

from wattune.errors import InputError
from wattune.integrations.flower import JOULES, OFFER, SECONDS, STEPS, FleetStrategy, PowerCapMod

NANO, ORIN = "sim:jetson-nano", "sim:jetson-agx-orin"
ALONE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def grid_of(*mods: PowerCapMod | None, last_first: bool = False) -> InProcessGrid:
    return InProcessGrid({node: client_app(mod) for node, mod in enumerate(mods, start=1)}, last_first=last_first)


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


def metrics_with(**changes: object):
    """A change of the metrics of a client's reply; None removes one."""

    def change(content: RecordDict) -> None:
        record = content["metrics"]
        for name, value in changes.items():
            key = {"seconds": SECONDS, "joules": JOULES, "steps": STEPS}.get(name, name)
            del record[key]
            if value is not None:
                record[key] = value

    return change


def arrays_with(change):
    """A change of the numbers of a client's first array, or of all of them by name."""

    def changed(content: RecordDict) -> None:
        values = {name: array.numpy().copy() for name, array in content["arrays"].items()}
        content["arrays"] = ArrayRecord({name: flwr.app.Array(one) for name, one in change(values).items()})

    return changed


def first_is(value: float):
    return arrays_with(lambda values: {**values, "0.bias": np.full_like(values["0.bias"], value)})


FAULTS = {
    "seconds are 0": metrics_with(seconds=0.0),
    "seconds are negative": metrics_with(seconds=-1.0),
    "seconds are no number": metrics_with(seconds=math.nan),
    "seconds are a list": metrics_with(seconds=[1.0, 2.0]),
    "no seconds": metrics_with(seconds=None),
    "steps are 0": metrics_with(steps=0),
    "steps are a fraction": metrics_with(steps=0.5),
    "no steps": metrics_with(steps=None),
    "joules are no number": metrics_with(joules=math.nan),
    "joules are infinite": metrics_with(joules=math.inf),
    "no joules": metrics_with(joules=None),
    "another metric is missing": metrics_with(loss=None),
    "another metric is a list": metrics_with(loss=[1.0]),
    "no metrics": lambda content: content.pop("metrics"),
    "two records of metrics": lambda content: content.update({"more": MetricRecord({"loss": 1.0})}),
    "no arrays": lambda content: content.pop("arrays"),
    "two records of arrays": lambda content: content.update({"more": arrays()}),
    "an array that is not finite": first_is(math.nan),
    "an array that is infinite": first_is(math.inf),
    "an array of another shape": arrays_with(lambda values: {**values, "0.bias": np.zeros(65, np.float32)}),
    "an array is missing": arrays_with(lambda values: {n: v for n, v in values.items() if n != "0.bias"}),
    "an array of another name": arrays_with(lambda values: {**values, "more": np.zeros(1, np.float32)}),
}


def answering(mod: PowerCapMod, change, *, offers: bool = False):
    """A mod whose offers, or else its other replies, are changed."""

    def changed(message: Message, context, call_next) -> Message:
        reply = mod(message, context, call_next)
        if message.metadata.message_type == "train" and (OFFER in message.content) == offers:
            change(reply.content)
        return reply

    return changed


@pytest.fixture(scope="module")
def alone():
    """The result of a round with one client that can be used."""
    return start(grid_of(mod_of(NANO, 4.2), None), local_steps=20)[1]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_that_answers_nonsense_counts_as_failed(fault, alone):
    bad = answering(mod_of(NANO, 4.2), FAULTS[fault])
    last_first = fault.startswith("another")  # where most clients decide, the first must not
    strategy, result = start(grid_of(mod_of(NANO, 4.2), bad, last_first=last_first), local_steps=20)
    for value, other in zip(result.arrays.values(), alone.arrays.values(), strict=True):
        np.testing.assert_array_equal(value.numpy(), other.numpy())
    metrics = result.train_metrics_clientapp[1]
    assert metrics[STEPS] == 20
    assert all(math.isfinite(value) for value in metrics.values())
    assert strategy.slowness[2] == 2.0


def test_metrics_are_those_of_most_clients():
    """Whichever answers first."""
    bad = answering(mod_of(NANO, 4.2), FAULTS["another metric is missing"])
    strategy, _ = start(grid_of(bad, mod_of(NANO, 4.2), mod_of(NANO, 4.2)), local_steps=20)
    assert strategy.slowness[1] == 2.0
    assert strategy.slowness[2] == pytest.approx(strategy.slowness[3])


def test_steps_that_nobody_asked_for_weigh_nothing():
    bad = answering(mod_of(NANO, 4.2), metrics_with(steps=10**12))
    strategy, result = start(grid_of(mod_of(NANO, 4.2), bad), local_steps=20)
    assert result.train_metrics_clientapp[1][STEPS] == 40
    assert strategy.slowness[2] == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "{}",
        '{"points": 3}',
        *(
            json.dumps({"points": [{"batch_size": BATCH, "clock_mhz": 76.8, "step_s": 0.1, "power_w": 3.0, **change}]})
            for change in (
                {"step_s": 0}, {"step_s": math.nan}, {"step_s": 1e-300}, {"step_s": "a"}, {"power_w": -1},
                {"power_w": math.inf}, {"batch_size": 0}, {"batch_size": 2 * BATCH}, {"clock_mhz": -5},
            )
        ),
    ],
)  # fmt: skip
def test_an_offer_of_nonsense_is_none(text):
    def change(content: RecordDict) -> None:
        content[OFFER] = ConfigRecord({OFFER: text})

    bad = answering(mod_of(NANO, 4.2), change, offers=True)
    strategy, result = start(grid_of(bad, mod_of(NANO, 4.2)), local_steps=5)
    assert set(strategy.clients) == {2}
    assert result.train_metrics_clientapp[1][STEPS] == 5


@pytest.mark.parametrize("metrics", [{}, {"num-examples": 0}, {"num-examples": math.nan}, {"num-examples": [1, 2]}])
def test_an_evaluation_that_cannot_be_averaged_is_left_out(metrics):
    app = client_app(mod_of(NANO, 4.2))
    bad = flwr.clientapp.ClientApp(mods=[mod_of(NANO, 4.2)])
    bad.train()(lambda message, context: app(message, context))

    @bad.evaluate()
    def evaluate(message: Message, context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    grid = InProcessGrid({1: app, 2: bad})
    _, result = start(grid, local_steps=5)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] > 0
