"""A fleet on Flower: a strategy that gives each client its operating point and its share of a round's steps.

    from wattune.integrations.flower import FleetStrategy, PowerCapMod

    client_app = ClientApp(mods=[PowerCapMod(6, profile="profile.json")])  # on each board
    FleetStrategy(local_steps=32, batch_size=32).start(grid=grid, initial_arrays=arrays, num_rounds=20)

Flower samples the nodes, sends, waits and aggregates; wattune decides where each client runs and for how many steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from wattune.errors import InputError
from wattune.integrations.flower_client import PowerCapMod
from wattune.integrations.flower_messages import (
    BATCH_SIZE,
    JOULES,
    LOCAL_STEPS,
    OFFER,
    POINT,
    SECONDS,
    STEPS,
    WATTS,
    RoundFigures,
    alike,
    check_arrays,
    check_weight,
    figures_of,
    metrics_of,
    offered,
)
from wattune.planning.fleet import ClientRound, FleetClient, RoundPlan, plan_round, slowed

__all__ = ["FleetStrategy", "PowerCapMod"]

UNANSWERED = 2.0
"""Factor by which a client counts as slower after a round that it did not answer: its next share is half as long."""

LEAST_SLOWNESS, MOST_SLOWNESS = 0.5, 2.0**20
"""Bounds of a client's slowness: no board is twice as fast as its profile, whatever a client says."""


class FleetStrategy(FedAvg):  # type: ignore[misc]  # flwr is not installed where types are checked
    """FedAvg whose clients end their rounds together, each at its own operating point and under its own cap.

    ``local_steps``: optimizer steps of a round, on average over the clients; ``batch_size``: samples of each.
    ``offer_within_s``: the longest wait for the offers of new nodes, which a simulation answers only once its workers
    have started. ``options``: options of FedAvg.

    The average is weighted by the samples that were trained on in the round, which replace the ``weighted_by_key`` of
    the train function's metrics. ``plan`` is the plan of the present round. Clients that join are asked for their
    points first. Those that are slower than their profile get fewer steps from the next round on, and those that leave,
    or have no point, take no part; the log says so. A client whose reply cannot be used counts as failed for the round:
    arrays of other names or shapes, or that are not finite, figures that are missing or impossible, or other metrics
    than most clients have. Steps beyond those that it was asked for do not count.

    Raises: InputError for a round that no client can take part in.
    """

    def __init__(
        self,
        *,
        local_steps: int,
        batch_size: int,
        offer_within_s: float = 300.0,
        **options: Any,
    ):
        super().__init__(**options)
        for name, value in (("local_steps", local_steps), ("batch_size", batch_size)):
            if value < 1:
                raise InputError(name, value=value, allowed="1 or more")
        self.local_steps, self.batch_size = local_steps, batch_size
        self.offer_within_s = offer_within_s
        self.plan: RoundPlan | None = None
        self.clients: dict[int, FleetClient] = {}
        """Clients that made an offer, by their node."""
        self.slowness: dict[int, float] = {}
        """Seconds of a client's last round over what its profile predicts."""
        self._parts: dict[int, ClientRound] = {}
        self._left_out: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    # ------------------------------------------------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Plan the round. Returns: a message for each client that takes part."""
        nodes = [one.metadata.dst_node_id for one in super().configure_train(server_round, arrays, config, grid)]
        if not nodes:
            return []
        self._ask_offers([node for node in nodes if node not in self.clients], grid)
        present = [slowed(self.clients[node], self.slowness.get(node, 1.0)) for node in nodes if node in self.clients]
        if not present:
            raise InputError("no client made an offer", hint="add a PowerCapMod to their ClientApp")
        self.plan = plan_round(present, steps=self.local_steps)
        self._parts = {int(part.name): part for part in self.plan.parts}
        self._shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        if self.plan.left_out != self._left_out:
            self._left_out = self.plan.left_out
            for name, reason in self._left_out.items():
                log(INFO, "configure_train: node %s takes no part: %s", name, reason)
        log(INFO, "configure_train: %d clients for %.4g s", len(self._parts), self.plan.seconds)
        return [self._message(node, arrays, config) for node in self._parts]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what arrived. Returns: the arrays, and metrics with the round's seconds, joules and watts."""
        figures: dict[int, RoundFigures] = {}

        def check(reply: Message) -> None:
            if reply.metadata.src_node_id not in self._parts:
                raise InputError("a reply to no message of this round")
            check_arrays(reply, self._shapes)
            figures[reply.metadata.src_node_id] = figures_of(reply)

        usable, errors = self._usable(replies, check)
        own = [metrics_of(reply) for reply in usable]
        for reply, metrics in zip(usable, own, strict=True):
            node = reply.metadata.src_node_id
            part = self._parts[node]
            metrics[STEPS] = min(figures[node].steps, part.steps)
            metrics[self.weighted_by_key] = metrics[STEPS] * part.point.batch_size
        answered = {reply.metadata.src_node_id for reply in usable}
        for node in self._parts:
            self._learn(node, figures[node] if node in answered else None)
        arrays, metrics = super().aggregate_train(server_round, [*usable, *errors])
        if metrics is not None:  # of the fleet, where an average over clients says little
            metrics[SECONDS] = max(one[SECONDS] for one in own)
            for key in (JOULES, STEPS):
                metrics[key] = sum(one[key] for one in own)
            metrics[WATTS] = metrics[JOULES] / metrics[SECONDS]
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of those that can be averaged."""
        usable, errors = self._usable(replies, partial(check_weight, name=self.weighted_by_key))
        return super().aggregate_evaluate(server_round, [*usable, *errors])

    # -------------------------------------------------------------------------------------------------------- replies

    def _usable(
        self, replies: Iterable[Message], check: Callable[[Message], None]
    ) -> tuple[list[Message], list[Message]]:
        """Split replies into usable ones, and errors, which Flower logs. ``check`` raises for an unusable reply."""
        errors, usable = [], []
        for reply in replies:
            if reply.has_error():
                errors.append(reply)
                continue
            try:
                check(reply)
            except Exception as error:  # noqa: BLE001 - whatever a client sends, the others go on
                self._failed(reply, str(error))
            else:
                usable.append(reply)
        return alike(usable, self._failed), errors

    def _failed(self, reply: Message, why: str) -> None:
        log(INFO, "\t> The reply of node %s is left out: %s", reply.metadata.src_node_id, _last_line(why))

    # -------------------------------------------------------------------------------------------------------- clients

    def _ask_offers(self, nodes: list[int], grid: Grid) -> None:
        """Ask new nodes for their points."""
        question = RecordDict({OFFER: ConfigRecord({BATCH_SIZE: self.batch_size})})
        messages = list(self._construct_messages(question, nodes, MessageType.TRAIN))
        for reply in grid.send_and_receive(messages, timeout=self.offer_within_s) if messages else ():
            node = reply.metadata.src_node_id
            if reply.has_error():
                log(INFO, "configure_train: node %s makes no offer: %s", node, _last_line(reply.error.reason))
                continue
            try:
                self.clients[node] = FleetClient(str(node), offered(reply.content, self.batch_size))
            except Exception as error:  # noqa: BLE001 - whatever a client sends, the others go on
                log(INFO, "configure_train: node %s makes no offer that can be used: %s", node, _last_line(str(error)))

    def _message(self, node: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        part = self._parts[node]
        own = ConfigRecord(dict(config))
        own[LOCAL_STEPS], own[BATCH_SIZE] = part.steps, part.point.batch_size
        own[POINT] = json.dumps(part.point.fields())
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        (message,) = self._construct_messages(content, [node], MessageType.TRAIN)
        return message

    def _learn(self, node: int, figures: RoundFigures | None) -> None:
        """Learn from a client's round how fast it is."""
        part, factor = self._parts[node], UNANSWERED
        if figures is not None:
            factor = (figures.seconds / figures.steps) / (part.seconds / part.steps)
        slowness = factor * self.slowness.get(node, 1.0)
        self.slowness[node] = min(max(slowness, LEAST_SLOWNESS), MOST_SLOWNESS)


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason"
