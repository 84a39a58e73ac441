"""A store with something to show on every page: records of a synthetic board."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from tests.support import report_records as samples

from wattune.records import Evaluation, LearningCurve, ProfileTable, TrainingRecord, provenance
from wattune.records.served import DeviceStatus, ServedModel, ServedProxy, SweepRequest, digest
from wattune_server.jobs import queue
from wattune_server.store import model_catalog, records
from wattune_server.store.schema import DeviceRow, JobRow, TrainingRow

MODEL = ServedModel(
    model="resnet8-digits",
    factory="resnet8",
    input_shape=(1, 8, 8),
    batch_sizes=samples.BATCH_SIZES,
    budget_samples=60_000,
    target=0.95,
    proxy=ServedProxy(data={"source": "digits"}, target=0.95),
)

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"
"""A text that must stay one, wherever it comes from."""


def status(name: str, **changes: Any) -> DeviceStatus:
    """A device in the middle of its training."""
    given = {
        "device": name,
        "board": "Jetson Nano 4 GB",
        "kind": "simulated",
        "model": MODEL.model,
        "step": "train",
        "share": 0.43,
        "says": "12,288 samples",
        "cap_w": 5.2,
        "power_w": 4.87,
        "batch_size": 16,
        "clock_mhz": 614.4,
        "metric": 0.905,
        "target": 0.95,
        "samples": 12_288,
    }
    return DeviceStatus.model_validate({**given, **changes})


def put_device(store: Any, said: DeviceStatus, *, ago_s: float = 0.0) -> None:
    """What a device says, as the API would keep it."""
    with store.database.session() as session:
        session.merge(DeviceRow(name=said.device, status=said.model_dump(mode="json"), seen_s=time.time() - ago_s))


def put_model(store: Any) -> None:
    """The model on offer."""
    with store.database.session() as session:
        model_catalog.put(session, MODEL, time.time())


def put_profile(store: Any, table: ProfileTable) -> str:
    """A profile; gives its id."""
    with store.database.session() as session:
        return records.add_profile(session, table, "nano-1", time.time())[0]


def put_training(
    store: Any, record: TrainingRecord, device: str, *, ago_s: float = 0.0, model: str | None = MODEL.model
) -> str:
    """A finished training; gives its id."""
    key = digest([device, ago_s, record.dump()])[:32]
    row = {"device": device, "model_name": model, "record": record.dump(), "created_s": time.time() - ago_s}
    with store.database.session() as session:
        session.merge(TrainingRow(id=key, **row, **records.figures(record, model)))
    return key


def curves() -> list[LearningCurve]:
    """Three seeds at every batch size, which reach the target."""
    found = []
    for batch_size, seed in itertools.product(samples.BATCH_SIZES, range(3)):
        metrics = [0.5 + 0.45 * step / (5 + seed) for step in range(1, 6 + seed)]
        evaluations = tuple(Evaluation(samples=1024 * n, metric=m, loss=1 - m) for n, m in enumerate(metrics, 1))
        reached: dict[str, Any] = {"reached": True, "samples": evaluations[-1].samples, "target": 0.95}
        found.append(
            LearningCurve(
                workload=MODEL.model,
                batch_size=batch_size,
                seed=seed,
                budget_samples=60_000,
                evaluations=evaluations,
                provenance=provenance("measured", seed=seed),
                **reached,
            )
        )
    return found


def put_job(store: Any, **request: Any) -> str:
    """A job with three seeds of every batch size, none of them begun; gives its id."""
    asked = SweepRequest.model_validate({"model": MODEL.model, "strategy": "full", "seeds": 3, **request})
    with store.database.session() as session:
        row, _ = queue.submit(session, MODEL, asked, time.time())
        return row.id


def finish_run(store: Any, job_id: str, curve: LearningCurve) -> None:
    """One run of a job is done, as the server would record it."""
    content = json.dumps(curve.dump()).encode()
    sha256 = store.files.write(content)
    with store.database.session() as session:
        assert queue.record_run(session, job_id, curve, sha256, len(content), time.time())
        job = session.get(JobRow, job_id)
        assert job is not None
        job.state = "running"


def finish_job(store: Any, job_id: str) -> None:
    """All of its runs are done, and its curve is there."""
    for curve in curves():
        finish_run(store, job_id, curve)
    with store.database.session() as session:
        job = session.get(JobRow, job_id)
        assert job is not None
        job.state, job.curve, job.finished_s = "done", samples.efficiency().dump(), time.time()


def fill(store: Any) -> dict[str, Any]:
    """Something on every page; gives the ids by what they are of."""
    put_model(store)
    records = samples.run()
    assert records.training is not None
    table = samples.profile()
    profile_id, done = put_profile(store, table), put_job(store)
    finish_job(store, done)
    open_job = put_job(store, target=0.94)
    for curve in curves()[:8]:
        finish_run(store, open_job, curve)
    put_device(store, status("nano-1", profile=profile_id, job=done))
    estimating = {"step": "estimate", "share": 0.2, "metric": None, "samples": None, "batch_size": None, "power_w": 2.1}
    put_device(store, status("nano-2", clock_mhz=None, says="7 runs of the proxy done", job=open_job, **estimating))
    tx2 = {"board": "Jetson TX2 NX", "cap_w": 7.5, "power_w": 7.71, "clock_mhz": 1109.25, "batch_size": 8}
    put_device(store, status("tx2nx-1", kind="measured", share=0.78, metric=0.938, profile=profile_id, **tx2))
    put_device(store, status("orin-1", board="Jetson Orin Nano", step="profile", share=0.6), ago_s=95)
    put_device(store, status("nano-3", step="done", share=1.0, metric=0.951, profile=profile_id), ago_s=700)
    runs = [
        put_training(store, slower(records.training, 1.0), "nano-1", ago_s=60),
        put_training(store, slower(records.training, 1.6), "tx2nx-1", ago_s=4000),
        put_training(store, slower(records.training, 0.8), "nano-3", ago_s=90_000),
    ]
    ids = {"profile": profile_id, "done": done, "open": open_job, "runs": runs, "table": table}
    return {**ids, "device": "nano-1"}


def slower(record: TrainingRecord, factor: float) -> TrainingRecord:
    """The same training in so many times the time, at half the change in power."""
    energy = factor**0.5
    return record.model_copy(
        update={
            "time_s": record.time_s * factor,
            "energy_j": record.energy_j * energy,
            "evaluations": tuple(
                e.model_copy(
                    update={
                        "time_s": record.time_s * factor * e.samples / record.samples,
                        "energy_j": record.energy_j * energy * e.samples / record.samples,
                    }
                )
                for e in record.evaluations
            ),
        }
    )
