"""The part of a wattune server in a fleet: it lends the model, the profiles of the boards, and a curve.

The strategy asks it, and clients get what they need in Flower's messages: boards reach no server but Flower's.
"""

from __future__ import annotations

import json
from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common import log

from wattune.errors import InputError
from wattune.records import ProfileKey, ProfileTable
from wattune.records.served import ServedModel, SweepRequest
from wattune.remote import Client
from wattune.workloads import Workload, device_workload

MODEL = "wattune-model"
"""Entry of a configuration: the server's description of the model, as JSON."""

OWN_DATA = Path("client.npz")
"""Stands for the client's data, which is not read."""


def lent_workload(config: ConfigRecord) -> Workload:
    """The workload that a ``FleetStrategy`` with a server trains, of the configuration in a message, without data.

    ``workload.model(0)`` builds the network, whose arrays come with the message, and
    ``workload.optimizer(network, config["batch-size"])`` its optimizer. Raises: InputError, RecordError, WorkloadError.
    """
    if MODEL not in config:
        raise InputError("the message has no model", hint="give FleetStrategy a server and the name of its model")
    model = ServedModel.parse(json.loads(str(config[MODEL])), source="the fleet's model")
    return device_workload(model.model_copy(update={"weights": None}), None, OWN_DATA)


class Lender:
    """A wattune server, seen from a strategy. ``model``: name of the model on the server.

    Raises: InputError, ServerError, ServerRefused, as all methods.
    """

    def __init__(self, url: str, model: str, token: str | None = None):
        self._url, self._token = url, token
        self._tables: dict[str, ProfileTable | None] = {}
        with self._client() as client:
            self._model = client.model(model)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes of the model, ascending."""
        return self._model.batch_sizes

    def description(self) -> str:
        """The model, as ``lent_workload`` reads it."""
        return json.dumps(self._model.dump())

    def arrays(self) -> ArrayRecord:
        """The arrays that training begins with: the server's weights, or random ones. Raises: WorkloadError."""
        with self._client() as client:
            workload = device_workload(self._model, client.weights(self._model), OWN_DATA)
        return ArrayRecord(workload.model(0).state_dict())

    def profile(self, key: ProfileKey) -> ProfileTable | None:
        """The newest profile with this key; None if the server has none."""
        name = key.model_dump_json()
        if self._tables.get(name) is None:  # another client may publish one while the fleet trains
            with self._client() as client:
                offers = client.profiles(key)
                self._tables[name] = client.profile(offers[0].id) if offers else None
        return self._tables[name]

    def relative_samples(self) -> dict[int, float]:
        """Batch size -> samples to target, relative to one of them; the server trains its proxy if it has no curve.

        Batch sizes that never reached the target are left out.
        """
        with self._client() as client:
            curve = client.sweep(SweepRequest(model=self._model.model), self._model)
        return {
            point.batch_size: point.relative_samples for point in curve.points if point.relative_samples is not None
        }

    def _client(self) -> Client:
        return Client(self._url, token=self._token, notify=lambda text: log(INFO, "wattune: %s", text))
