"""All API routes, on both databases."""

from __future__ import annotations

import copy
import io
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select
from tests.server.conftest import Store
from tests.support import report_records as samples
from tests.support.server import api as made
from tests.support.server import dashboard as rows

from wattune.records import ProfileTable
from wattune.records.served import ServedModel, SweepStatus, digest
from wattune_server import logs
from wattune_server.store.schema import DeviceRow, JobRow, ModelRow


def test_models_are_read_and_deleted(client, store):
    made.problem(client.get("/v1/models/resnet8-digits"), 404)
    rows.put_model(store)
    found = client.get("/v1/models/resnet8-digits")
    assert ServedModel.parse(found.json()) == rows.MODEL
    made.put_model(store, "resnet8-digits", target=0.9)
    assert client.get("/v1/models/resnet8-digits").json()["target"] == 0.9
    assert client.delete("/v1/models/resnet8-digits").status_code == 204
    made.problem(client.delete("/v1/models/resnet8-digits"), 404)


def test_models_are_found_by_architecture_and_input_size(client, store):
    for name in ("b", "a"):
        made.put_model(store, name, input_shape=(3, 32, 32))
    made.put_model(store, "large", input_shape=(3, 64, 64))
    made.put_model(store, "deep", input_shape=(3, 32, 32), factory="resnet20")

    def found(architecture, shape):
        answer = client.get("/v1/models", params={"architecture": architecture, "input_shape": shape})
        return [ServedModel.parse(one).model for one in answer.json()["models"]]

    assert found("resnet8", "3x32x32") == ["a", "b"]
    assert found("resnet8", "3x64x64") == ["large"]
    assert found("resnet20", "3x32x32") == ["deep"]
    assert found("resnet20", "3x3x232") == []
    assert found("alexnet", "3x32x32") == []
    for wrong in ({"architecture": "resnet8"}, {"architecture": "resnet8", "input_shape": "3,32,32"}):
        made.problem(client.get("/v1/models", params=wrong), 422)


def test_a_model_of_an_earlier_version_hides_no_other(client, store, caplog):
    for name in ("a", "b"):
        made.put_model(store, name)
    with store.database.session() as session:
        row = session.get(ModelRow, "a")
        row.record = {**row.record, "factory": "gru"}
    page = client.get("/models").text
    assert ("/v1/models/a" in page, "/v1/models/b" in page) == (False, True)
    assert "the model a" in caplog.text
    assert client.delete("/v1/models/a").status_code == 204


def test_model_with_open_job_cannot_be_deleted(client, store):
    rows.put_model(store)
    job = rows.put_job(store)
    assert "cancel" in made.problem(client.delete("/v1/models/resnet8-digits"), 409)["hint"]
    assert client.post(f"/jobs/{job}/cancel", follow_redirects=False).status_code == 303
    assert client.delete("/v1/models/resnet8-digits").status_code == 204
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled", "what was done of a model outlives it"


@pytest.mark.parametrize("asked", [None, "bytes=100-", "bytes=9999-", "lines=1-2"])
def test_weights_are_sent_whole(client, store, asked):
    content = made.safetensors(500)
    made.put_model(store, weights=content)
    whole = client.get("/v1/models/m/weights", headers={} if asked is None else {"Range": asked})
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["accept-ranges"] == "none"


def test_model_without_weights_returns_404(client, store):
    made.put_model(store)
    made.problem(client.get("/v1/models/m/weights"), 404)


def test_same_request_returns_same_job(client, store):
    rows.put_model(store)
    asked = {"model": "resnet8-digits", "strategy": "full", "seeds": 2}
    first = client.post("/v1/jobs", json=asked)
    job = SweepStatus.model_validate(first.json()).job
    assert first.status_code == 201
    assert client.post("/v1/jobs", json={**asked, "seeds": 1}).status_code == 201
    for state, status in (("waiting", 200), ("cancelled", 201), ("parked", 200)):
        with store.database.session() as session:
            session.get_one(JobRow, job).state = state
        again = client.post("/v1/jobs", json=dict(reversed(asked.items())))
        assert (again.status_code, again.json()["job"]) == (status, job), state
    assert client.get(f"/v1/jobs/{job}").json() == again.json()


def test_invalid_job_request_is_rejected(client, store):
    made.problem(client.post("/v1/jobs", json={"model": "nothing"}), 404)
    rows.put_model(store)
    refused = client.post("/v1/jobs", json={"model": "resnet8-digits", "batch_sizes": [5]})
    assert "4, 8, 16" in made.problem(refused, 422)["allowed"]
    absent = "0" * 32
    for path in ("", "/curve"):
        made.problem(client.get(f"/v1/jobs/{absent}{path}"), 404)


def test_curve_is_available_when_job_is_done(client, store):
    rows.put_model(store)
    job = rows.put_job(store)
    made.problem(client.get(f"/v1/jobs/{job}/curve"), 409)
    rows.finish_job(store, job)
    curve = client.get(f"/v1/jobs/{job}/curve").json()
    assert curve | {"provenance": None} == samples.efficiency().dump() | {"provenance": None}


def test_profile_is_stored_once(client):
    table = samples.profile()
    first = client.post("/v1/profiles?device=nano-1", json=table.dump())
    assert first.status_code == 201
    made_id = first.json()["id"]
    assert made_id == digest(table.dump())[:32]
    again = client.post("/v1/profiles?device=nano-2", json=table.dump())
    assert (again.status_code, again.json()["id"]) == (200, made_id)
    assert ProfileTable.parse(client.get(f"/v1/profiles/{made_id}").json()) == table
    made.problem(client.get(f"/v1/profiles/{'0' * 32}"), 404)


def test_devices_report_their_status(client, store):
    assert client.put("/v1/devices/nano-1", json=made.status()).status_code == 204
    assert client.put("/v1/devices/a", json=made.status("a")).status_code == 204
    newest = made.status(share=0.9, profile="1" * 32, job="2" * 32)
    assert client.put("/v1/devices/nano-1", json=newest).status_code == 204
    client.app.state.statuses.flush()
    with store.database.session(reads_only=True) as session:
        found = {row.name: row.status for row in session.scalars(select(DeviceRow))}
    assert found == {"a": made.status("a"), "nano-1": newest}
    made.problem(client.put("/v1/devices/b", json=made.status("a")), 422)


def test_training_is_stored_once(client):
    sent: dict[str, Any] = {"params": {"device": "nano-1", "model": "resnet8-digits"}, "json": made.training()}
    first = client.post("/v1/trainings", **sent)
    # Clients of earlier versions send a key of their own, which makes no difference.
    again = client.post("/v1/trainings", **sent, headers={"Idempotency-Key": "run-1"})
    renamed = client.post("/v1/trainings", **{**sent, "params": {"device": "renamed"}})
    assert [one.status_code for one in (first, again, renamed)] == [201, 200, 200]
    assert first.json() == again.json() == renamed.json()
    assert client.get(f"/v1/trainings/{first.json()['id']}").json() == made.training()
    made.problem(client.get(f"/v1/trainings/{'0' * 32}"), 404)


@pytest.mark.parametrize("what", ["trainings", "jobs"])
def test_concurrent_identical_requests_are_one(client, store, what):
    rows.put_model(store)
    together = threading.Barrier(6)
    bodies = {"trainings": made.training(), "jobs": {"model": "resnet8-digits", "strategy": "full", "seeds": 2}}

    def send(number: int) -> Any:
        together.wait(10)
        params = {"device": f"nano-{number}"} if what == "trainings" else {}
        return client.post(f"/v1/{what}", params=params, json=bodies[what])

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))
    assert sorted(one.status_code for one in answers) == [200] * 5 + [201]
    assert len({one.json().get("id") or one.json()["job"] for one in answers}) == len(made.contents(store)[what]) == 1


def test_metrics_and_health_show_server_state(client, store: Store):
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert list(store.files.folder.iterdir()) == [], "being asked leaves nothing behind"
    rows.fill(store)
    client.get("/v1/models/resnet8-digits")
    client.get("/v1/models/not-there")
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    for line in (
        'wattune_http_requests_total{method="GET",route="/v1/models/{name}",status="200"} 1.0',
        'wattune_http_requests_total{method="GET",route="/v1/models/{name}",status="404"} 1.0',
        'wattune_http_requests_total{method="GET",route="other",status="404"} 1.0',
        "wattune_store_up 1.0",
        'wattune_jobs{state="done"} 1.0',
        'wattune_jobs{state="running"} 1.0',
        "wattune_devices 5.0",
        "wattune_devices_seen 3.0",
        'wattune_device_power_watts{device="tx2nx-1",kind="measured"} 7.71',
        "wattune_trainings 3.0",
    ):
        assert line in text, line
    assert "not-there" not in text, "what a client asks for is no label"
    assert 'wattune_http_request_seconds_bucket{le="0.25",method="GET",route="/v1/models/{name}"}' in text
    assert "process_resident_memory_bytes" in text


def test_every_response_has_a_logged_request_id(client, caplog):
    with caplog.at_level("INFO", logger="wattune_server.requests"):
        found = client.get("/v1/models/absent", headers={"X-Request-Id": "from-a-proxy.1"})
        other = client.get("/healthz", headers={"X-Request-Id": 'no good" id'})
    assert found.headers["x-request-id"] == "from-a-proxy.1"
    assert len(other.headers["x-request-id"]) == 16
    told = caplog.records[0]
    assert (told.request, told.status, told.route, told.path) == (
        "from-a-proxy.1",
        404,
        "/v1/models/{name}",
        "/v1/models/absent",
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_log_is_json_but_for_a_terminal(monkeypatch, is_terminal):
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    for name in ("wattune_server", "uvicorn", "uvicorn.access"):
        logger = logging.getLogger(name)
        for attribute in ("handlers", "level", "propagate"):
            monkeypatch.setattr(logger, attribute, copy.copy(getattr(logger, attribute)))
    logs.configure()
    logs.REQUESTS.info("two\nlines", extra={"path": '"/'})
    if is_terminal:
        assert stderr.getvalue() == "", "no line for each request"
        return
    line = json.loads(stderr.getvalue())
    assert stderr.getvalue().count("\n") == 1
    assert (line["level"], line["message"], line["path"]) == ("info", "two\nlines", '"/')
