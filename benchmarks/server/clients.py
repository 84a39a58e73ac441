"""Simulated clients: the calls that a device makes in a run, over its own connection and with its own token."""

from __future__ import annotations

import http.client
import json
import queue
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.support import report_records as samples

STATUSES, LOOKS, OTHERS = 46, 40, 7
CALLS = STATUSES + LOOKS + OTHERS
"""Calls of a device in a run, counted in the log of a server on which two simulated boards ran."""
MODEL = "resnet8-fleet"
WEIGHTS = 78_042  # float32 parameters of resnet8
ASKED = {"model": MODEL, "strategy": "full", "seeds": 3}
MARK, SAMPLES = b"@@@", b"987654321"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class World:
    """What all clients share: bodies, encoded in advance so that encoding is not part of the measurement, and jobs."""

    profile: bytes
    training: bytes
    done: str
    """Id of the job whose curve the clients fetch."""
    running: str
    """Id of the job that is running, at which they look."""


def world(done: str, running: str) -> World:
    """Encode the records of the tests' synthetic board."""
    training = samples.run().training
    assert training is not None
    table = samples.profile().dump()
    table["device"] += f" {MARK.decode()}"
    record = {**training.dump(), "samples": int(SAMPLES)}
    encoded = (json.dumps(body).encode() for body in (table, record))
    return World(*encoded, done, running)


@dataclass
class Tally:
    """Results of the clients: moment and seconds of each call by kind, and every unexpected response."""

    calls: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    trainings: dict[str, str] = field(default_factory=dict)
    profiles: dict[str, str] = field(default_factory=dict)
    window: tuple[float, float] = (0.0, 0.0)
    """Moments of ``time.perf_counter`` between which the load is as given."""

    def seconds(self) -> dict[str, list[float]]:
        """Seconds by kind of the calls that begin in the window."""
        first, end = self.window
        return {kind: [s for begin, s in calls if first <= begin < end] for kind, calls in self.calls.items()}


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
        self._tally.calls[kind].append((begin, time.perf_counter() - begin))
        if answer.status not in (200, 201, 204):
            self._tally.wrong.append(f"{kind}: {answer.status} {content[:200]!r}")
        return content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def device(number: int, port: int, token: str, tally: Tally, shared: World, pace_s: float) -> None:
    """Make the calls of one device in a run."""
    name, rng, next_s = f"device-{number:04}", random.Random(number), time.monotonic()
    client = Client(port, token, tally)

    def pause() -> None:
        nonlocal next_s
        next_s += pace_s * rng.uniform(0.5, 1.5)
        left_s = next_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)

    def call(*arguments: Any, **headers: str) -> bytes:
        content = client.call(*arguments, **headers)
        pause()
        return content

    def report(step: str, share: float, **more: Any) -> None:
        status = {"device": name, "board": "a simulated board", "kind": "simulated", "model": MODEL, "step": step}
        body = json.dumps({**status, "says": f"{share:.0%}", "power_w": 4.2, **more, "share": share}).encode()
        call("PUT status", "PUT", f"/v1/devices/{name}", body)

    def look() -> None:
        call("GET job", "GET", f"/v1/jobs/{shared.running}")

    try:
        call("GET model", "GET", f"/v1/models/{MODEL}")
        content = call("GET weights", "GET", f"/v1/models/{MODEL}/weights")
        if len(content) < 4 * WEIGHTS:
            tally.wrong.append(f"weights of {len(content)} bytes")
        call("POST job", "POST", "/v1/jobs", json.dumps(ASKED).encode())
        for step in range(LOOKS // 3):
            report("profile", step / LOOKS)
            for _ in range(3):
                look()
        look()
        own = shared.profile.replace(MARK, str(number).encode())
        tally.profiles[name] = json.loads(call("POST profile", "POST", f"/v1/profiles?device={name}", own))["id"]
        call("POST job", "POST", "/v1/jobs", json.dumps(ASKED).encode())
        call("GET curve", "GET", f"/v1/jobs/{shared.done}/curve")
        for step in range(STATUSES - LOOKS // 3 - 1):
            report("train", step / STATUSES, metric=0.8)
        record = shared.training.replace(SAMPLES, str(1000 + number).encode())
        path = f"/v1/trainings?device={name}&model={MODEL}"
        tally.trainings[name] = json.loads(call("POST training", "POST", path, record))["id"]
        report("done", 1.0)
    except Exception as error:  # noqa: BLE001 - a client that fails is a result, too
        tally.wrong.append(f"{name}: {error!r}")
    finally:
        client.close()


def run(
    port: int,
    device_tokens: list[str],
    shared: World,
    together: int,
    rate_per_s: float | None,
) -> Tally:
    """Run all clients, ``together`` at a time, at this rate of calls or as fast as they can.

    With a rate they begin at times evenly spread over one run, and only calls count that begin while ``together`` of
    them are there; without one together, so all do the expensive parts of a run at the same time.

    Returns their results, whose window is the time in which calls count.
    """
    tally, waiting = Tally(), queue.SimpleQueue[tuple[int, str]]()
    for entry in enumerate(device_tokens):
        waiting.put(entry)
    pace_s = 0.0 if rate_per_s is None else together / rate_per_s

    def work() -> None:
        while True:
            try:
                number, token = waiting.get_nowait()
            except queue.Empty:
                return
            device(number, port, token, tally, shared, pace_s)

    begin = time.perf_counter()
    apart_s = CALLS * pace_s
    threads = [threading.Thread(target=work) for _ in range(together)]
    for thread in threads:
        thread.start()
        time.sleep(apart_s / together)
    for thread in threads:
        thread.join()
    tally.window = begin, time.perf_counter()
    if rate_per_s is not None:
        tally.window = begin + apart_s, begin + apart_s * (len(device_tokens) // together)
    return tally
