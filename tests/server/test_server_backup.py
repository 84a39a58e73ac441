"""Backup of either database, restored by the tools that the page of the server names; damage is detected."""

from __future__ import annotations

import json
import subprocess
import threading
import time

import pytest
from sqlalchemy import select
from tests.server.conftest import opened
from tests.support.server import dashboard
from tests.support.server.served import model
from tests.support.server.served import request as asked

from wattune.errors import OutputError, WattuneError
from wattune_server.backup import backup
from wattune_server.jobs import queue
from wattune_server.store import model_catalog, sessions, tokens
from wattune_server.store.schema import Base, FileRow


def filled(store, runs=3):
    """A store with a model, a token and a sweep of which some runs are done."""
    with store.database.session() as session:
        model_catalog.put(session, model(), 1.0)
        tokens.make(session, "lab", "device", 2.0)
        job, _ = queue.submit(session, model(), asked(), 3.0)
    for number in range(runs):
        finished(store, job.id, number)
    return job.id


def finished(store, job_id, number):
    """A run of a sweep, with a curve of its own."""
    content = json.dumps({"run": number}).encode() * 1000
    curve = dashboard.curves()[number]
    with store.database.session() as session:
        queue.record_run(session, job_id, curve, store.files.write(content), len(content), 5.0)


def rows(store):
    with store.database.session(reads_only=True) as session:
        return {
            table.name: [dict(row) for row in session.execute(select(table).order_by(*table.primary_key)).mappings()]
            for table in Base.metadata.sorted_tables
        }


def restored(source, folder, url=None):
    """A store from a backup, as the page of the server says; ``url``: an empty database for a dump of PostgreSQL."""
    subprocess.run(["gzip", "-t", str(source)], check=True)
    folder.mkdir(mode=0o700)
    subprocess.run(["tar", "-xzf", str(source), "-C", str(folder)], check=True)
    if url is not None:
        address, dump = url.replace("+psycopg", ""), folder / "wattune.dump"
        subprocess.run(["pg_restore", "--single-transaction", "--no-owner", "-d", address, str(dump)], check=True)
        dump.unlink()
    return folder


def test_sessions_of_browsers_are_not_in_a_backup(sqlite_store, tmp_path):
    with sqlite_store.database.session() as session:
        value = sessions.begin(session, "lab", time.time())
    backup(sqlite_store.settings.store, sqlite_store.database, tmp_path / "backup.tar.gz")
    with (
        opened(restored(tmp_path / "backup.tar.gz", tmp_path / "again")) as again,
        again.database.session(reads_only=True) as session,
    ):
        assert sessions.token(session, value, time.time()) is None


def kept(store):
    return {path.name: path.read_bytes() for path in store.files.folder.glob("??/*")}


def target_of(store, request):
    """URL of an empty database of the kind of a store; None for SQLite."""
    return None if store.database.is_sqlite else request.getfixturevalue("postgresql").new()


def test_backup_restores_all(store, tmp_path, request):
    filled(store)
    target, url = tmp_path / "backup.tar.gz", target_of(store, request)
    assert backup(store.settings.store, store.database, target) == 3
    assert target.stat().st_mode & 0o777 == 0o600
    with opened(restored(target, tmp_path / "again", url), url) as again:
        assert rows(again) == rows(store)
        assert kept(again) == kept(store)
        with again.database.session() as session:  # the sweep goes on
            assert queue.begin(session, 7.0) is not None


def test_backup_during_writes_is_a_snapshot(store, tmp_path, request):
    filled(store, runs=0)
    ends = threading.Event()
    failures = []

    def work():
        number = 0
        while not ends.is_set():
            try:
                with store.database.session() as session:
                    job, _ = queue.submit(session, model(f"m{number}"), asked(f"m{number}", seeds=5), time.time())
                finished(store, job.id, number % 18)
            except WattuneError as error:
                failures.append(error)
                return
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(4):
            time.sleep(0.1)
            backup(store.settings.store, store.database, tmp_path / f"{number}.tar.gz")
    finally:
        ends.set()
        thread.join()
    assert failures == []
    counts = []
    for number in range(4):
        url = target_of(store, request)
        with opened(restored(tmp_path / f"{number}.tar.gz", tmp_path / f"again{number}", url), url) as again:
            found = rows(again)
            jobs = {row["id"] for row in found["jobs"]}
            # Every run with its job, and every curve that a run names with its file.
            assert {row["job_id"] for row in found["proxy_runs"]} <= jobs
            named = {row["curve_sha256"] for row in found["proxy_runs"]}
            assert named == {row["sha256"] for row in found["files"]} == set(kept(again))
            counts.append(len(jobs))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_backup_overwrites_nothing(sqlite_store, tmp_path):
    target = tmp_path / "backup.tar.gz"
    target.write_text("mine")
    with pytest.raises(OutputError, match="file exists"):
        backup(sqlite_store.settings.store, sqlite_store.database, target)
    assert target.read_text() == "mine"


def test_damaged_file_fails_the_backup(sqlite_store, tmp_path):
    filled(sqlite_store)
    with sqlite_store.database.session(reads_only=True) as session:
        path = sqlite_store.files.path(session.scalars(select(FileRow.sha256)).first())
    path.write_bytes(b"other")
    with pytest.raises(OutputError, match="is damaged"):
        backup(sqlite_store.settings.store, sqlite_store.database, tmp_path / "backup.tar.gz")
    assert list(tmp_path.glob("*backup*")) == []
