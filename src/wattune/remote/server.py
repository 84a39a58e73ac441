"""The client of a server: what it says is checked and kept, and what it cannot take now is delivered later."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from pydantic import ValidationError
from typing_extensions import Self

from wattune.errors import InputError, RecordError, ServerAway, ServerError, WattuneError
from wattune.records import EfficiencyCurve, Plan, ProfileKey, ProfileTable, Record, TrainingRecord
from wattune.records.served import MODEL_NAME, DeviceStatus, ServedModel, SweepRequest, SweepStatus, digest
from wattune.remote.cache import Cache
from wattune.remote.connection import WAITS_S, Connection
from wattune.remote.download import download, is_whole
from wattune.remote.outbox import Outbox, upload

R = TypeVar("R", bound=Record)
Progress = Callable[[int, int, str], None]

PATIENCE_S = 600.0
"""How long a device waits for a server that is away while it needs a curve of it."""

STATUS_S = 2.0
"""How long it may take to tell how a device is doing: the next time comes soon."""

POLLS_S = (0.25, 5.0)
"""Seconds between two looks at a job: at first, and at last."""


class Offer(NamedTuple):
    """A profile that the server has. ``publisher``: who measured it; ``created_s``: when, in seconds since 1970."""

    id: str
    board: str
    workload: str
    algorithm: str
    kind: str | None
    publisher: str
    created_s: float


class Server:
    """A wattune server by its URL.

    ``token``: what ``wattune token make`` gave, by default the environment variable ``WATTUNE_TOKEN``. ``cache``: the
    folder in which what is known of servers is kept, by default in the user's cache. ``tell``: is given a sentence
    where something is to be known, such as that the server is away. ``patience_s``: how long a curve is waited for
    while it is. A custom certificate authority stands in ``SSL_CERT_FILE``.

    It may be used from several threads. Raises: InputError, OutputError; every method ServerError and ServerRefused.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        cache: Path | None = None,
        tell: Callable[[str], None] | None = None,
        patience_s: float = PATIENCE_S,
        waits_s: tuple[float, ...] = WAITS_S,
    ):
        self._connection = Connection(url, token=token, waits_s=waits_s)
        self._cache = Cache(self._connection.url, cache)
        self._tell = tell or (lambda text: None)
        self._patience_s = patience_s
        self._outbox = Outbox(self._cache.folder / "outbox", self._tell)
        self._said_away = False
        self._said: set[str] = set()
        self._delivering = threading.Lock()
        if self._connection.is_open_to_others:
            self._tell(f"the token and all records go to {self.url} unencrypted; https would encrypt them")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tell_once(self, text: str) -> None:
        """Give ``tell`` a sentence that it was not given before."""
        if text not in self._said:
            self._said.add(text)
            self._tell(text)

    def close(self) -> None:
        """Give the sockets back."""
        self._connection.close()

    @property
    def url(self) -> str:
        """Its address."""
        return self._connection.url

    @property
    def waiting(self) -> int:
        """How many uploads wait to be delivered."""
        return len(self._outbox.waiting())

    # --------------------------------------------------------------------------------------------------------- models

    def model(self, name: str) -> ServedModel:
        """The description of a model; the one that was kept where the server is away.

        Raises: ServerAway where none was kept; InputError for what is no name.
        """
        if not re.fullmatch(MODEL_NAME, name):
            raise InputError("model", value=name, allowed="lower-case letters, digits, dots, dashes and underscores")
        try:
            found = self._record(ServedModel, self._get(f"/v1/models/{name}"))
        except ServerAway:
            kept = self._cache.get("models", name)
            if kept is None:
                raise
            self._tell(f"the model {name} is from the cache of {kept.day}")
            return self._record(ServedModel, kept.value)
        if found.model != name:
            raise ServerError(f"the server {self.url} gave the model {found.model} for {name}")
        self._cache.put("models", name, found.dump())
        return found

    def weights(self, model: ServedModel) -> Path | None:
        """The safetensors file with the model's initial weights, None where it has none; fetched once, its hash
        checked each time. Raises: ServerAway; ServerError where the content is not what the description says."""
        if model.weights is None:
            return None
        path = self._cache.path("weights", model.weights.sha256, ".safetensors")
        if is_whole(path, model.weights):
            return path
        return download(self._connection, f"/v1/models/{model.model}/weights", model.weights, path)

    # ----------------------------------------------------------------------------------------------------------- jobs

    def start(self, request: SweepRequest, model: ServedModel | None = None) -> SweepStatus:
        """Ask for a sweep of proxy runs, and of this very model where it is given; the same request again gives the
        same job. Raises: InputError where the server's model is another by now."""
        status = self._status(self._ask("POST", "/v1/jobs", body=request.model_dump(mode="json")))
        if model is not None and status.job != request.key(model.digest):
            raise InputError(
                f"the server's model {model.model} has changed since this run began", hint="begin a new run"
            )
        return status

    def job(self, job: str) -> SweepStatus:
        """How a job is doing."""
        return self._status(self._get(f"/v1/jobs/{quote(job, safe='')}"))

    def curve(self, job: str) -> EfficiencyCurve:
        """The curve of a finished job; the one that was kept where the server is away. A job never changes its curve.

        Raises: ServerAway where none was kept.
        """
        try:
            found = self._record(EfficiencyCurve, self._get(f"/v1/jobs/{quote(job, safe='')}/curve"))
        except ServerAway:
            kept = self._kept_curve(job)
            if kept is None:
                raise
            return kept
        self._cache.put("curves", job, found.dump())
        return found

    def wait_for_curve(self, job: str, progress: Progress | None = None) -> EfficiencyCurve:
        """The curve of a job as soon as it is finished. ``progress`` gets how many runs of how many are done.

        A server that is away is waited for, unless the curve was kept.

        Raises: ServerAway where it is away for longer than ``patience_s``; ServerError where the job ends without a
        curve; InputError where it can never be done as asked.
        """
        poll_s, last_s, told = POLLS_S[0], time.monotonic(), None
        while True:
            try:
                status = self.job(job)
                if status.state == "done":
                    found = self.curve(job)
                    if progress is not None:
                        progress(status.runs_done, status.runs_done, "done")
                    return found
                if status.ended:
                    raise _ended(status)
                last_s = time.monotonic()
                now = (status.runs_done, status.runs_most, f"on the server, {status.state}")
                if progress is not None and now != told:
                    progress(*now)
                told = now
            except ServerAway as error:
                kept = self._kept_curve(job)
                if kept is not None:
                    return kept
                self._check_patience(last_s, error)
            time.sleep(poll_s * random.uniform(0.8, 1.0))  # a fleet that waits for one job does not ask as one
            poll_s = min(1.3 * poll_s, POLLS_S[1])

    def sweep(self, request: SweepRequest, model: ServedModel, progress: Progress | None = None) -> EfficiencyCurve:
        """Ask for a sweep of this very model and wait for its curve, which while the server is away may be one that was
        kept.

        Raises: ServerAway where it is away for longer than ``patience_s``; ServerError where the job ends without a
        curve; InputError where it can never be done as asked, or the server's model is another by now.
        """
        job, begin_s = request.key(model.digest), time.monotonic()
        while True:
            try:
                self.start(request, model)
                break
            except ServerAway as error:
                kept = self._kept_curve(job)
                if kept is not None:
                    return kept
                self._check_patience(begin_s, error)
                time.sleep(POLLS_S[1])
        return self.wait_for_curve(job, progress)

    # ------------------------------------------------------------------------------------------------------- profiles

    def profiles(self, key: ProfileKey) -> list[Offer]:
        """Profiles of this very key, the newest first; those that were kept where the server is away."""
        name = digest(key.model_dump(mode="json"))
        try:
            found = self._get("/v1/profiles", params={"key": name})
            self._cache.put("offers", name, found)
        except ServerAway:
            kept = self._cache.get("offers", name)
            found = [] if kept is None else kept.value
        try:
            return [_offer(offer) for offer in found]
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(f"the server {self.url} gave no list of profiles") from error

    def profile(self, profile: str) -> ProfileTable:
        """A profile by its name there; the one that was kept where the server is away. Raises: ServerAway."""
        try:
            found = self._record(ProfileTable, self._get(f"/v1/profiles/{quote(profile, safe='')}"))
        except ServerAway:
            kept = self._cache.get("profiles", profile)
            if kept is None:
                raise
            return self._record(ProfileTable, kept.value)
        self._cache.put("profiles", profile, found.dump())
        return found

    def publish_profile(self, table: ProfileTable, *, device: str) -> str | None:
        """Give the server a profile that this device measured; its name there, None where it waits to be delivered."""
        return self._upload("/v1/profiles", {"device": device}, table)

    # ---------------------------------------------------------------------------------------- what the device does

    def put_status(self, status: DeviceStatus) -> None:
        """Tell how the device is doing; not kept where the server is away."""
        self._ask(
            "PUT",
            f"/v1/devices/{quote(status.device, safe='')}",
            body=status.model_dump(mode="json"),
            patient=False,
            timeout_s=STATUS_S,
        )

    def put_plan(self, device: str, plan: Plan, *, profile: str | None = None, job: str | None = None) -> None:
        """Tell what the device has chosen, and from which profile and job; not kept where the server is away."""
        params = {key: value for key, value in (("profile", profile), ("job", job)) if value is not None}
        path = f"/v1/devices/{quote(device, safe='')}/plan"
        self._ask("PUT", path, params=params, body=plan.dump(), patient=False, timeout_s=STATUS_S)

    def upload_training(self, record: TrainingRecord, *, device: str, model: str) -> str | None:
        """Give the server the record of a training; its name there, None where it waits to be delivered."""
        return self._upload("/v1/trainings", {"device": device, "model": model}, record)

    def deliver(self) -> int:
        """Deliver what waits; how many uploads still do. A server that is away, or refuses, raises nothing."""
        self._deliver()
        return self.waiting

    # -------------------------------------------------------------------------------------------------------- inside

    def _upload(self, path: str, params: dict[str, str], record: Record) -> str | None:
        what = upload("POST", path, params, record.dump())
        try:
            # First to the disk: whatever happens now, it is delivered, and by its key only once.
            self._outbox.put(what)
        except (WattuneError, OSError) as error:
            return self._unkept(what, record, error)
        answer = self._deliver().get(what["key"])
        if any(what["key"] in name for name in self._outbox.waiting()):
            self._tell(f"the {record.name} record is kept, and delivered at the next contact")
        return _id(answer)

    def _unkept(self, what: dict[str, Any], record: Record, why: Exception) -> str | None:
        """Send what cannot be kept until the server has it, so now or never; a run does not fail by it."""
        try:
            return _id(self._send(what))
        except (WattuneError, OSError) as error:
            self._tell(f"the {record.name} record is not delivered ({error}), nor kept for later: {why}")
            return None

    def _deliver(self) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        try:
            self._outbox.deliver(self._send, answers)
        except (WattuneError, OSError) as error:
            self._away(error)
        return answers

    def _send(self, upload: dict[str, Any]) -> Any:
        return self._connection.request(
            upload["method"],
            upload["path"],
            params=upload["params"],
            body=upload["body"],
            headers={"Idempotency-Key": upload["key"]},
        )

    def _get(self, path: str, *, params: dict[str, str] | None = None) -> Any:
        return self._ask("GET", path, params=params)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._connection.request(method, path, **options)
        except ServerAway as error:
            self._away(error)
            raise
        self._said_away = False
        if self._outbox.waiting() and self._delivering.acquire(blocking=False):
            try:
                self._deliver()
            finally:
                self._delivering.release()
        return answer

    def _away(self, error: Exception) -> None:
        if not isinstance(error, ServerAway):
            self.tell_once(str(error))
        elif not self._said_away and not self._connection.is_closed:
            self._said_away = True
            self._tell(str(error))

    def _check_patience(self, since_s: float, error: ServerAway) -> None:
        if time.monotonic() - since_s > self._patience_s:
            raise ServerAway(
                f"{error}; the curve of this model is not there yet: go on by --resume when the server is back"
            ) from error

    def _kept_curve(self, job: str) -> EfficiencyCurve | None:
        kept = self._cache.get("curves", job)
        if kept is None:
            return None
        self._tell(f"the curve is from the cache of {kept.day}")
        return self._record(EfficiencyCurve, kept.value)

    def _record(self, kind: type[R], data: object) -> R:
        try:
            return kind.parse(data, source=f"the {kind.name} of {self.url}")
        except RecordError as error:
            raise ServerError(str(error)) from error

    def _status(self, data: object) -> SweepStatus:
        try:
            return SweepStatus.model_validate(data)
        except ValidationError as error:
            raise ServerError(f"what {self.url} says of a job is not to be understood") from error


def _offer(found: dict[str, Any]) -> Offer:
    offer = Offer(**{field: found[field] for field in Offer._fields})
    if not re.fullmatch(r"[0-9a-f]{1,64}", offer.id):
        raise ValueError(offer.id)
    return offer._replace(publisher=str(offer.publisher)[:100], created_s=float(offer.created_s))


def _id(answer: object) -> str | None:
    return str(answer["id"]) if isinstance(answer, dict) and "id" in answer else None


def _ended(status: SweepStatus) -> InputError | ServerError:
    why = status.reason or "no reason is given"
    if status.state == "failed":
        return InputError("the server's sweep of this model can never be done", value=why)
    said = "was cancelled" if status.state == "cancelled" else f"has stopped: {why}"
    return ServerError(f"the server's sweep {status.job} {said}; it can be started again on the server's page of jobs")
