"""A full disk or a lost database during requests: 503, nothing partially written, and full recovery afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from tests.server.conftest import Store, opened, served, started_cluster
from tests.support.server import api as made
from tests.support.server import dashboard as rows
from tests.support.server.postgresql import Cluster
from tests.support.server.serving import serving, wait_for

from wattune.errors import OutputError
from wattune.records import TrainingRecord
from wattune.records.served import digest
from wattune_server.api import READY_S
from wattune_server.store import Database

TRAINING = {"params": {"device": "nano-1", "model": "resnet8-digits"}, "json": made.training()}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL that a test may stop."""
    with started_cluster(connections=30, durable=True) as cluster:
        yield cluster


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk to fill cannot be mounted here: it takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(folder: Path) -> Path:
    """Leave not one byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return filler


def refused(answer: httpx.Response) -> None:
    """Not now, and when to ask again."""
    made.problem(answer, 503)
    assert int(answer.headers["retry-after"]) >= 1


def writes(client: httpx.Client) -> list[httpx.Response]:
    """One request of every kind that keeps something before it is answered."""
    return [
        client.post("/v1/trainings", **TRAINING),
        client.post("/v1/profiles?device=nano-1", json=made.profile()),
        client.post("/v1/jobs", json={"model": "resnet8-digits", "strategy": "full", "seeds": 1}),
    ]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_full_disk_stores_nothing_partially(small_disk, kind, request):
    """Where the database lies elsewhere, it is the files alone that cannot be written."""
    url = None if kind == "sqlite" else request.getfixturevalue("cluster").new()
    with opened(small_disk / "store", url) as store:
        rows.put_model(store)
        with served(store) as base, httpx.Client(base_url=base, timeout=30) as client:
            assert client.get("/readyz").status_code == 200
            filler = fill_up(small_disk)
            before = made.contents(store)
            for answer in writes(client) if kind == "sqlite" else []:
                refused(answer)
            with pytest.raises(OutputError):
                store.files.write(os.urandom(300_000))
            time.sleep(READY_S)  # a success counts for that long
            refused(client.get("/readyz"))
            assert client.get("/v1/models/resnet8-digits").status_code == 200, "what is there can still be read"
            after = made.contents(store)
            assert after["the folder"] == before["the folder"]
            assert kind == "postgresql" or after == before
            filler.unlink()
            assert client.get("/readyz").status_code == 200
            assert {answer.status_code for answer in writes(client)} <= {200, 201, 204}
            assert len(made.contents(store)["trainings"]) == 1, "sent again, it is there once"


@pytest.mark.slow
def test_database_lost_between_transactions(cluster, tmp_path):
    with opened(tmp_path / "store", cluster.new()) as store:
        rows.put_model(store)
        with served(store) as url, httpx.Client(base_url=url, timeout=30) as client:
            before = made.contents(store)
            cluster.stop(signal.SIGQUIT)
            for answer in writes(client):
                refused(answer)
            refused(client.get(made.READ))
            refused(client.get("/readyz"))
            assert client.get("/healthz").status_code == 200, "the process itself is well"
            assert "wattune_store_up 0.0" in store_metrics(store)
            assert not [path for path in store.files.folder.rglob("*") if path.is_file()]
            cluster.start()
            assert made.contents(store) == before
            assert client.get("/readyz").status_code == 200
            assert {answer.status_code for answer in writes(client)} <= {200, 201, 204}


@pytest.mark.slow
def test_database_is_locked_again_after_its_restart(cluster, tmp_path):
    database = Database(cluster.new())

    def locks() -> int:
        with database.session(reads_only=True) as session:
            return session.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"))

    with serving(tmp_path / "store", "--database", database.url) as server:
        assert locks() == 1
        cluster.stop(signal.SIGQUIT)
        wait_for(lambda: server.log.read_text().count("its lock is taken again") > 1)
        cluster.start()
        wait_for(lambda: locks() == 1, 20)
    database.close()


def store_metrics(store: Store) -> str:
    from wattune_server.prometheus import Metrics

    return Metrics(store.database).text().decode()


@pytest.mark.slow
def test_database_lost_within_a_transaction(cluster, tmp_path):
    """The request is held by another one that stores the same record, and then all is lost."""
    with opened(tmp_path / "store", cluster.new()) as store, served(store) as url:
        before = made.contents(store)
        record = TrainingRecord.parse(made.training()).dump()
        with ThreadPoolExecutor(1) as pool, store.database.engine.connect() as other:
            insert = "INSERT INTO trainings (id, device, record, created_s) VALUES (:id, 'a', '{}', 1.0)"
            other.execute(text(insert), {"id": digest(record)[:32]})
            sent = pool.submit(httpx.post, f"{url}/v1/trainings", **TRAINING, timeout=30)
            with store.database.engine.connect() as watching:
                waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                until = time.monotonic() + 20
                while not watching.execute(waits).scalar():
                    assert time.monotonic() < until, "the request never came to the lock"
                    watching.rollback()
                    time.sleep(0.02)
            assert not sent.done()
            cluster.stop(signal.SIGQUIT)
            refused(sent.result(30))
            other.invalidate()
        cluster.start()
        assert made.contents(store) == before
        assert httpx.post(f"{url}/v1/trainings", **TRAINING).status_code == 201


def test_locked_database_file_is_503(tmp_path, monkeypatch):
    monkeypatch.setattr("wattune_server.store.database.BUSY_S", 0.2)
    with opened(tmp_path / "store") as store:
        rows.put_model(store)
        with served(store) as url, httpx.Client(base_url=url, timeout=30) as client:
            before = made.contents(store)
            holder = sqlite3.connect(tmp_path / "store" / "wattune.db", isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            for answer in writes(client):
                refused(answer)
            assert client.put("/v1/devices/nano-9", json=made.status("nano-9")).status_code == 204
            assert client.get(made.READ).status_code == 200, "reading waits for nobody"
            holder.execute("ROLLBACK")
            holder.close()
            assert client.get("/devices/nano-9").status_code == 200, "a status waited for the database in memory"
            after = made.contents(store)
            assert len(after.pop("devices")) == 1
            assert before.pop("devices") == []
            assert after == before
            assert {answer.status_code for answer in writes(client)} <= {200, 201, 204}


def test_damaged_database_file_is_503(tmp_path):
    with opened(tmp_path / "store") as store:
        rows.put_model(store)
        store.database.close()
        path = tmp_path / "store" / "wattune.db"
        good = path.read_bytes()
        path.write_bytes(b"\xff" * len(good))
        with served(store) as url, httpx.Client(base_url=url, timeout=30) as client:
            for answer in (client.get(made.READ), client.get("/readyz"), *writes(client)):
                refused(answer)
            assert not [path for path in store.files.folder.rglob("*") if path.is_file()]
        assert path.read_bytes() == b"\xff" * len(good)


def test_removed_store_folder_is_503(tmp_path):
    """The files are on another disk than the database, and that one is no longer mounted."""
    with opened(tmp_path / "store") as store, served(store) as url, httpx.Client(base_url=url, timeout=30) as client:
        made.put_model(store, weights=made.safetensors())
        shutil.rmtree(store.files.folder)
        store.files.folder.write_text("a file where a folder should be")
        refused(client.get("/readyz"))
        with pytest.raises(OutputError, match="check the folder and the free space"):
            store.files.write(b"a curve")
        made.problem(client.get("/v1/models/m/weights"), 503)
        assert client.get("/v1/models/m").status_code == 200


def test_nothing_is_accepted_for_a_database_file_that_was_removed(tmp_path):
    with opened(tmp_path / "store") as store, served(store) as url, httpx.Client(base_url=url, timeout=20) as client:
        assert client.put("/v1/devices/a", json=made.status("a")).status_code == 204
        shutil.rmtree(tmp_path / "store")
        made.problem(client.post("/v1/trainings?device=a", json=made.training()), 503)
        made.problem(client.get("/readyz"), 503)
        assert not (tmp_path / "store").exists()


def test_response_waits_for_fsync(sqlite_store):
    with sqlite_store.database.session() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert session.execute(text("PRAGMA synchronous")).scalar_one() == 2, "FULL: a commit syncs the log"
