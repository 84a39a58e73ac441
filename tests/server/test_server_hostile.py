"""Hostile requests: each is answered with 4xx and a reason, and the store stays the same, row by row."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient
from tests.server.conftest import Store, asked, opened, served
from tests.support.server import api as made
from tests.support.server import dashboard as rows

from wattune_server.limits import Limits

JSON = {"Content-Type": "application/json"}


STATUS = "/v1/devices/nano-1"
SAID = json.dumps(made.status()).encode()
ADMIN = json.dumps({**made.status(), "admin": 1}).encode()
REFUSED = {
    "a page elsewhere, without a token": ("POST", "/v1/jobs", 401, "token", b"{}", {"Origin": "http://e"}),
    "an origin that is none": ("POST", "/login", 400, "Origin", b"token=a", {"Origin": "http://["}),
    "a body that is too long": ("PUT", STATUS, 413, "at most", b" " * 70_000 + SAID, JSON),
    "a length that lies": ("PUT", STATUS, 413, "at most", b"{}", {**JSON, "Content-Length": "99999999999999"}),
    "a length that is none": ("PUT", STATUS, 413, "at most", b"{}", {**JSON, "Content-Length": "-1"}),
    "a form in place of JSON": ("PUT", STATUS, 415, "application/json", b"device=a", {}),
    "a packed body": ("PUT", STATUS, 415, "identity", gzip.compress(SAID), {**JSON, "Content-Encoding": "gzip"}),
    "a method that there is not": ("PATCH", "/v1/models/m", 405, "Not Allowed", b"{}", JSON),
    "JSON that ends too early": ("PUT", STATUS, 400, "JSON", SAID[:-20], JSON),
    "a list for an object": ("POST", "/v1/trainings?device=a", 422, "object", b"[1, 2]", JSON),
    "a field that there is not": ("PUT", STATUS, 422, "admin", ADMIN, JSON),
    "another name in the body": ("PUT", "/v1/devices/b", 422, "nano-1", SAID, JSON),
    "a name with a path": ("GET", "/v1/models/..%5C..%5Cweights", 422, "path name", None, {}),
    "a name with a zero": ("DELETE", "/v1/models/resnet8-digits%00", 422, "path name", None, {}),
    "a name with SQL": ("GET", "/v1/models/a'%20OR%201=1--", 422, "path name", None, {}),
}
"""Method, path, status of the answer, what the answer says, body, headers."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Store, dict[str, str]]]:
    """A server with something to lose, and the token of an admin."""
    folder = tmp_path_factory.mktemp("hostile")
    limits = Limits(rate_per_s=1e6, burst=10**6, failures_per_min=1e6, json_bytes=65_536)
    with opened(folder / "store", limits=limits) as store:
        rows.fill(store)
        made.put_model(store, weights=made.safetensors())
        admin = made.token(store, "admin")
        with asked(store) as client:
            yield client, store, admin


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_request_is_rejected_without_changes(guarded, name):
    client, store, admin = guarded
    method, path, status, says, body, headers = REFUSED[name]
    before = made.contents(store)
    answer = client.request(method, path, content=body, headers={**({} if status == 401 else admin), **headers})
    assert says in made.problem(answer, status)["detail"]
    assert "Traceback" not in answer.text
    assert made.contents(store) == before


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
            huge = b"GET /v1/models/a HTTP/1.1\r\nHost: " + host.encode() + b"\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"
            assert b" 200 " not in raw(url, huge, closes=True).split(b"\r\n")[0], "a header without end"
            alive = raw(url, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert b" 200 OK" in alive
        assert made.contents(store) == before
