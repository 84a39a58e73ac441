"""Stores and backups of other versions: one line says what to do, and only a server migrates."""

from __future__ import annotations

import json
import tarfile

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import column, inspect, select, table, text
from tests.server.conftest import opened
from tests.server.test_server_backup import changed
from tests.support import report_records as samples
from tests.support.server import dashboard as made

from wattune.cli import main
from wattune.server.jobs import queue
from wattune.server.store import Database, training_records
from wattune.server.store.database import MIGRATIONS, migrate, revisions
from wattune.server.store.schema import Base, TrainingRow

OLD_TRAINING = ("id", "device", "model_name", "record", "created_s")
"""Columns of a training run up to the revision 0004."""


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


@pytest.mark.parametrize("into", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_older_backup_is_restored(wattune, tmp_path, request, into):
    """A backup of the first schema, whose rows lack the columns that were added since."""
    with opened(tmp_path / "store") as store:
        run = made.put_training(store, samples.run().training, "nano-1")
    assert wattune("token", "make", "lab", "--scope", "read", "--store", tmp_path / "store")[0] == 0
    assert wattune("store", "backup", tmp_path / "store", tmp_path / "new.tar")[0] == 0
    with tarfile.open(tmp_path / "new.tar") as archive:
        rows = {
            name: json.loads(archive.extractfile(f"tables/{name}.jsonl").read()) for name in ("tokens", "trainings")
        }
    del rows["tokens"]["device"]
    rows["trainings"] = {name: rows["trainings"][name] for name in OLD_TRAINING}
    job = {"id": "j", "model_name": "m", "model": {}, "request": {}, "state": "waiting", "reason": None, "warnings": []}
    rows["jobs"] = job | {"curve": None, "created_s": 1.0, "finished_s": None}
    unit = {"id": 7, "job_id": "j", "batch_size": 8, "seed": 0, "budget_samples": None, "state": "done", "attempts": 1}
    unit |= {"not_before_s": 1.0, "holder": None, "lease_until_s": None, "reason": None, "curve_sha256": "c"}
    rows["units"] = unit | {"samples": 512, "reached": True, "created_s": 1.0, "finished_s": 2.0}
    older = {f"tables/{name}.jsonl": json.dumps(row).encode() + b"\n" for name, row in rows.items()}

    def change(name, content):
        import hashlib

        if name == "manifest.json":
            manifest = json.loads(content)
            manifest["revision"] = "0001"
            for table in rows:
                manifest["tables"][table] = hashlib.sha256(older[f"tables/{table}.jsonl"]).hexdigest()
            return json.dumps(manifest).encode()
        return older.get(name.replace("proxy_runs", "units"), content)

    changed(tmp_path / "new.tar", tmp_path / "old.tar", change, {"tables/proxy_runs.jsonl": "tables/units.jsonl"})
    url = request.getfixturevalue("postgresql").new() if into == "postgresql" else None
    database = ("--database", url) if url else ()
    code, said = wattune("store", "restore", tmp_path / "old.tar", tmp_path / "again", *database)
    assert code == 0, said
    assert "revoke again what was revoked since" in said
    assert "lab" in wattune("token", "list", "--store", tmp_path / "again", *database)[1]
    with opened(tmp_path / "again", url) as again, again.database.session(reads_only=True) as session:
        assert session.get(TrainingRow, run).time_s == samples.run().training.time_s
        assert [(run.batch_size, run.samples) for run in queue.runs(session, "j")] == [(8, 512)]


def test_tables_are_those_of_the_newest_revision(store):
    with store.database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_figures_of_older_runs_become_columns(store):
    """Those that a new run gets; back at the older schema, the runs are what they were."""
    record = samples.run().training

    def changed_run(plan=None, **changes):
        return record.model_copy(update={"plan": record.plan.model_copy(update=plan or {}), **changes})

    runs = [
        (record, "resnet8-digits"),
        (changed_run(samples=2**63 - 1, ended="diverged", power_mean_w=4.5), None),
        (changed_run({"cap_w": None, "clock_mhz": None, "power_limit_w": 7.5}, reached=False, ended=None), None),
        (changed_run({"workload": "w" * 70, "batch_size": 2**63 - 1, "micro_batch_size": 1}, ended=None), None),
        (changed_run({"workload": None}), None),
    ]
    with store.database.session() as session:
        migrate(session.connection(), "0004")
        insert = f"INSERT INTO trainings ({', '.join(OLD_TRAINING)}) VALUES (:id, 'nano', :model, :record, 1.0)"
        for index, (run, model) in enumerate(runs):
            row = {"id": f"{index}", "model": model, "record": json.dumps(run.dump())}
            session.connection().execute(text(insert), row)
    store.database.upgrade()
    with store.database.session() as session:
        for index, (run, model) in enumerate(runs):
            row, figures = session.get(TrainingRow, f"{index}"), training_records.figures(run, model)
            assert {name: getattr(row, name) for name in figures} == figures
            assert (row.record, row.device, row.model_name) == (run.dump(), "nano", model)
        before = select(*(column(name) for name in OLD_TRAINING)).select_from(table("trainings")).order_by("id")
        rows = session.execute(before).all()
        migrate(session.connection(), "0004")
        assert session.execute(before).all() == rows
        assert len(session.execute(text("SELECT * FROM trainings")).keys()) == len(OLD_TRAINING)


def test_older_store_with_notes_of_a_run_opens(store):
    record = samples.run().training
    run = made.put_training(store, record, "nano-1")
    with store.database.session() as session:
        migrate(session.connection(), "0008")
        session.execute(text("INSERT INTO run_notes VALUES (:run, 'hot', 'Fan off.')"), {"run": run})
    store.database.upgrade()
    with store.database.session() as session:
        assert session.get(TrainingRow, run).record == record.dump()
        assert not inspect(session.connection()).has_table("run_notes")
