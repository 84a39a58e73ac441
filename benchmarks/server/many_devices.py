"""CPU time of the pages that list devices, with 100,000 of them in the store: `python -m benchmarks many_devices`.

Aim: 50 ms for the list. A thousand devices report at present, and the others did in the past ten years, as happens if
devices come and go. The pages are requested in this process, so that its CPU time is theirs, with that of the client.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import insert, text
from tests.support.server.dashboard import status

from benchmarks.timing import keep
from wattune.server.application import create_app
from wattune.server.settings import Settings, sqlite_url
from wattune.server.store.database import Database
from wattune.server.store.file_store import FileStore
from wattune.server.store.schema import DeviceRow

NAME = "server_many_devices"
DEVICES, ONLINE = 100_000, 1_000
AIM_S = 0.05
ROUNDS = 20
YEARS_S = 10 * 365 * 86_400.0
PAGES = {"the list": "/", "a search by name": "/?find=nano-77", "one device": "/devices/nano-5?history=no"}


def main(_: list[str]) -> None:
    """Measure, and store the results."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(store=Path(folder), database_url=sqlite_url(Path(folder)), workers=0)
        database = Database(settings.database_url)
        database.upgrade()
        _fill(database)
        files = FileStore(settings.store / "files")
        with TestClient(create_app(settings, database, files), base_url="http://127.0.0.1:8484") as client:
            figures = {name: _cpu_s(client, path) for name, path in PAGES.items()}
            with database.session() as session:
                session.execute(text("DROP INDEX ix_devices_report"))
            figures["the list, without the index of devices by their last report"] = _cpu_s(client, PAGES["the list"])
        database.close()
    keep(NAME, {"devices": DEVICES, "online": ONLINE, "rounds": ROUNDS, "aim_s": AIM_S, "cpu_s": figures})


def _fill(database: Database) -> None:
    now_s = time.time()
    with database.session() as session:
        for begin in range(0, DEVICES, 1000):
            rows = (
                {
                    "name": f"nano-{number}",
                    "status": status(f"nano-{number}").model_dump(mode="json"),
                    "seen_s": now_s if number < ONLINE else now_s - YEARS_S * number / DEVICES,
                }
                for number in range(begin, begin + 1000)
            )
            session.execute(insert(DeviceRow), list(rows))


def _cpu_s(client: TestClient, path: str) -> dict[str, Any]:
    times = []
    for _ in range(ROUNDS + 1):
        begin_s = time.process_time()
        answer = client.get(path, headers={"Accept": "text/html"})
        times.append(time.process_time() - begin_s)
        assert answer.status_code == 200, answer.text
    return {"median": statistics.median(times[1:]), "least": min(times[1:]), "most": max(times[1:])}


def markdown(results: dict[str, Any]) -> str:
    """The results as a table."""
    lines = [
        f"{results['devices']:,} devices in SQLite, of which {results['online']:,} report at present; "
        f"{results['rounds']} requests each. Aim for the list: {1e3 * results['aim_s']:.0f} ms.",
        "",
        "| page | CPU time: median (least to most) |",
        "|---|---|",
    ]
    for name, cpu in results["cpu_s"].items():
        lines.append(f"| {name} | {1e3 * cpu['median']:.0f} ms ({1e3 * cpu['least']:.0f} to {1e3 * cpu['most']:.0f}) |")
    return "\n".join(lines) + "\n"
