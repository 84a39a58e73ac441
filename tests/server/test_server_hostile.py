"""Hostile requests: each is answered with 4xx and a reason, and the store stays the same, row by row."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient
from tests.server.conftest import Store, asked, opened, served
from tests.support.server import api as made
from tests.support.server import dashboard as rows

from wattune.errors import InputError
from wattune.server.application import create_app
from wattune.server.limits import Limits
from wattune.server.store import model_catalog

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Hostile:
    """A request, the status that it gets, and what the answer has to say."""

    name: str
    method: str
    path: str
    status: int
    says: str
    body: bytes | None = None
    token: str | None = "admin"
    headers: dict[str, str] = field(default_factory=dict)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


MODEL, STATUS = "/v1/models/m", "/v1/devices/nano-1"
REFUSED = [
    # who asks
    Hostile("a page elsewhere, without a token", "POST", "/v1/jobs", 401, "token", b"{}", None, {"Origin": "http://e"}),
    Hostile("an origin that is none", "POST", "/login", 400, "Origin", b"token=a", None, {"Origin": "http://["}),
    # how it is sent
    Hostile(
        "a body that is too long", "PUT", STATUS, 413, "at most", b" " * 70_000 + _json(made.status()), headers=JSON
    ),
    Hostile(
        "a length that lies", "PUT", STATUS, 413, "at most", b"{}", headers={**JSON, "Content-Length": "99999999999999"}
    ),
    Hostile("a length that is none", "PUT", STATUS, 413, "at most", b"{}", headers={**JSON, "Content-Length": "-1"}),
    Hostile("a form in place of JSON", "PUT", STATUS, 415, "application/json", b"device=a", headers={}),
    Hostile(
        "a packed body",
        "PUT",
        STATUS,
        415,
        "identity",
        gzip.compress(_json(made.status())),
        headers={**JSON, "Content-Encoding": "gzip"},
    ),
    Hostile("a method that there is not", "PATCH", MODEL, 405, "Not Allowed", b"{}", headers=JSON),
    # JSON
    Hostile("JSON that ends too early", "PUT", STATUS, 400, "JSON", _json(made.status())[:-20], headers=JSON),
    Hostile("a list for an object", "POST", "/v1/trainings?device=a", 422, "object", b"[1, 2]", headers=JSON),
    # what it says
    Hostile(
        "a field that there is not", "PUT", STATUS, 422, "admin", _json({**made.status(), "admin": 1}), headers=JSON
    ),
    Hostile("another name in the body", "PUT", "/v1/devices/b", 422, "nano-1", _json(made.status()), headers=JSON),
    Hostile(
        "power below nothing", "PUT", STATUS, 422, "power_w", _json({**made.status(), "power_w": -1}), headers=JSON
    ),
    Hostile(
        "another record", "POST", "/v1/profiles?device=a", 422, '"profile"', _json(made.efficiency()), headers=JSON
    ),
    Hostile(
        "a version to come",
        "POST",
        "/v1/profiles?device=a",
        422,
        "1 to 1",
        _json(made.profile() | {"version": 99}),
        headers=JSON,
    ),
    Hostile(
        "a record that contradicts itself",
        "POST",
        "/v1/profiles?device=a",
        422,
        "once",
        _json(made.profile() | {"cells": made.profile()["cells"][:1] * 2}),
        headers=JSON,
    ),
    Hostile(
        "a job of batch sizes without end",
        "POST",
        "/v1/jobs",
        422,
        "batch_sizes",
        _json({"model": "resnet8-digits", "batch_sizes": list(range(1, 5000))}),
        headers=JSON,
    ),
    # paths
    Hostile("a name with a path", "GET", "/v1/models/..%5C..%5Cweights", 422, "path name"),
    Hostile("a name with a zero", "DELETE", "/v1/models/resnet8-digits%00", 422, "path name"),
    Hostile("a name with SQL", "GET", "/v1/models/a'%20OR%201=1--", 422, "path name"),
    Hostile("a page without end", "GET", "/v1/trainings?limit=100000000", 422, "100"),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Store, dict[str, dict[str, str]]]]:
    """A server with something to lose, and tokens of every kind."""
    folder = tmp_path_factory.mktemp("hostile")
    limits = Limits(rate_per_s=1e6, burst=10**6, failures_per_min=1e6)
    with opened(folder / "store", limits=limits) as store:
        rows.fill(store)
        made.put_model(store, weights=made.safetensors())
        shown = {"admin": made.token(store, "admin")}
        small = {"json_bytes": 65_536}
        object.__setattr__(store.settings, "limits", Limits(**{**vars(limits), **small}))
        with asked(store) as client:
            yield client, store, shown


@pytest.mark.parametrize("hostile", REFUSED, ids=lambda hostile: hostile.name)
def test_hostile_request_is_rejected_without_changes(guarded, hostile):
    client, store, shown = guarded
    before = made.contents(store)
    headers = {**hostile.headers, **({} if hostile.token is None else shown[hostile.token])}
    answer = client.request(hostile.method, hostile.path, content=hostile.body, headers=headers)
    told = made.problem(answer, hostile.status)
    assert hostile.says in told["detail"]
    assert "Traceback" not in answer.text
    assert made.contents(store) == before


def test_json_bomb_is_rejected_before_it_expands(sqlite_store):
    """Eight MiB of empty lists would be hundreds of MiB."""
    import tracemalloc

    app = create_app(sqlite_store.settings, sqlite_store.database, sqlite_store.files)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        bomb = b"[" + b"[]," * (2**23 // 3 - 10) + b"[]]"
        tracemalloc.start()
        try:
            answer = client.post("/v1/profiles?device=a", content=bomb, headers=JSON)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert "too many values" in made.problem(answer, 400)["what"]
        assert peak < 5 * len(bomb)


def test_same_bytes_have_one_kind(sqlite_store):
    with sqlite_store.database.session() as session:
        assert model_catalog.add_file(session, "0" * 64, "text", 5, 0.0)
        assert not model_catalog.add_file(session, "0" * 64, "text", 5, 1.0)
        with pytest.raises(InputError, match="another kind"):
            model_catalog.add_file(session, "0" * 64, "npz", 5, 1.0)


def raw(url: str, request: bytes, *, closes: bool = False) -> bytes:
    """What the server answers to these bytes, to the end of the connection."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        with suppress(OSError):  # the server may have cut it off; what it answered before is still there
            connection.sendall(request)
            if closes:
                connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
        return answer


@pytest.mark.slow
def test_malformed_http_is_rejected(tmp_path):
    """Below what an HTTP client would send: each is answered or cut off, nothing is kept, and the server goes on."""
    with opened(tmp_path / "store", limits=Limits(json_bytes=10_000, body_s=0.3)) as store:
        rows.put_model(store)
        before = made.contents(store)
        with served(store) as url:
            host = urlsplit(url).netloc
            put = f"PUT /v1/devices/nano-1 HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n".encode()
            chunked = put + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            endless = chunked + b"2710\r\n" + b" " * 10_000 + b"\r\n" + b"1\r\n \r\n0\r\n\r\n"
            assert b" 413 " in raw(url, endless).split(b"\r\n")[0], "a body whose length nobody told"
            assert b" 408 " in raw(url, put + b"Content-Length: 50\r\n\r\n{").split(b"\r\n")[0], (
                "a body that stands still"
            )
            whole = json.dumps(made.status()).encode()
            cut = put + f"Content-Length: {len(whole)}\r\n\r\n".encode() + whole[:-9]
            assert b" 204 " not in raw(url, cut, closes=True), "a body that was cut off"
            both = (
                put + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n"
            )
            two_lengths = raw(url, both, closes=True)
            assert b" 400 " in two_lengths.split(b"\r\n")[0], "two lengths: a proxy could see another request"
            assert b"200 OK" not in two_lengths
            assert b" 400 " in raw(url, b"\x16\x03\x01\x02\x00" * 40, closes=True).split(b"\r\n")[0], "no HTTP at all"
            huge = b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode() + b"\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"
            assert b" 200 " not in raw(url, huge, closes=True).split(b"\r\n")[0], "a header without end"
            alive = raw(url, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert b" 200 OK" in alive
        assert made.contents(store) == before
