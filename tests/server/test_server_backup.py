"""Backup and restore, into either database; damaged or conflicting input is rejected."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import shutil
import tarfile
import threading
import time

import pytest
from sqlalchemy import select
from tests.server.conftest import opened
from tests.support import report_records as samples
from tests.support.server.served import model
from tests.support.server.served import request as asked

from wattune.errors import InputError, OutputError, RecordError, WattuneError
from wattune.server.backup import backup, restore
from wattune.server.jobs import queue
from wattune.server.store import model_catalog, sessions, tokens
from wattune.server.store.schema import Base, FileRow


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
    curve = samples.curves(proxy=True)[number]
    with store.database.session() as session:
        queue.record_run(session, job_id, curve, store.files.write(content), len(content), 5.0)


def rows(store):
    with store.database.session(reads_only=True) as session:
        return {
            table.name: [dict(row) for row in session.execute(select(table).order_by(*table.primary_key)).mappings()]
            for table in Base.metadata.sorted_tables
        }


def test_sessions_of_browsers_are_not_in_a_backup(sqlite_store, tmp_path):
    with sqlite_store.database.session() as session:
        value = sessions.begin(session, "lab", time.time())
    backup(sqlite_store.settings.store, sqlite_store.database, tmp_path / "backup.tar")
    restore(tmp_path / "backup.tar", tmp_path / "again")
    with opened(tmp_path / "again") as again, again.database.session(reads_only=True) as session:
        assert sessions.token(session, value, time.time()) is None


def kept(store):
    return {path.name: path.read_bytes() for path in store.files.folder.glob("??/*")}


def target_of(store, request):
    """URL of an empty database of the kind of a store; None for SQLite."""
    return None if store.database.is_sqlite else request.getfixturevalue("postgresql").new()


def test_backup_restores_all(store, tmp_path, request):
    filled(store)
    target, url = tmp_path / "backup.tar", target_of(store, request)
    assert backup(store.settings.store, store.database, target) == 3
    assert target.stat().st_mode & 0o777 == 0o600
    assert restore(target, tmp_path / "again", url) == 3
    with opened(tmp_path / "again", url) as again:
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
            backup(store.settings.store, store.database, tmp_path / f"{number}.tar")
    finally:
        ends.set()
        thread.join()
    assert failures == []
    counts = []
    for number in range(4):
        url = target_of(store, request)
        restore(tmp_path / f"{number}.tar", tmp_path / f"again{number}", url)
        with opened(tmp_path / f"again{number}", url) as again:
            found = rows(again)
            jobs = {row["id"] for row in found["jobs"]}
            # Every run with its job, and every curve that a run names with its file.
            assert {row["job_id"] for row in found["proxy_runs"]} <= jobs
            named = {row["curve_sha256"] for row in found["proxy_runs"]}
            assert named == {row["sha256"] for row in found["files"]} == set(kept(again))
            counts.append(len(jobs))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_backup_and_restore_overwrite_nothing(sqlite_store, tmp_path):
    filled(sqlite_store)
    target, folder = tmp_path / "backup.tar", sqlite_store.settings.store
    target.write_text("mine")
    with pytest.raises(OutputError, match="file exists"):
        backup(folder, sqlite_store.database, target)
    assert target.read_text() == "mine"
    target.unlink()
    backup(folder, sqlite_store.database, target)
    before = rows(sqlite_store), kept(sqlite_store)
    with pytest.raises(OutputError, match="the folder is not empty"):
        restore(target, folder)
    assert (rows(sqlite_store), kept(sqlite_store)) == before


@pytest.mark.slow
def test_no_row_of_a_database_elsewhere_is_overwritten(sqlite_store, tmp_path, postgresql):
    target, url = tmp_path / "backup.tar", postgresql.new()
    with opened(tmp_path / "other", url) as other:
        filled(other, runs=1)
        backup(other.settings.store, other.database, target)
        theirs = rows(other)
        with pytest.raises(InputError, match="is not empty"):
            restore(target, tmp_path / "again", url)
        assert rows(other) == theirs
    with pytest.raises(InputError, match="another kind of database: postgresql"):
        restore(target, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def changed(source, target, change):
    """A copy of an archive of which ``change`` (name, content) -> content or None has changed the members."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            content = change(member.name, old.extractfile(member).read())
            if content is not None:
                entry = tarfile.TarInfo(member.name)
                entry.size = len(content)
                new.addfile(entry, io.BytesIO(content))
    return target


def _flip(content):
    return content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda name, content: _flip(content) if "sqlite/" in name else content, "sqlite/.* is damaged"),
        (lambda name, content: _flip(content) if "files/" in name else content, "files/.* is damaged"),
        (lambda name, content: None if "sqlite/" in name else content, "no database"),
        (lambda name, content: None if "files/" in name else content, "is missing"),
    ],
)
def test_damaged_backup_is_rejected_without_traces(sqlite_store, tmp_path, change, said):
    filled(sqlite_store)
    target = tmp_path / "backup.tar"
    backup(sqlite_store.settings.store, sqlite_store.database, target)
    damaged = changed(target, tmp_path / "damaged.tar", change)
    with pytest.raises(RecordError, match=said):
        restore(damaged, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_backup_is_rejected(sqlite_store, tmp_path, share):
    filled(sqlite_store)
    target = tmp_path / "backup.tar"
    backup(sqlite_store.settings.store, sqlite_store.database, target)
    content = target.read_bytes()
    target.write_bytes(content[: int(share * len(content.rstrip(b"\0")))])
    with pytest.raises(RecordError):
        restore(target, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("compression", [gzip, bz2, lzma])
def test_compressed_backup_is_restored_or_rejected_if_damaged(sqlite_store, tmp_path, compression):
    filled(sqlite_store)
    target = tmp_path / "backup.tar"
    backup(sqlite_store.settings.store, sqlite_store.database, target)
    content = compression.compress(target.read_bytes())
    target.write_bytes(content)
    assert restore(target, tmp_path / "whole") == 3
    refused = 0
    for place in range(0, len(content), len(content) // 10):
        target.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            restore(target, tmp_path / "again")
        except RecordError:
            refused += 1
            assert not (tmp_path / "again").exists()
        else:  # it hit what nobody reads, such as what fills up the last block
            with opened(tmp_path / "again") as again:
                assert rows(again) == rows(sqlite_store)
                assert kept(again) == kept(sqlite_store)
            shutil.rmtree(tmp_path / "again")
    assert refused >= 5


def test_backup_works_without_hard_links(sqlite_store, tmp_path, monkeypatch):
    def refuse(*names):
        raise PermissionError(errno.EPERM, "Operation not permitted")  # what vfat says

    monkeypatch.setattr("wattune.server.backup.os.link", refuse)
    filled(sqlite_store)
    target = tmp_path / "backup.tar"
    assert backup(sqlite_store.settings.store, sqlite_store.database, target) == 3
    assert restore(target, tmp_path / "again") == 3
    assert list(tmp_path.glob(".backup-*")) == []


def test_archive_member_names_cannot_escape(sqlite_store, tmp_path):
    filled(sqlite_store)
    target = tmp_path / "backup.tar"
    backup(sqlite_store.settings.store, sqlite_store.database, target)
    with tarfile.open(target, "a") as archive:
        for name in ("../outside", "/tmp/wattune-outside", "files/../../outside"):
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))
        link = tarfile.TarInfo("files/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    restore(target, tmp_path / "deep" / "again")
    found = {path.name for path in (tmp_path / "deep").rglob("*") if path.is_file()}
    assert found == {"wattune.db", *kept(sqlite_store)}


def test_damaged_file_fails_the_backup(sqlite_store, tmp_path):
    filled(sqlite_store)
    with sqlite_store.database.session(reads_only=True) as session:
        path = sqlite_store.files.path(session.scalars(select(FileRow.sha256)).first())
    path.write_bytes(b"other")
    with pytest.raises(OutputError, match="is damaged"):
        backup(sqlite_store.settings.store, sqlite_store.database, tmp_path / "backup.tar")
    assert list(tmp_path.glob("*backup*")) == []
