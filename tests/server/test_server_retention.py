"""Removal of what is old, on both databases."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import update
from tests.support.server import api as made
from tests.support.server.served import model, request

from wattune_server.cli.main import main
from wattune_server.store import model_catalog, retention
from wattune_server.store.schema import DeviceRow, FileRow, JobRow, TrainingRow


@pytest.fixture
def job(client, store):
    """A store with one of everything; the id of its job."""
    with store.database.session() as session:
        model_catalog.put(session, model(), 0.0)
    assert client.put("/v1/devices/nano", json=made.status("nano")).status_code == 204
    assert client.post("/v1/profiles?device=nano", json=made.profile()).status_code == 201
    assert client.post("/v1/trainings?device=nano", json=made.training()).status_code == 201
    made.put_model(store, weights=made.safetensors())
    made.put_file(store, made.safetensors(9))
    return client.post("/v1/jobs", json=request().model_dump(mode="json")).json()["job"]


def test_only_what_is_old_and_unused_is_pruned(client, store, job):
    now_s = time.time()

    def prune(before_s):
        with store.database.session() as session:
            return retention.prune(session, store.files, before_s)

    client.app.state.statuses.flush()
    assert set(prune(now_s - 1000).values()) == {0}
    with store.database.session() as session:
        for table, column in ((DeviceRow, "seen_s"), (TrainingRow, "created_s"), (FileRow, "created_s")):
            session.execute(update(table).values({column: now_s - 2000}))
    assert prune(now_s - 1000) == {"jobs": 0, "devices": 1, "profiles": 0, "training records": 1, "files": 1}
    assert store.files.path(made.sha256(made.safetensors())).is_file(), "a model needs it"
    assert not store.files.path(made.sha256(made.safetensors(9))).is_file()
    assert client.get("/v1/models/m/weights").status_code == 200
    assert client.post(f"/jobs/{job}/cancel", follow_redirects=False).status_code == 303
    with store.database.session() as session:
        session.execute(update(JobRow).values(finished_s=now_s - 2000))
    assert prune(now_s - 1000)["jobs"] == 1
    client.app.state.job_answers.forget(job)
    made.problem(client.get(f"/v1/jobs/{job}"), 404)


def test_prune_is_a_command(sqlite_store, capsys):
    folder = sqlite_store.settings.store
    assert main(["store", "prune", str(folder), "--older", "90d"]) == 0
    assert "removed 0 jobs, 0 devices" in capsys.readouterr().out
    assert main(["store", "prune", str(folder), "--older", "soon"]) == 2
    assert "--older: soon" in capsys.readouterr().err
