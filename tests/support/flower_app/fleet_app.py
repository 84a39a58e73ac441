"""A Flower app as it is deployed: a fleet of three boards, one of which stays in its training for ever in round 2."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from tests.support import flower_fleet

from wattune.integrations.flower import FleetStrategy

BOARDS = (("sim:jetson-nano", 4.2), ("sim:jetson-agx-orin", 20.0), ("sim:jetson-nano", 4.2))
"""Board and cap of each client."""

LOST, LOST_IN_ROUND = 2, 2
"""The client that does not end this round."""

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write what came of it: the clients and the steps of each round."""
    while len(list(grid.get_node_ids())) < context.run_config["clients"]:
        time.sleep(0.1)
    options = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
    strategy = FleetStrategy(local_steps=40, batch_size=flower_fleet.BATCH, offer_within_s=3600.0, **options)
    aggregate, rounds = strategy.aggregate_train, []

    def noted(server_round, replies):
        replies = list(replies)
        rounds.append(
            {
                "asked": len(strategy.plan.parts),
                "answered": sum(not reply.has_error() for reply in replies),
                "left": len(list(grid.get_node_ids())),
            }
        )
        return aggregate(server_round, replies)

    strategy.aggregate_train = noted
    result = strategy.start(grid, flower_fleet.arrays(), num_rounds=context.run_config["rounds"])
    for one, metrics in zip(rounds, result.train_metrics_clientapp.values(), strict=True):
        one["steps"] = metrics["wattune-steps"]
    accuracy = result.evaluate_metrics_clientapp[context.run_config["rounds"]]["accuracy"]
    _write(Path(context.run_config["folder"], "result.json"), {"rounds": rounds, "accuracy": accuracy})


def board(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Train under the mod of this client's board."""
    spec, cap_w = BOARDS[context.node_config["partition-id"]]

    def train(message: Message, context: Context) -> Message:
        config = message.content.config_records.get("config", {})
        is_last = context.node_config["partition-id"] == LOST and config.get("server-round") == LOST_IN_ROUND
        if is_last and "local-steps" in config:
            _write(Path(context.run_config["folder"], "training.json"), {"pid": os.getpid()})
            while True:
                time.sleep(1)
        return call_next(message, context)

    return flower_fleet.mod_of(spec, cap_w)(message, context, train)


client_app = flower_fleet.client_app(board)


def _write(path: Path, value: object) -> None:
    """Write the file whole, or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.rename(path)
