"""A fleet on Flower: a strategy that gives each client its operating point and its share of a round's steps.

    from wattune.integrations.flower import FleetStrategy, PowerCapMod

    client_app = ClientApp(mods=[PowerCapMod(6, profile="profile.json")])  # on each board
    FleetStrategy(local_steps=32, batch_size=32).start(grid=grid, initial_arrays=arrays, num_rounds=20)

Flower samples the nodes, sends, waits and aggregates; wattune decides where each client runs and for how many steps.
What a client offers and what it is asked to do travel in the messages of training. Whatever a client sends is checked
before it is used: a client that answers nonsense counts as failed for the round.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from pydantic import Field, ValidationError
from torch.optim.optimizer import register_optimizer_step_post_hook

from wattune.cap import PowerCap
from wattune.devices import Device, open_device, replayed
from wattune.errors import InputError
from wattune.planning.fleet import ClientRound, FleetClient, LocalPoint, RoundPlan, plan_round, points_under, slowed
from wattune.point import Knobs
from wattune.power.capped_run import CappedRun
from wattune.records import PointRecord, ProfileTable, StepWork
from wattune.records.base import BatchSize, NotNegative, Positive, Value, in_words

__all__ = ["FleetStrategy", "PowerCapMod"]

OFFER = "wattune-offer"
"""Record of an offer: asked for by a train message that has one, and answered with the client's points."""

POINT = "wattune-point"
"""Entry of the configuration: the operating point, as JSON in the flat form of records."""

LOCAL_STEPS, BATCH_SIZE = "local-steps", "batch-size"
SECONDS, JOULES, WATTS, STEPS = "wattune-seconds", "wattune-joules", "wattune-watts", "wattune-steps"

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

    def __init__(self, *, local_steps: int, batch_size: int, offer_within_s: float = 300.0, **options: Any):
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
        for name, reason in self.plan.left_out.items():
            log(INFO, "configure_train: node %s takes no part: %s", name, reason)
        log(INFO, "configure_train: %d clients for %.4g s", len(self._parts), self.plan.seconds)
        return [self._message(node, arrays, config) for node in self._parts]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what arrived. Returns: the arrays, and metrics with the round's seconds, joules and watts."""
        figures: dict[int, _RoundFigures] = {}

        def check(reply: Message) -> None:
            if reply.metadata.src_node_id not in self._parts:
                raise InputError("a reply to no message of this round")
            _check_arrays(reply, self._shapes)
            figures[reply.metadata.src_node_id] = _figures_of(reply)

        usable, errors = self._usable(replies, check)
        own = {reply.metadata.src_node_id: _metrics_of(reply) for reply in usable}
        for node, part in self._parts.items():
            factor = UNANSWERED
            if node in own:
                metrics, told = own[node], figures[node]
                metrics[STEPS] = min(told.steps, part.steps)
                metrics[self.weighted_by_key] = metrics[STEPS] * part.point.batch_size
                factor = (told.seconds / told.steps) / (part.seconds / part.steps)
            slowness = factor * self.slowness.get(node, 1.0)
            self.slowness[node] = min(max(slowness, LEAST_SLOWNESS), MOST_SLOWNESS)
        arrays, metrics = super().aggregate_train(server_round, [*usable, *errors])
        if metrics is not None:  # of the fleet, where an average over clients says little
            metrics[SECONDS] = max(one[SECONDS] for one in own.values())
            for key in (JOULES, STEPS):
                metrics[key] = sum(one[key] for one in own.values())
            metrics[WATTS] = metrics[JOULES] / metrics[SECONDS]
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of those that can be averaged."""
        usable, errors = self._usable(replies, partial(_check_weight, name=self.weighted_by_key))
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
                _leave_out(reply, str(error))
            else:
                usable.append(reply)
        return _alike(usable), errors

    # -------------------------------------------------------------------------------------------------------- clients

    def _ask_offers(self, nodes: list[int], grid: Grid) -> None:
        """Ask new nodes for their points."""
        question = RecordDict({OFFER: ConfigRecord({BATCH_SIZE: self.batch_size})})
        messages = list(self._construct_messages(question, nodes, MessageType.TRAIN))
        for reply in grid.send_and_receive(messages, timeout=self.offer_within_s) if messages else ():
            node = reply.metadata.src_node_id
            try:
                self.clients[node] = FleetClient(str(node), _offered(reply, self.batch_size))
            except Exception as error:  # noqa: BLE001 - whatever a client sends, the others go on
                log(INFO, "configure_train: node %s makes no offer that can be used: %s", node, _last_line(str(error)))

    def _message(self, node: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        part = self._parts[node]
        point = {LOCAL_STEPS: part.steps, BATCH_SIZE: part.point.batch_size, POINT: json.dumps(part.point.fields())}
        own = ConfigRecord({**config, **point})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        (message,) = self._construct_messages(content, [node], MessageType.TRAIN)
        return message


class PowerCapMod:
    """A mod of a ClientApp: trains at the point that the strategy asks for, below ``cap_w`` watts.

        app = ClientApp(mods=[PowerCapMod(6, profile="profile.json")])

    ``profile``: of this model on this board (`wattune profile`); ``device``: a spec, see ``wattune.open_device``. The
    train function takes ``local-steps`` optimizer steps with batches of ``batch-size``, both of which are in the
    message's ConfigRecord; the steps of torch's optimizers are counted. Its reply's metrics get ``wattune-seconds``,
    ``-joules``, ``-watts`` and ``-steps``. Evaluation runs at the board's safest setting. A simulated board replays the
    profile: each step takes the time and the power of its cell.

    Raises: InputError for a cap or a profile that cannot be used.
    """

    def __init__(
        self, cap_w: float | str | PowerCap | None, *, profile: ProfileTable | str | Path, device: str = "auto"
    ):
        self.cap = PowerCap.of(cap_w)
        self.profile = ProfileTable.load(profile) if isinstance(profile, (str, Path)) else profile
        self.device = device

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer what the strategy asks for, or hold the board while the ClientApp works.

        Raises: InputError, SafetyStop, DeviceError.
        """
        if message.metadata.message_type == MessageType.EVALUATE:
            return self._evaluate(message, context, call_next)
        if message.metadata.message_type != MessageType.TRAIN:
            return call_next(message, context)
        if OFFER in message.content:
            return Message(RecordDict({OFFER: self._offer(message)}), reply_to=message)
        return self._train(message, context, call_next)

    def _offer(self, message: Message) -> ConfigRecord:
        question: Any = message.content[OFFER]
        points = points_under(self.profile, self.cap, question[BATCH_SIZE])
        rows = [{**one.point.fields(), "step_s": one.step_s, "power_w": one.power_w} for one in points]
        return ConfigRecord({OFFER: json.dumps({"points": rows})})

    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        config: Any = next(iter(message.content.config_records.values()), {})
        if POINT not in config:
            raise InputError("the message asks for no operating point", hint="use FleetStrategy on the server")
        point = PointRecord.model_validate_json(config[POINT]).point
        device, steps = open_device(self.device), 0
        if self.profile.device != device.name:
            device.close()
            raise InputError("the profile is of another device", value=self.profile.device, allowed=device.name)
        if not device.executes_steps:
            device = replayed(self.profile)
        key, (batch, micro) = self.profile.key, point.shape
        data_type = key.data_type if key else "fp32"
        work = StepWork(samples=batch, micro_batch_size=micro, data_type=data_type, phases=(), peak_memory_bytes=0)

        def stepped(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if not device.executes_steps:
                with device.step(work):
                    pass
            run.check()

        hook = register_optimizer_step_post_hook(stepped)
        try:
            with self._held(device, point.knobs) as run:
                reply = call_next(message, context)
            figures = run.meter.figures()  # a round shorter than the time between two readings gets one at its end
        finally:
            hook.remove()
            device.close()
        if not steps:
            raise InputError("the train function took no step", hint="train with an optimizer of torch")
        metrics = next(iter(reply.content.metric_records.values()), None)
        if metrics is None:
            raise InputError("the train function's reply has no MetricRecord", hint="reply with num-examples in one")
        metrics[SECONDS], metrics[JOULES] = figures.time_s, figures.energy_j
        metrics[WATTS], metrics[STEPS] = figures.energy_j / figures.time_s, steps
        return reply

    def _evaluate(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        device = open_device(self.device)
        try:
            with self._held(device, device.safest):
                return call_next(message, context)
        finally:
            device.close()

    @contextmanager
    def _held(self, device: Device, knobs: Knobs) -> Iterator[CappedRun]:
        """Hold the device below the cap from this setting on. Raises: SafetyStop, DeviceError."""
        limit = self.cap.at_sensor(device.supply, device.sensor.window_s)
        with CappedRun(device, limit, knobs) as run:
            run.start()
            yield run
            run.check()


class _OfferedPoint(PointRecord):
    step_s: Annotated[Positive, Field(ge=1e-6, le=1e6)]
    power_w: Annotated[Positive, Field(le=1e6)]


class _Offer(Value):
    points: tuple[_OfferedPoint, ...]


class _RoundFigures(Value):
    """Figures of a client's round, from the metrics of its reply."""

    seconds: Positive = Field(alias=SECONDS)
    joules: NotNegative = Field(alias=JOULES)
    steps: BatchSize = Field(alias=STEPS)


def _offered(reply: Message, batch_size: int) -> tuple[LocalPoint, ...]:
    """The points of a client's offer for this batch size. Raises: InputError."""
    if reply.has_error():
        raise InputError(reply.error.reason)
    if OFFER not in reply.content:
        raise InputError("its ClientApp has no PowerCapMod")
    with _in_one_line():
        offer = _Offer.model_validate_json(str(reply.content[OFFER].get(OFFER)))
    for row in offer.points:
        if row.batch_size != batch_size:
            raise InputError("a point of the offer has batch size", value=row.batch_size, allowed=str(batch_size))
    return tuple(LocalPoint(row.point, row.step_s, row.power_w) for row in offer.points)


def _metrics_of(reply: Message) -> Any:
    """The metrics of a reply. Raises: InputError."""
    return _only(reply.content.metric_records, "MetricRecord")


def _figures_of(reply: Message) -> _RoundFigures:
    """The figures in a reply. Raises: InputError."""
    with _in_one_line():
        return _RoundFigures.model_validate(dict(_metrics_of(reply)))


def _check_weight(reply: Message, name: str) -> None:
    """Check that a reply has the metric that it is weighted by. Raises: InputError."""
    weight = _metrics_of(reply).get(name)
    if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise InputError(f"the metric {name}", value=weight, allowed="a number above 0")


def _check_arrays(reply: Message, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a reply has finite arrays of these shapes. Raises: InputError."""
    arrays: ArrayRecord = _only(reply.content.array_records, "ArrayRecord")
    if arrays.keys() != shapes.keys():
        raise InputError("the arrays of the reply", value=", ".join(arrays), allowed=", ".join(shapes))
    for name, array in arrays.items():
        values = array.numpy()
        if values.shape != shapes[name]:
            raise InputError(f"the shape of {name}", value=values.shape, allowed=str(shapes[name]))
        if not np.isfinite(values).all():
            raise InputError(f"the values of {name}", value="NaN or infinite", allowed="finite numbers")


def _alike(replies: Sequence[Message]) -> list[Message]:
    """Keep the replies with the same metrics as most others, the only ones that Flower averages.

    Of forms that equally many have, the one with more metrics counts, and numbers before lists, whichever answered
    first. Every reply has one record of metrics.
    """
    forms = [_form(_metrics_of(reply)) for reply in replies]
    counts = Counter(forms)
    usual = min(counts, key=lambda form: (-counts[form], -len(form), form), default=None)
    for reply, form in zip(replies, forms, strict=True):
        if form != usual:
            _leave_out(reply, "most clients have other metrics")
    return [reply for reply, form in zip(replies, forms, strict=True) if form == usual]


def _form(metrics: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The names of metrics, and the lengths of lists (-1: a number)."""
    return tuple(sorted((name, len(value) if isinstance(value, list) else -1) for name, value in metrics.items()))


def _only(records: Mapping[str, Any], kind: str) -> Any:
    if len(records) != 1:
        raise InputError(f"records of the kind {kind} in the reply", value=len(records), allowed="1")
    return next(iter(records.values()))


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Raise what pydantic finds as an InputError."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise InputError(place, value=str(first["input"])[:80], allowed=in_words(first)) from error


def _leave_out(reply: Message, why: str) -> None:
    log(INFO, "\t> The reply of node %s is left out: %s", reply.metadata.src_node_id, _last_line(why))


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason"
