"""Clients that reply scalars: the server must end where it would with their parameters, whatever arrives."""

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
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import ProtoRecordDict, recorddict_from_proto, recorddict_to_proto
from tests.support.flower_fleet import BATCH, InProcessGrid, arrays, mod_of, network
from torch.nn import functional

from wattune.errors import InputError
from wattune.integrations.flower import FleetStrategy, ScalarTraining
from wattune.integrations.flower_scalars import SCALARS, seed_of

NANO, STEPS = "sim:jetson-nano", 6
ALONE = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}
OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.05),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-3),
    "adam": lambda model: torch.optim.Adam(model.parameters(), 0.01),
}


def training(optimizer="sgd", directions=2, model=network) -> ScalarTraining:
    return ScalarTraining(model, OPTIMIZERS[optimizer], functional.cross_entropy, directions)


def batches(node: int):
    draw = torch.Generator().manual_seed(node)
    while True:
        inputs = torch.randn(BATCH, 16, generator=draw)
        yield inputs, inputs[:, :3].argmax(1)


def client(own: ScalarTraining, *, parameters: bool = False, change=lambda record: record) -> ClientApp:
    """A client that replies its scalars, which ``change`` may replace, or the parameters that they led to."""
    app = ClientApp(mods=[mod_of(NANO, None)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        result = own.train(message, batches(context.node_id))
        reply = {"arrays": ArrayRecord(result.model.state_dict())} if parameters else {SCALARS: change(result.record)}
        metrics = MetricRecord({"loss": result.loss, "num-examples": 1})
        return Message(RecordDict({**reply, "metrics": metrics}), reply_to=message)

    return app


def fleet(own: ScalarTraining, clients, rounds=3):
    """The arrays after some rounds, and the metrics of the last."""
    grid = InProcessGrid(dict(enumerate(clients, start=1)))
    strategy = FleetStrategy(local_steps=STEPS, batch_size=BATCH, split="even", scalars=own, **ALONE)
    result = strategy.start(grid=grid, initial_arrays=arrays(), num_rounds=rounds)
    return result.arrays, result.train_metrics_clientapp.get(rounds, {}), strategy


def assert_equal(one: ArrayRecord, other: ArrayRecord) -> None:
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_allclose(one[name].numpy(), other[name].numpy(), rtol=0, atol=1e-5)


def moved(one: ArrayRecord, other: ArrayRecord) -> float:
    return max(float(np.abs(one[name].numpy() - other[name].numpy()).max()) for name in one)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("directions", [1, 3])
def test_scalars_lead_where_the_parameters_of_the_same_clients_do(optimizer, directions):
    own = training(optimizer, directions)
    by_scalars, metrics, _ = fleet(own, [client(own)] * 3)
    by_parameters, _, _ = fleet(own, [client(own, parameters=True)] * 3)
    assert_equal(by_scalars, by_parameters)
    assert moved(by_scalars, arrays()) > 0.01
    assert metrics["wattune-steps"] == 3 * STEPS
    assert metrics["wattune-seconds"] > 0


def test_some_clients_may_reply_parameters():
    own = training()
    mixed, _, _ = fleet(own, [client(own), client(own, parameters=True)])
    by_parameters, _, _ = fleet(own, [client(own, parameters=True)] * 2)
    assert_equal(mixed, by_parameters)


def test_scalars_have_few_bytes_however_many_parameters():
    def wide() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(16, 5000), torch.nn.ReLU(), torch.nn.Linear(5000, 3))

    sizes = []
    for model in (network, wide):
        own = training(model=model, directions=4)
        record = own.train(asked(seed_of(1, 1), model), batches(1)).record
        sent = recorddict_to_proto(RecordDict({SCALARS: record})).SerializeToString()
        assert recorddict_from_proto(ProtoRecordDict.FromString(sent))[SCALARS] == record
        sizes.append(len(sent))
    assert sizes[0] == sizes[1] < 4 * 4 * STEPS + 150


def asked(seed: int, model=network) -> Message:
    """A message of a strategy."""
    InProcessGrid({})  # messages need an identity of the process
    torch.manual_seed(0)
    config = ConfigRecord({"local-steps": STEPS, "wattune-seed": seed})
    content = RecordDict({"arrays": ArrayRecord(model().state_dict()), "config": config})
    return Message(content, dst_node_id=1, message_type="train")


def test_each_client_and_round_has_directions_of_its_own():
    seeds = {seed_of(server_round, node) for server_round in range(50) for node in (1, 2, 2**64 - 1)}
    assert len(seeds) == 150
    assert all(0 <= seed < 2**63 for seed in seeds)


def killed(records: list[ConfigRecord]) -> ConfigRecord:
    raise RuntimeError("killed")


def cut_short(records: list[ConfigRecord]) -> ConfigRecord:
    return ConfigRecord({**records[-1], SCALARS: records[-1][SCALARS][:-4]})


def late(records: list[ConfigRecord]) -> ConfigRecord:
    return records[-2]


@pytest.mark.parametrize("reply", [cut_short, late])
def test_scalars_that_cannot_be_used_count_as_a_lost_client(reply, caplog):
    def lost_in_round_2(reply):
        records = []
        change = lambda record: records.append(record) or (reply(records) if len(records) == 2 else record)  # noqa: E731
        return fleet(own, [client(own), client(own, change=change)], 2)

    own = training()
    (result, metrics, strategy), (expected, _, _) = lost_in_round_2(reply), lost_in_round_2(killed)
    assert_equal(result, expected)
    assert moved(result, fleet(own, [client(own)] * 2, 2)[0]) > 0.01
    assert metrics["wattune-steps"] == STEPS
    assert strategy.slowness[2] > 1.9 * strategy.slowness[1]
    assert "node 2 is left out: " in caplog.text


def test_a_client_that_starts_again_answers_as_before():
    own = training()
    messages = [asked(7), asked(7)]
    first, again = [own.train(message, batches(1)).record for message in messages]
    assert first[SCALARS] == again[SCALARS]


def test_a_step_without_a_finite_derivative_changes_nothing_on_either_side():
    own = training(directions=1)

    def with_one_bad_batch():
        for number, (x, y) in enumerate(batches(1)):
            yield (x * float("nan") if number == 2 else x), y

    message = asked(7)
    result = own.train(message, with_one_bad_batch())
    rebuilt = own.rebuilt(message.content["arrays"], result.record, 7, STEPS)
    assert_equal(rebuilt, ArrayRecord(result.model.state_dict()))
    assert all(bool(torch.isfinite(value).all()) for value in result.model.state_dict().values())


def test_what_cannot_be_rebuilt_is_one_line():
    def normalised() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))

    def elsewhere() -> torch.nn.Module:
        return network().to("meta")

    with pytest.raises(InputError, match=r"^a buffer of the model that changes in training.*: 1\.running_mean; "):
        training(model=normalised).train(asked(7, normalised), batches(1))
    with pytest.raises(InputError, match=r"^device of a model that is trained by scalars: meta; allowed: cpu"):
        training(model=elsewhere).train(asked(7), batches(1))
    with pytest.raises(InputError, match=r"^directions: 0; allowed: 1 or more"):
        training(directions=0)
    message = asked(7)
    del message.content["config"]["wattune-seed"]
    with pytest.raises(InputError, match=r"^the message has no seed; give FleetStrategy its scalars=$"):
        training().train(message, batches(1))
    record = training().train(asked(7), batches(1)).record
    with pytest.raises(InputError, match=r"^scalars of another round or client: 7; allowed: the seed 8"):
        training().rebuilt(arrays(), record, 8, STEPS)
    with pytest.raises(InputError, match=r"^scalars: 48 bytes; allowed: 8 bytes for each of up to 5 steps"):
        training().rebuilt(arrays(), record, 7, STEPS - 1)
    with pytest.raises(InputError, match=r"^scalars: NoneType; allowed: 8 bytes"):
        training().rebuilt(arrays(), ConfigRecord({"wattune-seed": 7}), 7, STEPS)
    nowhere = ((x * float("nan"), y) for x, y in batches(1))
    with pytest.raises(InputError, match=r"^no step of the round has finite derivatives; lower the learning rate"):
        training().train(asked(7), nowhere)
