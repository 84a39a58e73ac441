"""Fixtures of the server tests: both databases, a store in each, and the API with and without a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.server.postgresql import REQUIRED, Cluster, binaries

from wattune_server.cli.main import main
from wattune_server.settings import Settings
from wattune_server.store import Database, FileStore


@dataclass(frozen=True)
class Store:
    """A store with its tables, as a server would open it."""

    settings: Settings
    database: Database
    files: FileStore


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Cluster]:
    """A cluster for all tests of this process; one that a test stops, it makes itself. Whatever needs one is slow."""
    with started_cluster() as cluster:
        yield cluster


@contextmanager
def started_cluster(**options: Any) -> Iterator[Cluster]:
    """A PostgreSQL that runs; the test is skipped where none is installed."""
    if binaries() is None:
        assert not REQUIRED, "WATTUNE_REQUIRE_POSTGRESQL=1, and no PostgreSQL server is installed"
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    cluster = Cluster(**options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Call the command line in this process: (arguments) -> (exit code, stdout, stderr)."""
    monkeypatch.setattr("wattune_server.logs.configure", lambda: None)  # it would last, for all tests of this process

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        folder = tmp_path / "store"
        folder.mkdir(exist_ok=True)
        return f"sqlite:///{folder / 'wattune.db'}"
    return request.getfixturevalue("postgresql").new()


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    """A store with no row yet, on each database."""
    with opened(tmp_path / "store", database_url) as found:
        yield found


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    """A store on SQLite alone, for what does not depend on the database."""
    with opened(tmp_path / "store") as found:
        yield found


@pytest.fixture
def client(store: Store) -> Iterator[Any]:
    """The API of this store, without a socket."""
    with asked(store) as found:
        yield found


@pytest.fixture
def live_server(store: Store) -> Iterator[str]:
    """The URL of the API of this store, behind a real socket; without workers."""
    with served(store) as url:
        yield url


@contextmanager
def opened(folder: Path, database_url: str | None = None, **changes: Any) -> Iterator[Store]:
    """A store in a folder. ``changes``: settings that differ from those of a local server."""
    folder.mkdir(parents=True, exist_ok=True)
    database = Database(database_url or f"sqlite:///{folder / 'wattune.db'}")
    try:
        database.upgrade()
        settings = Settings(**{"store": folder, "database_url": database.url, "workers": 0, **changes})
        yield Store(settings, database, FileStore(folder / "files"))
    finally:
        database.close()


@contextmanager
def asked(store: Store, base_url: str = "http://127.0.0.1:8484") -> Iterator[Any]:
    """The API of a store, as a client that needs no socket."""
    from starlette.testclient import TestClient

    from wattune_server.application import create_app

    with TestClient(create_app(*_of(store)), base_url=base_url) as found:
        yield found


@contextmanager
def served(store: Store) -> Iterator[str]:
    """The API in a thread of this process, with a socket; gives its URL."""
    from wattune_server.application import create_app
    from wattune_server.connections import Server

    server = Server(create_app(*_of(store)), store.settings)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # as on a slow network
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            until = time.monotonic() + 20
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                assert time.monotonic() < until, "the server did not start in 20 s"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


def _of(store: Store) -> tuple[Any, Database, FileStore]:
    return store.settings, store.database, store.files
