"""Removal of single rows and of what is old, on both databases."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import update
from tests.support.server import api as made
from tests.support.server.served import model, request

from wattune.cli import main
from wattune.server.store import model_catalog, retention
from wattune.server.store.schema import DeviceRow, FileRow, JobRow, TrainingRow


@pytest.fixture
def filled(client, store):
    """A store with one of everything: what can be removed, by its path."""
    with store.database.session() as session:
        model_catalog.put(session, model(), 0.0)
    assert client.put("/v1/devices/nano", json=made.status("nano")).status_code == 204
    profile = client.post("/v1/profiles?device=nano", json=made.profile()).json()["id"]
    training = client.post("/v1/trainings?device=nano", json=made.training()).json()["id"]
    job = client.post("/v1/jobs", json=request().model_dump(mode="json")).json()["job"]
    made.put_model(store, weights=made.safetensors())
    made.put_file(store, made.npz(), "npz")
    return {"job": f"/v1/jobs/{job}", "device": "/v1/devices/nano"} | {
        "profile": f"/v1/profiles/{profile}",
        "training": f"/v1/trainings/{training}",
    }


def test_rows_are_removed_once(client, filled):
    made.problem(client.delete(filled["job"]), 409)
    assert client.post(f"{filled['job']}/cancel").status_code == 200
    for path in filled.values():
        assert client.get(path).status_code == 200
        assert client.delete(path).status_code == 204
        made.problem(client.get(path), 404)
        made.problem(client.delete(path), 404)


def test_only_what_is_old_and_unused_is_pruned(client, store, filled):
    now_s = time.time()

    def prune(before_s):
        with store.database.session() as session:
            return retention.prune(session, store.files, before_s)

    assert client.get("/v1/devices").json()[0]["status"]["device"] == "nano", "written by now"
    assert set(prune(now_s - 1000).values()) == {0}
    with store.database.session() as session:
        for table, column in ((DeviceRow, "seen_s"), (TrainingRow, "created_s"), (FileRow, "created_s")):
            session.execute(update(table).values({column: now_s - 2000}))
    assert prune(now_s - 1000) == {"jobs": 0, "devices": 1, "profiles": 0, "training records": 1, "files": 1}
    assert store.files.holds(made.sha256(made.safetensors())), "a model needs it"
    assert not store.files.holds(made.sha256(made.npz()))
    assert client.get("/v1/models/m/weights").status_code == 200
    assert client.post(f"{filled['job']}/cancel").status_code == 200
    with store.database.session() as session:
        session.execute(update(JobRow).values(finished_s=now_s - 2000))
    assert prune(now_s - 1000)["jobs"] == 1
    made.problem(client.get(filled["job"]), 404)


def test_prune_is_a_command(sqlite_store, capsys):
    folder = sqlite_store.settings.store
    assert main(["store", "prune", str(folder), "--older", "90d"]) == 0
    assert "removed 0 jobs, 0 devices" in capsys.readouterr().out
    assert main(["store", "prune", str(folder), "--older", "soon"]) == 2
    assert "--older: soon" in capsys.readouterr().err
