"""All API routes, on both databases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.server.conftest import Store
from tests.support import report_records as samples
from tests.support.server import api as made
from tests.support.server import dashboard as rows

from wattune.records import LearningCurve, ProfileTable
from wattune.records.served import ServedModel, SweepStatus, digest
from wattune.server.store.schema import JobRow, ModelRow


def test_models_are_listed_and_deleted(client, store):
    assert client.get("/v1/models").json() == []
    made.problem(client.get("/v1/models/resnet8-digits"), 404)
    rows.put_model(store)
    found = client.get("/v1/models/resnet8-digits")
    assert ServedModel.parse(found.json()) == rows.MODEL
    assert found.headers["etag"] == f'"{rows.MODEL.digest}"'
    known = client.get("/v1/models/resnet8-digits", headers={"If-None-Match": found.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")
    made.put_model(store, "resnet8-digits", target=0.9)
    assert client.get("/v1/models/resnet8-digits").headers["etag"] != found.headers["etag"]
    for name in ("b", "a"):
        made.put_model(store, name)
    assert [one["model"] for one in client.get("/v1/models").json()] == ["a", "b", "resnet8-digits"]
    assert [one["model"] for one in client.get("/v1/models?limit=1&after=a").json()] == ["b"]
    assert client.delete("/v1/models/a").status_code == 204
    made.problem(client.delete("/v1/models/a"), 404)


def test_a_model_of_an_earlier_version_hides_no_other(client, store, caplog):
    for name in ("a", "b"):
        made.put_model(store, name)
    with store.database.session() as session:
        row = session.get(ModelRow, "a")
        row.record = {**row.record, "factory": "gru"}
    assert [one["model"] for one in client.get("/v1/models").json()] == ["b"]
    assert "the model a" in caplog.text
    assert client.delete("/v1/models/a").status_code == 204


def test_model_with_open_job_cannot_be_deleted(client, store):
    rows.put_model(store)
    job = rows.put_job(store)
    assert "cancel" in made.problem(client.delete("/v1/models/resnet8-digits"), 409)["hint"]
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 200
    assert client.delete("/v1/models/resnet8-digits").status_code == 204
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled", "what was done of a model outlives it"


def test_weights_support_ranges_and_digest(client, store):
    content = made.safetensors(500)
    made.put_model(store, weights=content)
    whole = client.get("/v1/models/m/weights")
    assert whole.content == content
    assert whole.headers["etag"] == f'"{made.sha256(content)}"'
    assert whole.headers["accept-ranges"] == "bytes"
    import base64

    expected = base64.b64encode(bytes.fromhex(made.sha256(content))).decode()
    assert whole.headers["repr-digest"] == f"sha-256=:{expected}:"
    part = client.get("/v1/models/m/weights", headers={"Range": "bytes=100-"})
    assert (part.status_code, part.content) == (206, content[100:])
    assert part.headers["content-range"] == f"bytes 100-{len(content) - 1}/{len(content)}"
    last = client.get("/v1/models/m/weights", headers={"Range": "bytes=-10"})
    assert (last.status_code, last.content) == (206, content[-10:])
    middle = client.get("/v1/models/m/weights", headers={"Range": "bytes=5-9", "If-Range": whole.headers["etag"]})
    assert (middle.status_code, middle.content) == (206, content[5:10])
    changed = client.get("/v1/models/m/weights", headers={"Range": "bytes=5-9", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, content)
    known = client.get("/v1/models/m/weights", headers={"If-None-Match": whole.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize(
    ("asked", "status"),
    [("bytes=9999-", 416), ("bytes=-0", 416), ("bytes=5-2", 400), ("lines=1-2", 400), ("bytes=a-b", 400), ("x", 400)],
)
def test_unsatisfiable_range_is_rejected(client, store, asked, status):
    made.put_model(store, weights=made.safetensors())
    made.problem(client.get("/v1/models/m/weights", headers={"Range": asked}), status)


def test_model_without_weights_returns_404(client, store):
    made.put_model(store)
    made.problem(client.get("/v1/models/m/weights"), 404)


def test_same_request_returns_same_job(client, store):
    rows.put_model(store)
    asked = {"model": "resnet8-digits", "strategy": "full", "seeds": 2}
    first = client.post("/v1/jobs", json=asked)
    assert first.status_code == 201
    job = SweepStatus.model_validate(first.json())
    assert job.state == "waiting"
    assert first.headers["location"] == f"/v1/jobs/{job.job}"
    again = client.post("/v1/jobs", json=dict(reversed(asked.items())))
    assert (again.status_code, again.json()["job"]) == (200, job.job)
    other = client.post("/v1/jobs", json={**asked, "seeds": 1})
    assert (other.status_code, other.json()["job"] != job.job) == (201, True)
    assert client.get(f"/v1/jobs/{job.job}").json() == again.json()
    assert [one["job"] for one in client.get("/v1/jobs").json()] == [other.json()["job"], job.job]
    assert [one["job"] for one in client.get(f"/v1/jobs?before={other.json()['job']}").json()] == [job.job]
    made.problem(client.post(f"/v1/jobs/{job.job}/retry"), 409)
    assert client.post(f"/v1/jobs/{job.job}/cancel").json()["state"] == "cancelled"
    made.problem(client.post(f"/v1/jobs/{job.job}/cancel"), 409)
    assert [one["job"] for one in client.get("/v1/jobs?state=cancelled&model=resnet8-digits").json()] == [job.job]
    assert client.post("/v1/jobs", json=asked).status_code == 201, "asked for again, it starts anew"
    with store.database.session() as session:
        session.get_one(JobRow, job.job).state = "parked"
    parked = client.post("/v1/jobs", json=asked)
    assert (parked.status_code, parked.json()["state"]) == (200, "parked"), "needs an operator"
    assert client.post(f"/v1/jobs/{job.job}/retry").json()["state"] == "waiting"
    assert client.post(f"/v1/jobs/{job.job}/cancel").status_code == 200
    assert client.post(f"/v1/jobs/{job.job}/retry").json()["state"] == "waiting"


def test_invalid_job_request_is_rejected(client, store):
    made.problem(client.post("/v1/jobs", json={"model": "nothing"}), 404)
    rows.put_model(store)
    refused = client.post("/v1/jobs", json={"model": "resnet8-digits", "batch_sizes": [5]})
    assert "4, 8, 16" in made.problem(refused, 422)["allowed"]
    absent = "0" * 32
    for method, path in [("GET", ""), ("GET", "/curve"), ("GET", "/runs/4/0"), ("POST", "/cancel"), ("POST", "/retry")]:
        made.problem(client.request(method, f"/v1/jobs/{absent}{path}"), 404)


def test_curve_is_available_when_job_is_done(client, store):
    rows.put_model(store)
    job = rows.put_job(store)
    made.problem(client.get(f"/v1/jobs/{job}/curve"), 409)
    made.problem(client.get(f"/v1/jobs/{job}/runs/4/0"), 404)
    rows.finish_job(store, job)
    curve = client.get(f"/v1/jobs/{job}/curve").json()
    assert curve | {"provenance": None} == made.efficiency() | {"provenance": None}
    run = client.get(f"/v1/jobs/{job}/runs/4/0")
    assert run.headers["etag"] == f'"{made.sha256(run.content)}"'
    assert LearningCurve.model_validate(run.json()).batch_size == 4


def test_profiles_are_found_by_key(client):
    table = samples.profile()
    first = client.post("/v1/profiles?device=nano-1", json=table.dump())
    assert first.status_code == 201
    made_id = first.json()["id"]
    assert made_id == digest(table.dump())[:32]
    again = client.post("/v1/profiles?device=nano-2", json=table.dump())
    assert (again.status_code, again.json()["id"]) == (200, made_id)
    assert ProfileTable.parse(client.get(f"/v1/profiles/{made_id}").json()) == table
    keyed = table.dump() | {
        "key": dict.fromkeys(
            ("device", "mode", "model", "input_shape", "data_type", "optimizer", "algorithm", "software"), "x"
        )
    }
    other = client.post("/v1/profiles?device=tx2", json=keyed).json()["id"]
    assert [one["id"] for one in client.get("/v1/profiles").json()] == [other, made_id], "the newest first"
    assert [one["id"] for one in client.get(f"/v1/profiles?before={other}").json()] == [made_id]
    key = digest(keyed["key"])
    (found,) = client.get("/v1/profiles", params={"key": key}).json()
    assert (found["id"], found["publisher"], found["board"]) == (other, "tx2", table.device)
    assert client.get("/v1/profiles", params={"key": "0" * 64}).json() == []
    made.problem(client.get(f"/v1/profiles/{'0' * 32}"), 404)
    made.problem(client.get(f"/v1/profiles?before={'0' * 32}"), 422)


def test_devices_report_status_and_plan(client):
    made.problem(client.get("/v1/devices/nano-1"), 404)
    made.problem(client.put("/v1/devices/nano-1/plan", json=made.plan()), 404)
    assert client.put("/v1/devices/nano-1", json=made.status()).status_code == 204
    assert client.put("/v1/devices/a", json=made.status("a")).status_code == 204
    told = client.put("/v1/devices/nano-1/plan", params={"profile": "1" * 32, "job": "2" * 32}, json=made.plan())
    assert told.status_code == 204
    assert client.put("/v1/devices/nano-1", json=made.status(share=0.9)).status_code == 204
    found = client.get("/v1/devices/nano-1").json()
    assert found["status"]["share"] == 0.9
    assert found["plan"] == made.plan(), "a new status leaves the plan"
    assert (found["profile_id"], found["job_id"]) == ("1" * 32, "2" * 32)
    assert [one["status"]["device"] for one in client.get("/v1/devices").json()] == ["a", "nano-1"]
    assert [one["status"]["device"] for one in client.get("/v1/devices?after=a&limit=1").json()] == ["nano-1"]
    made.problem(client.put("/v1/devices/b", json=made.status("a")), 422)


def test_training_is_stored_once(client):
    sent: dict[str, Any] = {"params": {"device": "nano-1", "model": "resnet8-digits"}, "json": made.training()}
    first = client.post("/v1/trainings", **sent)
    # Clients of earlier versions send a key of their own, which makes no difference.
    again = client.post("/v1/trainings", **sent, headers={"Idempotency-Key": "run-1"})
    renamed = client.post("/v1/trainings", **{**sent, "params": {"device": "renamed"}})
    assert [one.status_code for one in (first, again, renamed)] == [201, 200, 200]
    assert first.json() == again.json() == renamed.json()
    ids = [first.json()["id"]]
    for number in (2, 3):
        content = {**made.training(), "samples": made.training()["samples"] + number}
        ids.insert(0, client.post("/v1/trainings?device=nano-2", json=content).json()["id"])
    assert [one["id"] for one in client.get("/v1/trainings").json()] == ids
    assert [one["id"] for one in client.get(f"/v1/trainings?device=nano-2&before={ids[0]}").json()] == [ids[1]]
    (found,) = client.get("/v1/trainings?model=resnet8-digits").json()
    assert client.get(f"/v1/trainings/{found['id']}").json() == made.training()
    made.problem(client.get(f"/v1/trainings/{'0' * 32}"), 404)
    made.problem(client.get(f"/v1/trainings?before={'0' * 32}"), 422)


def test_concurrent_identical_trainings_are_one(client):
    together, record = threading.Barrier(8), made.training()

    def send(number: int) -> Any:
        together.wait(10)
        return client.post("/v1/trainings", params={"device": f"nano-{number}"}, json=record)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    (stored,) = client.get("/v1/trainings").json()
    assert sorted(one.status_code for one in answers) == [200] * 7 + [201]
    assert {one.json()["id"] for one in answers} == {stored["id"]}


def test_concurrent_identical_jobs_are_one(client, store):
    rows.put_model(store)
    together = threading.Barrier(6)

    def send(_: int) -> Any:
        together.wait(10)
        return client.post("/v1/jobs", json={"model": "resnet8-digits", "strategy": "full", "seeds": 2})

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))
    assert sorted(one.status_code for one in answers) == [200] * 5 + [201]
    assert len({one.json()["job"] for one in answers}) == 1
    (found,) = client.get("/v1/jobs").json()
    assert (found["runs_done"], found["runs_most"]) == (0, 12)


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
    with caplog.at_level("INFO", logger="wattune.server.requests"):
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


def test_log_line_is_one_json_object(capsys):
    import json
    import logging

    from wattune.server.logs import JsonLines

    record = logging.makeLogRecord({"name": "x", "levelno": 20, "levelname": "INFO", "msg": "two\nlines", "path": '"/'})
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line) | {"time": None} == {
        "time": None,
        "level": "info",
        "logger": "x",
        "message": "two\nlines",
        "path": '"/',
    }


def test_openapi_lists_exactly_the_routes(client):
    described = client.get("/v1/openapi.json").json()
    assert described["openapi"].startswith("3.")
    routes = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert ("PUT", "/v1/devices/{name}") in routes
    assert len(routes) == 28
    assert all(path.startswith("/v1/") or path in ("/healthz", "/readyz", "/metrics") for _, path in routes)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            scope = operation.get("x-scope")
            assert (scope is None) == (path in ("/healthz", "/readyz")), (method, path)
    import json
    import re

    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
    assert named <= set(described["components"]["schemas"])
