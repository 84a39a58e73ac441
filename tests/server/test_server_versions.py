"""Stores and backups of other versions: one line says what to do, and only a server migrates."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from tests.server.conftest import opened
from tests.server.test_server_backup import restored

from wattune_server.backup import copy_before_migration
from wattune_server.jobs import queue
from wattune_server.store import Database, tokens
from wattune_server.store.database import StoreUnavailable, revisions
from wattune_server.store.schema import Base, TrainingRow

STORE_0008 = Path(__file__).with_name("store_0008.sql")


def at(folder, revision):
    """A store of a server at commit f7028ce, with an unfinished sweep; said to have this schema."""
    folder.mkdir()
    with closing(sqlite3.connect(folder / "wattune.db")) as database:
        database.executescript(STORE_0008.read_text())
        if revision not in revisions():
            database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        database.commit()
    return folder


def revision_of(folder):
    database = Database(f"sqlite:///{folder / 'wattune.db'}")
    with database.engine.connect() as connection:
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    database.close()
    return found


def commands(folder):
    yield "token", "list", "--store", folder
    yield "token", "make", "a", "--scope", "read", "--store", folder
    yield "token", "revoke", "a", "--store", folder


def test_commands_do_not_migrate_an_older_store(command, tmp_path):
    folder = at(tmp_path / "store", "0008")
    for arguments in commands(folder):
        code, out, said = command(*arguments)
        assert (code, out) == (2, ""), arguments
        assert f"schema version of the store: 0008; allowed: {revisions()[0]}; start its server once" in said
        assert said.count("\n") == 1
    assert revision_of(folder) == "0008"
    with opened(folder):  # as a server does
        pass
    assert revision_of(folder) == revisions()[0]
    assert command("token", "list", "--store", folder)[0] == 0


@pytest.mark.parametrize(("revision", "age"), [("9999", "a newer"), ("0012", "an older")])
def test_unknown_schema_is_refused_in_one_line(command, tmp_path, revision, age):
    folder = at(tmp_path / "store", revision)
    backup = "store", "backup", folder, tmp_path / "backup.tar"
    for arguments in (*commands(folder), backup, ("serve", "--port", 0, "--store", folder)):
        code, out, said = command(*arguments)
        assert (code, out) == (2, ""), arguments
        assert f"the store belongs to {age} version of wattune: schema {revision}" in said
        assert said.count("\n") == 1


def assert_migrated(store):
    with store.database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    with store.database.session(reads_only=True) as session:
        assert [(run.batch_size, run.samples) for run in queue.runs(session, "1" * 32)] == [(8, 512)]
        assert session.get(TrainingRow, "2" * 32).time_s == 5.0
        assert {token.name: token.device for token in tokens.listing(session)} == {"lab": "nano-1", "2": "2"}
        assert queue.begin(session, 9.0).id == "1" * 32, "the sweep goes on"
        session.rollback()


def test_older_store_is_backed_up_as_it_is_and_migrated(command, tmp_path):
    folder = at(tmp_path / "store", "0008")
    code, _, said = command("store", "backup", folder, tmp_path / "old.tar")
    assert code == 0, said
    assert revision_of(folder) == "0008"
    restored(tmp_path / "old.tar", tmp_path / "again")
    assert revision_of(tmp_path / "again") == "0008"
    for store in (folder, tmp_path / "again"):
        with opened(store) as migrated:
            assert_migrated(migrated)


def test_server_copies_the_database_before_it_migrates(tmp_path):
    folder = at(tmp_path / "store", "0008")
    database = Database(f"sqlite:///{folder / 'wattune.db'}")
    copy = copy_before_migration(folder, database)
    database.upgrade()
    assert copy_before_migration(folder, database) is None, "nothing is left to migrate"
    database.close()
    shutil.move(copy, folder / "wattune.db")
    assert revision_of(folder) == "0008"
    with opened(folder) as store:
        assert_migrated(store)


@pytest.mark.slow
def test_older_database_of_postgresql_is_copied_and_migrated(postgresql, tmp_path):
    script = STORE_0008.read_text().partition("BEGIN TRANSACTION;")[2].partition("COMMIT;")[0]
    for sqlite, ours in (("DOUBLE", "DOUBLE PRECISION"), ("INTEGER", "BIGINT"), ("DEFAULT 0", "DEFAULT false")):
        script = script.replace(sqlite, ours)
    script = script.replace("ab',0)", "ab',false)").replace(",512,1,", ",512,true,")
    database = Database(postgresql.new())
    with database.engine.begin() as connection:
        # The notes come last, since they refer to trainings.
        for statement in sorted(script.split(";\n"), key=lambda statement: "run_notes" in statement):
            connection.exec_driver_sql(statement)
    copy = copy_before_migration(tmp_path, database)
    assert copy.stat().st_size > 1000
    with opened(tmp_path / "store", database.url) as store:
        assert_migrated(store)
    database.close()


def test_a_database_with_other_tables_of_these_names_is_left_alone(tmp_path):
    path = tmp_path / "wattune.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE jobs (x int)")
        database.commit()
    store = Database(f"sqlite:///{path}")
    with pytest.raises(
        StoreUnavailable, match="tables of these names, but not of a store: jobs; give an empty database"
    ):
        store.upgrade()
    store.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("jobs",)]
