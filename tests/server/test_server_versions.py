"""Stores and backups of other versions: one line says what to do, and only a server migrates."""

from __future__ import annotations

import json
import tarfile

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text
from tests.server.conftest import opened
from tests.server.test_server_backup import changed

from wattune.cli import main
from wattune.server.store import Database
from wattune.server.store.database import MIGRATIONS, revisions


@pytest.fixture
def wattune(capsys, monkeypatch):
    """Call the command line in this process: (arguments) -> (exit code, all that it says)."""
    monkeypatch.setattr("wattune.server.logs.configure", lambda: None)

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def at(folder, revision):
    """A store whose tables have the schema of a revision."""
    folder.mkdir()
    database, config = Database(f"sqlite:///{folder / 'wattune.db'}"), Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head" if revision == "9999" else revision)
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    database.close()
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
    yield "store", "backup", folder, folder.parent / "backup.tar"


def test_commands_do_not_migrate_an_older_store(wattune, tmp_path):
    folder = at(tmp_path / "store", "0001")
    for arguments in commands(folder):
        code, said = wattune(*arguments)
        assert code == 2, arguments
        assert f"schema version of the store: 0001; allowed: {revisions()[0]}; start its server once" in said
        assert said.count("\n") == 1
    assert revision_of(folder) == "0001"
    with opened(folder):  # as a server does
        pass
    assert revision_of(folder) == revisions()[0]
    assert wattune("token", "list", "--store", folder)[0] == 0


def test_store_of_a_newer_version_is_refused_in_one_line(wattune, tmp_path):
    folder = at(tmp_path / "store", "9999")
    for arguments in (*commands(folder), ("serve", "--port", 0, "--store", folder)):
        code, said = wattune(*arguments)
        assert code == 2, arguments
        assert "the store belongs to a newer version of wattune: schema 9999" in said
        assert said.count("\n") == 1


def test_older_backup_is_restored(wattune, tmp_path):
    """A backup of the first schema, whose rows lack the columns that were added since."""
    with opened(tmp_path / "store"):
        pass
    assert wattune("token", "make", "lab", "--scope", "read", "--store", tmp_path / "store")[0] == 0
    assert wattune("store", "backup", tmp_path / "store", tmp_path / "new.tar")[0] == 0
    with tarfile.open(tmp_path / "new.tar") as archive:
        (row,) = archive.extractfile("tables/tokens.jsonl").read().splitlines()
    fields = json.loads(row)
    del fields["device"]
    older = json.dumps(fields).encode() + b"\n"

    def change(name, content):
        import hashlib

        if name == "manifest.json":
            manifest = json.loads(content)
            manifest["revision"] = "0001"
            manifest["tables"]["tokens"] = hashlib.sha256(older).hexdigest()
            return json.dumps(manifest).encode()
        return older if name == "tables/tokens.jsonl" else content

    changed(tmp_path / "new.tar", tmp_path / "old.tar", change)
    code, said = wattune("store", "restore", tmp_path / "old.tar", tmp_path / "again")
    assert code == 0, said
    assert "revoke again what was revoked since" in said
    assert "lab" in wattune("token", "list", "--store", tmp_path / "again")[1]
