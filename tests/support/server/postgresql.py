"""A PostgreSQL cluster for the tests: created, started, stopped and removed; it listens on a socket file alone."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.scratch import scratch_folder

REQUIRED = os.environ.get("WATTUNE_REQUIRE_POSTGRESQL") == "1"
"""Whether tests on PostgreSQL must run: then nothing is skipped."""

_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
"""A cluster that need not survive a power cut."""


def binaries() -> Path | None:
    """The folder of the newest server's programs; None where there is none, or no user it could run as."""
    if os.getuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return None
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return None if on_path is None else Path(on_path).resolve().parent


class Cluster:
    """A cluster in a folder of its own; as root it runs as the user postgres, which it refuses to be root for.

    ``connections``: how many it takes at once. ``durable``: it writes to the disk as a real one does.
    """

    def __init__(self, *, connections: int = 100, durable: bool = False):
        found = binaries()
        assert found is not None, "no PostgreSQL server is installed"
        self._bin = found
        self.folder = Path(tempfile.mkdtemp(prefix="wt-pg-")) if durable else scratch_folder()
        self._numbers = itertools.count()
        self._as = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(self.folder, "postgres", "postgres")
        self._process: subprocess.Popen[bytes] | None = None
        data = str(self.folder / "data")
        made = [str(self._bin / "initdb"), "-D", data, "-U", "wattune", "-A", "trust", "-E", "UTF8", "--no-sync"]
        self._run([*made, "--locale", "C.UTF-8"])
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "max_connections": connections}
        self._command = [str(self._bin / "postgres"), "-D", data]
        for setting in (*(f"{name}={value}" for name, value in settings.items()), *(() if durable else _FAST)):
            self._command += ["-c", setting]

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        # It ends with this process, also where that is killed.
        ends = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*ends, *self._command], stdout=log, stderr=log, cwd="/", start_new_session=True, **self._as
            )
        until = time.monotonic() + 60
        while True:
            asked = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder), "-U", "wattune", "-d", "postgres"]
            if subprocess.run(asked, check=False).returncode == 0:
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends all connections in order, SIGQUIT as a crash would."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def new(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self._run([str(self._bin / "createdb"), "-h", str(self.folder), "-U", "wattune", name])
        return f"postgresql+psycopg://wattune@/{name}?host={self.folder}"

    def close(self) -> None:
        """Stop it and leave nothing behind."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._as)
        assert done.returncode == 0, done.stderr
