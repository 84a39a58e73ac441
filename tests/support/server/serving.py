"""A server as a process, started by ``wattune-server serve``, and the process numbers of its sweeps."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from wattune_server.settings import sqlite_url
from wattune_server.store import Database

START_S = 60.0


class Serving:
    """A ``wattune-server serve`` that answers. ``log`` is what it and its sweeps say on stderr."""

    def __init__(self, store: Path, *options: str, log: Path, open_files: int | None = None):
        self.log, self.store = log, store
        command = [sys.executable, "-m", "wattune_server", "serve", "--port", "0", "--store", str(store), *options]
        if open_files is not None:
            command = ["sh", "-c", f'ulimit -S -n {open_files} && exec "$@"', "sh", *command]
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline().decode() if ready else ""
        found = re.match(r"wattune is serving on (https?://\S+), store: ", line)
        assert found, f"{line!r} {self.log.read_text()}"
        self.url = found[1]

    @property
    def sweeps(self) -> list[int]:
        """Process numbers of the sweeps that are its children."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _parent(entry) == self.process.pid and b"jobs.sweep_process" in _command(entry):
                found.append(int(entry.name))
        return sorted(found)

    def get(self, path: str) -> httpx.Response:
        """The answer to a GET."""
        return httpx.get(self.url + path, timeout=20)

    def json(self, path: str) -> Any:
        """The JSON of the answer to a GET."""
        return self.get(path).raise_for_status().json()

    def rows(self, table: Any, **equal: Any) -> list[Any]:
        """The rows of a table of its store, newest first."""
        return stored(self.store, table, **equal)

    def kill(self, pid: int | None = None) -> None:
        """SIGKILL to the server, or to one of its processes."""
        os.kill(pid or self.process.pid, signal.SIGKILL)
        if pid is None:
            self.process.wait(20)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and wait until it has: its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def stored(store: Path, table: Any, **equal: Any) -> list[Any]:
    """The rows of a table of a store on SQLite, newest first, that have these values."""
    database = Database(sqlite_url(store.absolute()))
    moment = getattr(table, "created_s", None) or table.seen_s
    try:
        with database.session(reads_only=True) as session:
            return list(session.scalars(sa.select(table).filter_by(**equal).order_by(moment.desc())))
    finally:
        database.close()


@contextmanager
def serving(store: Path, *options: str) -> Iterator[Serving]:
    """A server on a free port that ends with the context."""
    server = Serving(store, *options, log=store.parent / "server.log")
    try:
        yield server
    finally:
        server.end()


def free_port() -> int:
    """A port that no connection gets by chance: below those that the system hands out."""
    draws = random.Random()
    while True:
        port = draws.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def wait_for(what, timeout_s: float = 60.0, every_s: float = 0.05):
    """The first true value of ``what()``."""
    until_s = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < until_s, f"not in {timeout_s:g} s"
        time.sleep(every_s)
    return found


def lives(pid: int) -> bool:
    """True if a process runs."""
    return _parent(Path("/proc", str(pid))) is not None


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if stat[0] == "Z" else int(stat[1])


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
