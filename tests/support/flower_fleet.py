"""A small fleet on Flower in one process: its apps, and a grid that hands messages to them at once."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable

import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from tests.support.device_examples import make_work
from torch.nn import functional

from wattune.devices import open_device
from wattune.integrations.flower import PowerCapMod
from wattune.records import ProfileCell, ProfileTable

BATCH = 8


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))


def train_steps(model: torch.nn.Module, steps: int, batch_size: int, seed: int = 0) -> float:
    """The loss of the last of these steps, each on new random samples whose class their inputs tell."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    draw, loss = torch.Generator().manual_seed(seed), torch.zeros(())
    for _ in range(steps):
        inputs = torch.randn(batch_size, 16, generator=draw)
        loss = functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def profile_of(spec: str, sizes: Iterable[int] = (BATCH,)) -> ProfileTable:
    """The exact table of steps on a simulated board."""
    cells = []
    for size in sizes:
        for knobs, exact in open_device(spec).exact_steps(make_work(size)).items():
            figures = {"power_mean_w": exact.power_mean_w, "power_peak_w": exact.power_peak_w}
            cells.append(ProfileCell(batch_size=size, **knobs, step_s=exact.step_s, **figures, steps=1))
    return ProfileTable(device=spec, workload="small", cells=tuple(cells))


def client_app(mod: Callable | None) -> ClientApp:
    """A ClientApp as a user writes it, with a mod or none."""
    app = ClientApp(mods=[] if mod is None else [mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config, model = message.content["config"], network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = train_steps(model, config["local-steps"], config["batch-size"], seed=context.node_id)
        metrics = MetricRecord({"loss": loss, "num-examples": 100})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        draw = torch.Generator().manual_seed(99)
        inputs = torch.randn(200, 16, generator=draw)
        accuracy = float((model(inputs).argmax(1) == inputs[:, :3].argmax(1)).float().mean())
        metrics = MetricRecord({"accuracy": accuracy, "num-examples": 200})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def arrays() -> ArrayRecord:
    torch.manual_seed(0)
    return ArrayRecord(network().state_dict())


class InProcessGrid(Grid):
    """A grid whose nodes are ClientApps in this process; ``silent`` ones get messages and never answer.

    Flower draws the order of its messages. Here the nodes answer in order, or ``last_first``.
    """

    def __init__(self, apps: dict[int, ClientApp], *, last_first: bool = False):
        self.apps, self.silent, self.last_first = apps, set[int](), last_first
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in apps}
        self.sent: list[Message] = []
        self._ids = itertools.count(1)
        # As Flower sets it in the process of a ServerApp, for the metadata of its messages.
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def join(self, node: int, app: ClientApp) -> None:
        self.apps[node], self.contexts[node] = app, Context(1, node, {}, RecordDict(), {})

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in sorted(messages, key=lambda one: one.metadata.dst_node_id, reverse=self.last_first):
            node = message.metadata.dst_node_id
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            if node in self.silent:
                continue
            try:
                replies.append(self.apps[node](message, self.contexts[node]))
            except Exception:  # noqa: BLE001 - Flower answers with an error, whatever it was
                replies.append(Message(Error(0, traceback.format_exc()), reply_to=message))
        return replies

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> None: ...

    def create_message(self, *arguments: object) -> None: ...

    def push_messages(self, messages: object) -> None: ...

    def pull_messages(self, message_ids: object) -> None: ...


def mod_of(spec: str, cap_w: float | None) -> PowerCapMod:
    return PowerCapMod(cap_w, profile=profile_of(spec), device=spec)
