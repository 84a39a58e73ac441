"""A fleet of simulated clients against a real server: `python -m benchmarks fleet [sqlite|postgresql ...]`.

Aims: 1,000 clients over 60 s, 50 at a time, none lost; p99 latency of the JSON calls under 250 ms; the API process
under 400 MB and without torch. The clients are threads of one process on the same machine, which takes its share of the
cores; every client has its own token and connection and sends a device's requests in their usual order, at an even
rate. The job that they all submit is already done: its curve is in the database. There are two loads: the aim's, with a
model, a curve, a plan and a record per client; and a whole run with weights, profile and status reports.

The aim's load runs several rounds on each database, since other work on a shared machine affects the slowest calls
most; the round of the median p99 is shown, with the range of all rounds.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import queue
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import report_records as samples
from tests.support.server.postgresql import Cluster, binaries

from benchmarks.timing import RESULTS, keep, median_s
from wattune.records.served import ServedModel, SweepRequest, digest
from wattune.server.jobs import queue as jobs
from wattune.server.settings import sqlite_url
from wattune.server.store import Database, tokens
from wattune.server.store.schema import JobRow

AIM_S = 0.25
AIM_BYTES = 400e6
TURNS = {"aim": 3, "whole run": 1}
NAME = "server_fleet"
MODEL = "resnet8-fleet"
WEIGHTS = 78_042  # float32 parameters of resnet8
ASKED = {"model": MODEL, "strategy": "full", "seeds": 3}
MARK, SAMPLES = b"@@@", b"987654321"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Bodies:
    """Request bodies common to all clients, encoded in advance so that encoding is not part of the measurement."""

    profile: bytes
    training: bytes


def encode() -> Bodies:
    """Encode the records of the tests' synthetic board."""
    training = samples.run().training
    assert training is not None
    table = samples.profile().dump()
    table["device"] += f" {MARK.decode()}"
    record = {**training.dump(), "plan": MARK.decode(), "samples": int(SAMPLES)}
    return Bodies(json.dumps(table).encode(), json.dumps(record).encode())


@dataclass
class Tally:
    """Results of the clients: seconds by kind of call, and every unexpected response."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    trainings: dict[str, str] = field(default_factory=dict)
    profiles: dict[str, str] = field(default_factory=dict)
    lateness_s: float = 0.0


class Client:
    """Connection of one device."""

    def __init__(self, port: int, token: str, tally: Tally):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._token = {"Authorization": f"Bearer {token}"}
        self._tally = tally

    def call(self, kind: str, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        """Make one call, timed from before the first byte is sent until the last one is received."""
        all_headers = {**self._token, **(JSON if body is not None else {})}
        all_headers |= {name.replace("_", "-"): text for name, text in headers.items()}
        begin = time.perf_counter()
        self._connection.request(method, path, body, all_headers)
        answer = self._connection.getresponse()
        content = answer.read()
        self._tally.seconds[kind].append(time.perf_counter() - begin)
        if answer.status not in (200, 201, 204):
            self._tally.wrong.append(f"{kind}: {answer.status} {content[:200]!r}")
        return content

    def read(self, path: str) -> Any:
        """Get a JSON value."""
        return json.loads(self.call("", "GET", path))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


LOADS = {"aim": 5, "whole run": 12}
"""Calls per client: a model, a job, its curve, a plan, a record; or all requests of a run."""


def device(number: int, port: int, token: str, tally: Tally, bodies: Bodies, pause_s: float, load: str) -> None:
    """Make all requests of one device."""
    is_whole = load == "whole run"
    name, rng, next_s = f"device-{number:04}", random.Random(number), time.monotonic()
    client = Client(port, token, tally)

    def pause() -> None:
        nonlocal next_s
        next_s += pause_s * rng.uniform(0.5, 1.5)
        left_s = next_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        else:
            tally.lateness_s = max(tally.lateness_s, -left_s)

    def report(step: str, share: float, **more: Any) -> None:
        status = {
            "device": name,
            "board": "a simulated board",
            "kind": "simulated",
            "model": MODEL,
            "step": step,
            **more,
        }
        client.call("PUT status", "PUT", f"/v1/devices/{name}", json.dumps({**status, "share": share}).encode())
        pause()

    try:
        client.call("GET model", "GET", f"/v1/models/{MODEL}")
        pause()
        if is_whole:
            content = client.call("GET weights", "GET", f"/v1/models/{MODEL}/weights")
            if len(content) < 4 * WEIGHTS:
                tally.wrong.append(f"weights of {len(content)} bytes")
            pause()
        job = json.loads(client.call("POST job", "POST", "/v1/jobs", json.dumps(ASKED).encode()))["job"]
        pause()
        own = bodies.profile.replace(MARK, str(number).encode())
        if is_whole:
            report("profile", 0.5, power_w=3.1)
            answer = client.call("POST profile", "POST", f"/v1/profiles?device={name}", own)
            tally.profiles[name] = json.loads(answer)["id"]
            pause()
            own = json.dumps(tally.profiles[name]).encode()
        client.call("GET curve", "GET", f"/v1/jobs/{job}/curve")
        pause()
        wanted = b'{"profile%s": %s, "job": "%s", "cap_w": %g}' % (
            b"_id" if is_whole else b"",
            own,
            job.encode(),
            rng.choice((4.6, 4.9, 5.2, 5.5)),
        )
        plan = client.call("POST plan", "POST", "/v1/plans", wanted)
        pause()
        if is_whole:
            query = f"profile={tally.profiles[name]}&job={job}"
            client.call("PUT plan", "PUT", f"/v1/devices/{name}/plan?{query}", plan)
            pause()
            for share in (0.2, 0.6):
                report("train", share, power_w=4.2, metric=0.8)
        record = bodies.training.replace(b'"' + MARK + b'"', plan).replace(SAMPLES, str(1000 + number).encode())
        path = f"/v1/trainings?device={name}&model={MODEL}"
        answer = client.call("POST training", "POST", path, record, Idempotency_Key=f"{name}-run-1")
        tally.trainings[name] = json.loads(answer)["id"]
        pause()
        if is_whole:
            report("done", 1.0)
    except Exception as error:  # noqa: BLE001 - a client that fails is a result, too
        tally.wrong.append(f"{name}: {error!r}")
    finally:
        client.close()


def prepare(port: int, admin: str, database: Database, devices: int) -> list[str]:
    """Create the model with its weights, its finished job, and a token for every device."""
    rng = random.Random(0)
    header = json.dumps({"w": {"dtype": "F32", "shape": [WEIGHTS], "data_offsets": [0, 4 * WEIGHTS]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + rng.randbytes(4 * WEIGHTS)
    sha256 = hashlib.sha256(weights).hexdigest()
    model = ServedModel.parse(
        {
            "record": "model",
            "model": MODEL,
            "factory": "resnet8",
            "input_shape": [1, 8, 8],
            "batch_sizes": samples.BATCH_SIZES,
            "budget_samples": 60_000,
            "target": 0.95,
            "weights": {"sha256": sha256, "bytes": len(weights)},
            "proxy": {"data": {"source": "digits"}},
        }
    )
    tally = Tally()
    client = Client(port, admin, tally)
    client.call("", "PUT", f"/v1/files/{sha256}?kind=safetensors", weights)
    client.call("", "PUT", f"/v1/models/{MODEL}", json.dumps(model.dump()).encode())
    client.close()
    assert not tally.wrong, tally.wrong
    with database.session() as session:
        row, _ = jobs.submit(session, model, SweepRequest.model_validate(ASKED), time.time())
        job = session.get_one(JobRow, row.id)
        job.state, job.curve, job.finished_s = "done", samples.efficiency().dump(), time.time()
        return [tokens.make(session, f"device-{n:04}", "device", time.time()) for n in range(devices)]


def run(port: int, device_tokens: list[str], seconds: float, together: int, load: str) -> tuple[Tally, float]:
    """Run all clients, ``together`` at a time; return their results and the total seconds."""
    tally, waiting, bodies = Tally(), queue.SimpleQueue[tuple[int, str]](), encode()
    for entry in enumerate(device_tokens):
        waiting.put(entry)
    calls = LOADS[load]
    pause_s = seconds * together / len(device_tokens) / calls

    def work() -> None:
        while True:
            try:
                number, token = waiting.get_nowait()
            except queue.Empty:
                return
            device(number, port, token, tally, bodies, pause_s, load)

    begin = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(together)]
    for thread in threads:
        thread.start()
        time.sleep(pause_s * calls / together)  # not all at the same moment
    for thread in threads:
        thread.join()
    return tally, time.perf_counter() - begin


def lost(port: int, admin: str, device_tokens: list[str], tally: Tally, load: str) -> dict[str, int]:
    """Numbers of devices, plans, profiles and training records that the API does not return."""
    devices: dict[str, Any] = {}
    listed: list[str] = []
    reader = Client(port, admin, Tally())
    while page := reader.read("/v1/devices?limit=100" + (f"&after={max(devices)}" if devices else "")):
        devices |= {one["status"]["device"]: one for one in page}
    while page := reader.read("/v1/trainings?limit=100" + (f"&before={listed[-1]}" if listed else "")):
        listed += [one["id"] for one in page]
    reader.close()
    missing = {"devices": 0, "plans": 0, "profiles": 0, "trainings": 0}
    for number, token in enumerate(device_tokens):
        name = f"device-{number:04}"
        device_json = devices.get(name)
        profile, training = tally.profiles.get(name), tally.trainings.get(name)
        client = Client(port, token, Tally())  # its own token, because of the rate limit
        missing["trainings"] += (
            training not in listed or client.read(f"/v1/trainings/{training}").get("samples") != 1000 + number
        )
        if load != "whole run":
            client.close()
            continue
        missing["devices"] += device_json is None or device_json["status"]["step"] != "done"
        missing["plans"] += device_json is None or device_json["plan"] is None
        missing["profiles"] += profile is None or digest(client.read(f"/v1/profiles/{profile}"))[:32] != profile
        client.close()
    return {**missing, "trainings kept twice": len(listed) - len(set(tally.trainings.values()))}


@contextmanager
def server(store: Path, url: str | None) -> Iterator[tuple[int, int]]:
    """Context of `wattune serve` in a separate process, without workers: its process id and port."""
    command = [sys.executable, "-m", "wattune", "serve", "--port", "0", "--workers", "0", "--store", str(store)]
    command += [] if url is None else ["--database", url]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (store.parent / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = re.search(r":(\d+)", line)
            assert port, f"{line}{(store.parent / 'log').read_text()}"
            yield process.pid, int(port[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            process.stdout.close()  # type: ignore[union-attr]


def memory(pid: int) -> dict[str, float]:
    """Current and peak resident bytes of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: 1024.0 * int(re.search(rf"{name}:\s+(\d+)", text)[1]) for name in ("VmRSS", "VmHWM")}  # type: ignore[index]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, url: str | None, *, devices: int, seconds: float, together: int, load: str) -> dict[str, Any]:
    """Measure one server on one database under this load."""
    store, other_load, loop_s = folder / "store", os.getloadavg()[0], core_s()
    with server(store, url) as (pid, port):
        database = Database(url or sqlite_url(store))
        try:
            with database.session() as session:
                admin = tokens.make(session, "benchmark", "admin", time.time())
            device_tokens = prepare(port, admin, database, devices)
        finally:
            database.close()
        before_s = cpu_s(pid)
        tally, total_s = run(port, device_tokens, seconds, together, load)
        used_s = cpu_s(pid) - before_s
        resident = memory(pid)
        has_torch = "libtorch" in Path(f"/proc/{pid}/maps").read_text()
        missing = lost(port, admin, device_tokens, tally, load)
    calls = {kind: figures(times) for kind, times in sorted(tally.seconds.items())}
    json_calls = [s for kind, times in tally.seconds.items() if kind != "GET weights" for s in times]
    return {
        "devices": devices,
        "together": together,
        "other_load": other_load,
        "loop_s": loop_s,
        "seconds": total_s,
        "calls": calls,
        "json calls": figures(json_calls),
        "calls_per_s": sum(map(len, tally.seconds.values())) / total_s,
        "wrong answers": len(tally.wrong),
        "first wrong answers": tally.wrong[:5],
        "lost": missing,
        "api_cpu_share": used_s / total_s,
        "api_resident_bytes": resident["VmRSS"],
        "api_resident_peak_bytes": resident["VmHWM"],
        "api_has_torch": has_torch,
        "a device was late by at most (s)": tally.lateness_s,
    }


def core_s() -> float:
    """Seconds of a fixed Python loop: the speed of a shared machine's cores varies."""

    def loop() -> None:
        total = 0
        for number in range(1_000_000):
            total += number * number

    return median_s(loop, repeats=5, warm_up=0)["median_s"]


def middle(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The round of the median p99, with the worst or the sum of all rounds for the other figures."""
    ordered = sorted(turns, key=lambda one: one["json calls"]["p99_s"])
    return {
        **ordered[len(ordered) // 2],
        "p99s_s": [one["json calls"]["p99_s"] for one in ordered],
        "loops_s": [one["loop_s"] for one in turns],
        "wrong answers": sum(one["wrong answers"] for one in turns),
        "lost": {kind: sum(one["lost"][kind] for one in turns) for kind in turns[0]["lost"]},
        "api_resident_peak_bytes": max(one["api_resident_peak_bytes"] for one in turns),
        "api_has_torch": any(one["api_has_torch"] for one in turns),
    }


def figures(seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in seconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"n": len(ordered), "median_s": statistics.median(ordered), "p99_s": p99, "max_s": ordered[-1]}


def markdown(data: dict[str, Any]) -> str:
    """The tables of the README."""
    heads = ("load", "database", "clients", "duration", "JSON calls", "median", "p99", "p99 by round", "slowest")
    heads += ("wrong answers", "lost", "API peak memory", "API CPU, of a core", "torch loaded")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for load, databases in data["loads"].items():
        for name, one in databases.items():
            calls = one["json calls"]
            cells = [load, name, f"{one['devices']:,}", f"{one['seconds']:.0f} s", f"{calls['n']:,}"]
            cells += [f"{1000 * calls[which]:.0f} ms" for which in ("median_s", "p99_s")]
            cells += [_range(one["p99s_s"]), f"{1000 * calls['max_s']:.0f} ms"]
            cells += [str(one["wrong answers"]), str(sum(one["lost"].values()))]
            cells += [f"{one['api_resident_peak_bytes'] / 1e6:.0f} MB", f"{100 * one['api_cpu_share']:.0f}%"]
            lines.append(f"| {' | '.join(cells)} | {'yes' if one['api_has_torch'] else 'no'} |")
    for load, databases in data["loads"].items():
        names = list(databases)
        lines += ["", f"| {load} | {' | '.join(f'{name}: median | p99' for name in names)} |"]
        lines.append(f"|---|{'---|---|' * len(names)}")
        for kind in databases[names[0]]["calls"]:
            each = [databases[name]["calls"][kind] for name in names]
            shown = [f"{1000 * one['median_s']:.0f} ms | {1000 * one['p99_s']:.0f} ms" for one in each]
            lines.append(f"| {kind} | {' | '.join(shown)} |")
    machine = data["machine"]
    every = [one for databases in data["loads"].values() for one in databases.values()]
    load_before = max(one["other_load"] for one in every)
    loops_s = [seconds for one in every for seconds in one["loops_s"]]
    lines += [
        "",
        f"Measured on {machine['cores']} cores of {machine['cpu']}, with the clients on the same cores. Before the "
        f"start {load_before:.1f} other processes were runnable on average, and a fixed Python loop took "
        f"{_range(loops_s)}.",
    ]
    return "\n".join(lines) + "\n"


def _range(seconds: list[float]) -> str:
    low, high = (f"{1000 * bound:.0f}" for bound in (min(seconds), max(seconds)))
    return f"{low} ms" if low == high else f"{low} to {high} ms"


def verdict(data: dict[str, Any]) -> str:
    """Sentences with the p99 latencies, the memory and their aims."""
    names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}

    def worst(load: str) -> str:
        return ", ".join(
            f"{1000 * one['json calls']['p99_s']:.0f} ms ({names[name]}{_turns(one)})"
            for name, one in data["loads"][load].items()
        )

    def _turns(one: dict[str, Any]) -> str:
        return "" if len(one["p99s_s"]) == 1 else f", {_range(one['p99s_s'])} in {len(one['p99s_s'])} rounds"

    every = [one for databases in data["loads"].values() for one in databases.values()]
    lost_ones = sum(sum(one["lost"].values()) + one["wrong answers"] for one in every)
    resident = max(one["api_resident_peak_bytes"] for one in every)
    return (
        f"1,000 simulated clients over a minute, 50 at a time, on 2 shared cores: {lost_ones or 'none'} lost. p99 "
        f"latency is {worst('aim')} if each client fetches a model, a curve and a plan and uploads a record, and "
        f"{worst('whole run')} if it also uploads its profile and reports its status, which is as much as one process "
        f"can serve (aim: 250 ms). The API process uses at most {resident / 1e6:.0f} MB.\n"
    )


def main(arguments: list[str]) -> None:
    """Measure, and store the results; databases that are not named keep their figures."""
    path = RESULTS / f"{NAME}.json"
    loads = json.loads(path.read_text()).get("loads", {}) if path.exists() else {}
    for load in LOADS:
        turns: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for _ in range(TURNS[load]):
            for name in arguments or ["sqlite", "postgresql"]:
                turns[name].append(turn(name, load))
        loads.setdefault(load, {}).update({name: middle(measured) for name, measured in turns.items()})
        keep(NAME, {"aim_p99_s": AIM_S, "aim_bytes": AIM_BYTES, "loads": loads})


def turn(name: str, load: str) -> dict[str, Any]:
    """Run one measurement on this database."""
    how: dict[str, Any] = {"devices": 1000, "seconds": 60.0, "together": 50, "load": load}
    with tempfile.TemporaryDirectory(prefix="wattune-fleet-") as folder:
        if name == "sqlite":
            return measure(Path(folder), None, **how)
        if binaries() is None:
            sys.exit("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
        cluster = Cluster(durable=True)
        try:
            cluster.start()
            return measure(Path(folder), cluster.new(), **how)
        finally:
            cluster.close()
