"""Client of a wattune server: responses are validated and cached, uploads are delivered even after an outage."""

from __future__ import annotations

import hmac
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random
from typing_extensions import Self

from wattune.errors import InputError, RecordError, ServerError, ServerUnavailable, WattuneError
from wattune.records import ProfileTable, Record, SampleEfficiency, TrainingRecord
from wattune.records.served import (
    MODEL_NAME,
    OF_SIZE,
    DeviceStatus,
    ServedModel,
    SweepRequest,
    SweepStatus,
    digest,
)
from wattune.remote.cache import Cache, Outbox, Upload
from wattune.remote.connection import BACKOFF_S, Connection
from wattune.remote.download import download, is_whole

R = TypeVar("R", bound=Record)
Progress = Callable[[int, int, str], None]

OUTAGE_TIMEOUT_S = 600.0
"""Timeout in seconds of a device that needs a curve from an unavailable server."""

STATUS_S = 2.0
"""Timeout in seconds of a status report; the next report follows soon."""

POLL_S = (2.0, 5.0)
"""Least and longest interval in seconds between two looks at a job; random, so that a fleet does not look in step."""


class Client:
    """Client of the wattune server at a URL.

    ``token``: access token, by default from the environment variable ``WATTUNE_TOKEN``. ``cache``: cache folder, by
    default in the user's cache. ``notify``: called with messages for the user, e.g. that the server is unavailable.
    ``outage_timeout_s``: timeout of a call that needs a curve during an outage. Set ``SSL_CERT_FILE`` to use a custom
    certificate authority.

    Thread-safe. Raises: InputError, OutputError; every method ServerError and ServerRefused.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        cache: Path | None = None,
        notify: Callable[[str], None] | None = None,
        outage_timeout_s: float = OUTAGE_TIMEOUT_S,
        backoff_s: tuple[float, ...] = BACKOFF_S,
    ):
        self._connection = Connection(url, token=token, backoff_s=backoff_s)
        self.url = self._connection.url
        self._cache = Cache(self.url, cache)
        self._notify = notify or (lambda text: None)
        self._outage_timeout_s = outage_timeout_s
        self._outbox = Outbox(self._cache.folder / "outbox", self._notify)
        self._outage_reported = False
        self._messages: set[str] = set()
        self._delivering = threading.Lock()
        if self._connection.sends_plain_token:
            self._notify(f"the token and all records are sent to {self.url} unencrypted; use https to encrypt them")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def notify_once(self, text: str) -> None:
        """Call ``notify`` with a message unless it was sent before."""
        if text not in self._messages:
            self._messages.add(text)
            self._notify(text)

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    @property
    def pending(self) -> int:
        """Number of uploads that are not delivered yet."""
        return len(self._outbox.pending())

    # --------------------------------------------------------------------------------------------------------- models

    def model(self, name: str) -> ServedModel:
        """Get the description of a model, from the cache if the server is unavailable.

        ``name``: also an architecture and input size, such as "resnet18@3x32x32", of which the server has one model.

        Raises: ServerUnavailable if it is not in the cache; InputError for an invalid name, and if the server has no
        model of that architecture and input size, or several.
        """
        is_name = re.fullmatch(MODEL_NAME, name) is not None
        if not is_name and not re.fullmatch(OF_SIZE, name):
            allowed = "lower-case letters, digits, dots, dashes and underscores; or a size such as resnet18@3x32x32"
            raise InputError("model", value=name, allowed=allowed)
        kind, key = ("models", name) if is_name else ("sizes", name.replace("@", "."))
        try:
            data = self._request("GET", f"/v1/models/{name}") if is_name else self._only_model(name)
        except ServerUnavailable:
            entry = self._cache.get(kind, key)
            if entry is None:
                raise
            self._notify(f"using the model {name} cached on {entry.day}")
            return self._record(ServedModel, entry.value)
        model = self._record(ServedModel, data)
        if name not in (model.model, model.size):
            raise ServerError(f"the server {self.url} returned the model {model.model} instead of {name}")
        self._cache.put(kind, key, model.dump())
        return model

    def _only_model(self, size: str) -> object:
        """Get the description of the only model of an architecture and input size. Raises: InputError."""
        architecture, _, input_shape = size.partition("@")
        data = self._request("GET", "/v1/models", params={"architecture": architecture, "input_shape": input_shape})
        models = data.get("models") if isinstance(data, dict) else None
        if not isinstance(models, list):
            raise ServerError(f"the server {self.url} returned an invalid list of models")
        if not models:
            raise InputError("no such model on the server", value=size, hint=f"{self.url}/models lists them")
        if len(models) > 1:
            names = ", ".join(self._record(ServedModel, one).model for one in models)
            raise InputError("several models on the server", value=size, allowed=f"one of them by name: {names}")
        return models[0]

    def weights(self, model: ServedModel) -> Path | None:
        """Get the safetensors file with the model's initial weights; None if it has none.

        The file is downloaded once, and its hash is verified each time.

        Raises: ServerUnavailable; ServerError if the content does not match the description.
        """
        if model.weights is None:
            return None
        path = self._cache.path("weights", model.weights.sha256, ".safetensors")
        if is_whole(path, model.weights):
            return path
        return download(self._connection, f"/v1/models/{model.model}/weights", model.weights, path)

    # ----------------------------------------------------------------------------------------------------------- jobs

    def start(self, request: SweepRequest, model: ServedModel | None = None) -> SweepStatus:
        """Submit a sweep of proxy runs; the same request returns the same job.

        Raises: InputError if ``model`` is given and the server's model has changed.
        """
        status = self._status(self._request("POST", "/v1/jobs", body=request.model_dump(mode="json")))
        if model is not None and status.job != request.key(model.digest):
            raise InputError(
                f"the server's model {model.model} has changed since this run began", hint="start a new run"
            )
        return status

    def _when_done(self, job: str, progress: Progress | None) -> SweepStatus:
        """Look at a job until it is done. Each look says what is known, so that the server sends only changes.

        Raises: as ``sweep``.
        """
        known: Any = None
        while True:
            headers = {} if known is None else {"If-None-Match": f'"{digest(known)}"'}
            data = self._retrying(job)(self._request, "GET", f"/v1/jobs/{job}", headers=headers)
            if data is not None and data != known:
                known, status = data, self._status(data)
                if status.state == "done":
                    return status
                if status.ended:
                    raise _ended(status)
                if progress is not None:
                    progress(status.runs_done, status.runs_most, f"on the server, {status.state}")
            time.sleep(random.uniform(*POLL_S))

    def sweep(self, request: SweepRequest, model: ServedModel, progress: Progress | None = None) -> SampleEfficiency:
        """Submit a sweep and wait for its curve, which comes from the cache if the server is unavailable.

        ``progress`` is called with the runs done and their maximum. During an outage the call retries, unless the curve
        is in the cache.

        Raises: ServerUnavailable after an outage of more than ``outage_timeout_s``; ServerError if the job ends without
        a curve; InputError if the job has failed for good, or the server's model has changed.
        """
        job = request.key(model.digest)
        try:
            self._retrying(job)(self.start, request, model)
            status = self._when_done(job, progress)
            data = self._retrying(job)(self._request, "GET", f"/v1/jobs/{job}/curve")
        except ServerUnavailable as error:
            entry = self._cache.get("curves", job)
            if entry is None:
                raise ServerUnavailable(
                    f"{error}; the curve of this model is not available yet: continue with --resume when the server is "
                    "back"
                ) from error
            self._notify(f"using the curve cached on {entry.day}")
            return self._record(SampleEfficiency, entry.value)
        curve = self._record(SampleEfficiency, data)
        self._cache.put("curves", job, curve.dump())  # which never changes
        if progress is not None:
            progress(status.runs_done, status.runs_done, "done")
        return curve

    # ------------------------------------------------------------------------------------------------------- profiles

    def publish_profile(self, table: ProfileTable, *, device: str) -> str | None:
        """Upload a profile that this device measured; return its id, or None if the upload is pending."""
        return self._upload("/v1/profiles", {"device": device}, table)

    # -------------------------------------------------------------------------------------------- status and uploads

    def put_status(self, status: DeviceStatus) -> None:
        """Report the status of the device; dropped if the server is unavailable."""
        path, body = f"/v1/devices/{quote(status.device, safe='')}", status.model_dump(mode="json")
        self._request("PUT", path, body=body, retries=False, timeout_s=STATUS_S)

    def upload_training(self, record: TrainingRecord, *, device: str, model: str) -> str | None:
        """Upload the record of a training run; return its id, or None if the upload is pending."""
        return self._upload("/v1/trainings", {"device": device, "model": model}, record)

    def deliver(self) -> int:
        """Send the pending uploads; return how many remain. Errors of the server are notified, not raised."""
        self._deliver()
        return self.pending

    # -------------------------------------------------------------------------------------------------------- inside

    def _upload(self, path: str, params: dict[str, str], record: Record) -> str | None:
        body = record.dump()
        if (data := body["provenance"]["data"]) is not None:
            body["provenance"]["data"] = self._keyed(data)
        upload = Upload(path=path, params=params, body=body)
        try:
            # Stored first, so that it is delivered even after a crash; the server stores a repeated upload once.
            self._outbox.put(upload)
        except (WattuneError, OSError) as error:
            return self._send_without_outbox(upload, record, error)
        answer = self._deliver().get(upload.key)
        if any(upload.key in name for name in self._outbox.pending()):
            self._notify(f"the {record.name} record is stored and will be delivered later")
        return _id(answer)

    def _keyed(self, data: str) -> str:
        """The fingerprint of the data as this device alone can compute it: nobody else can tell whether a data set that
        they hold is the device's."""
        samples, _, fingerprint = data.rpartition("-")
        try:
            secret = self._cache.secret()
        except WattuneError:
            return samples
        return f"{samples}-{hmac.new(secret, fingerprint.encode(), 'sha256').hexdigest()[:16]}"

    def _send_without_outbox(self, upload: Upload, record: Record, why: Exception) -> str | None:
        """Try once to send an upload that could not be stored; a failure does not fail the run."""
        try:
            return _id(self._send(upload))
        except (WattuneError, OSError) as error:
            self._notify(f"the {record.name} record was lost: not delivered ({error}), and not stored: {why}")
            return None

    def _deliver(self) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        try:
            self._outbox.deliver(self._send, answers)
        except (WattuneError, OSError) as error:
            self._report(error)
        return answers

    def _send(self, upload: Upload) -> Any:
        return self._connection.request("POST", upload.path, params=upload.params, body=upload.body)

    def _request(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._connection.request(method, path, **options)
        except ServerUnavailable as error:
            self._report(error)
            raise
        self._outage_reported = False
        if self._outbox.pending() and self._delivering.acquire(blocking=False):
            try:
                self._deliver()
            finally:
                self._delivering.release()
        return answer

    def _report(self, error: Exception) -> None:
        if not isinstance(error, ServerUnavailable):
            self.notify_once(str(error))
        elif not self._outage_reported and not self._connection.is_closed:
            self._outage_reported = True
            self._notify(str(error))

    def _retrying(self, job: str) -> Retrying:
        """Retry during an outage, for ``outage_timeout_s``, unless the job's curve is in the cache."""
        return Retrying(
            retry=retry_if_exception(
                lambda error: isinstance(error, ServerUnavailable) and self._cache.get("curves", job) is None
            ),
            stop=stop_after_delay(self._outage_timeout_s),
            wait=wait_random(*POLL_S),
            reraise=True,
        )

    def _record(self, kind: type[R], data: object) -> R:
        try:
            return kind.parse(data, source=f"the {kind.name} of {self.url}")
        except RecordError as error:
            raise ServerError(str(error)) from error

    def _status(self, data: object) -> SweepStatus:
        try:
            return SweepStatus.model_validate(data)
        except ValidationError as error:
            raise ServerError(f"the server {self.url} returned an invalid job status") from error


def _id(answer: object) -> str | None:
    return str(answer["id"]) if isinstance(answer, dict) and "id" in answer else None


def _ended(status: SweepStatus) -> InputError | ServerError:
    why = status.reason or "no reason given"
    if status.state == "failed":
        return InputError("the server's sweep of this model has failed", value=why)
    how = "was cancelled" if status.state == "cancelled" else f"has stopped: {why}"
    return ServerError(f"the server's sweep {status.job} {how}; restart it on the server's page of jobs")
