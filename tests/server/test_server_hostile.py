"""Hostile requests: each is answered with 4xx and a reason, and the store stays the same, row by row."""

from __future__ import annotations

import gzip
import io
import json
import socket
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.server.conftest import Store, opened, served
from tests.support.server import api as made
from tests.support.server import dashboard as rows

from wattune.errors import InputError
from wattune.server.application import create_app
from wattune.server.limits import Limits
from wattune.server.store import model_catalog, tokens
from wattune.server.uploads import check_file

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


def _file(name: str, content: bytes, says: str, kind: str = "safetensors", sha256: str | None = None) -> Hostile:
    path = f"/v1/files/{sha256 or made.sha256(content)}?kind={kind}"
    return Hostile(name, "PUT", path, 422, says, content)


def _tensors(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes}


def _zip(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return file.getvalue()


def _npy(shape: str = "(2,)", dtype: str = "'<f8'", data: bytes = bytes(16)) -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


class _Runs:
    """An object that would run a command if anybody unpickled it."""

    def __reduce__(self) -> Any:
        import os

        return os.system, ("touch /tmp/wattune-was-here",)


def _pickled() -> bytes:
    file = io.BytesIO()
    np.savez(file, images=np.array([_Runs()], dtype=object))
    return file.getvalue()


MODEL, STATUS = "/v1/models/m", "/v1/devices/nano-1"
REFUSED = [
    # who asks
    Hostile("no token", "PUT", STATUS, 401, "token", _json(made.status()), token=None, headers=JSON),
    Hostile("a scope that is too small", "PUT", STATUS, 403, "device", _json(made.status()), "read", JSON),
    Hostile("a device that offers models", "PUT", MODEL, 403, "admin", _json(made.model("m")), "device", JSON),
    Hostile("an expired token", "PUT", STATUS, 401, "expired", _json(made.status()), "expired", JSON),
    Hostile("a revoked token", "DELETE", "/v1/models/resnet8-digits", 401, "revoked", None, "revoked"),
    Hostile("a made-up token", "PUT", STATUS, 401, "no such token", _json(made.status()), "made up", JSON),
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
    Hostile("nothing", "PUT", STATUS, 400, "empty", b"", headers=JSON),
    Hostile("JSON that ends too early", "PUT", STATUS, 400, "JSON", _json(made.status())[:-20], headers=JSON),
    Hostile("JSON nested deep", "PUT", STATUS, 400, "64 levels", b"[" * 30_000 + b"]" * 30_000, headers=JSON),
    Hostile("nested deep behind a text", "PUT", STATUS, 400, "64", b'{"a\\"[":' + b'{"a":' * 99 + b"1", headers=JSON),
    Hostile("NaN", "PUT", STATUS, 400, "NaN", _json(made.status(share=0.5)).replace(b"0.5", b"NaN"), headers=JSON),
    Hostile("infinity", "PUT", STATUS, 400, "out of range", _json({"share": 7}).replace(b"7", b"1e999"), headers=JSON),
    Hostile(
        "an endless integer", "PUT", STATUS, 400, "out of range", b'{"samples": ' + b"9" * 5000 + b"}", headers=JSON
    ),
    Hostile("a key twice", "PUT", STATUS, 400, "duplicate key", b'{"device": "nano-1", "device": "x"}', headers=JSON),
    Hostile(
        "many keys, one twice",
        "PUT",
        STATUS,
        400,
        "duplicate key '7'",
        b"{" + b",".join(b'"%d":0' % n for n in (*range(6000), 7)) + b"}",
        headers=JSON,
    ),
    Hostile("half a character", "PUT", STATUS, 400, "surrogates", b'{"says": "\\ud800"}', headers=JSON),
    Hostile("a NUL character", "PUT", STATUS, 400, "NUL character", b'{"board": "a\\u0000b"}', headers=JSON),
    Hostile("no UTF-8", "PUT", STATUS, 400, "utf-8", b'{"board": "\xff\xfe"}', headers=JSON),
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
        "a factory that names code",
        "PUT",
        MODEL,
        422,
        "small-cnn",
        _json({**made.model("m"), "factory": "os:system"}),
        headers=JSON,
    ),
    Hostile(
        "a path as data of a proxy",
        "PUT",
        MODEL,
        422,
        "sha256:",
        _json({**made.model("m"), "proxy": {"data": {"source": "npz", "train": "/etc/passwd", "test": "x"}}}),
        headers=JSON,
    ),
    Hostile(
        "weights that are not there",
        "PUT",
        MODEL,
        422,
        "missing on the server",
        _json(made.with_weights(b"nothing", "m")),
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
    Hostile("a path up", "PUT", "/v1/files/..%2F..%2F..%2Fetc%2Fpasswd?kind=text", 404, "Not Found", b"root"),
    Hostile("a path up as a hash", "PUT", f"/v1/files/{'..' * 32}?kind=text", 422, "sha256", b"root"),
    Hostile("a name with a path", "GET", "/v1/models/..%5C..%5Cweights", 422, "path name"),
    Hostile("a name with a zero", "DELETE", "/v1/models/resnet8-digits%00", 422, "path name"),
    Hostile("a name with SQL", "GET", "/v1/models/a'%20OR%201=1--", 422, "path name"),
    Hostile("a page without end", "GET", "/v1/trainings?limit=100000000", 422, "100"),
    # files
    _file("a hash of something else", made.safetensors(), "SHA-256", sha256="0" * 64),
    _file("an empty file", b"", "empty"),
    _file("a header longer than the file", (2**62).to_bytes(8, "little") + b"{}", "its length"),
    _file("a file that ends too early", made.safetensors()[:-1], "where the file ends"),
    _file("a file with more behind it", made.safetensors() + b"\0", "where the file ends"),
    _file("a tensor larger than it says", made.safetensors(_tensors(shape=[2, 3])), "24 bytes"),
    _file("a shape that overflows", made.safetensors(_tensors(shape=[2**40, 2**40])), "bytes, to match its shape"),
    _file("a shape below nothing", made.safetensors(_tensors(shape=[-2, -2])), "whole numbers"),
    _file("offsets behind the end", made.safetensors(_tensors(data_offsets=[16, 32])), "contiguous, in order"),
    _file(
        "two tensors in one place",
        made.safetensors({**_tensors(), "v": _tensors()["w"]}),
        "contiguous, in order",
    ),
    _file("a type that there is not", made.safetensors(_tensors(dtype="OBJECT")), "F32"),
    _file("truth values as numbers", made.safetensors(_tensors(shape=[True, 4])), "whole numbers"),
    _file(
        "a tensor twice",
        made.safetensors(header=b'{"w":' + _json(_tensors()["w"]) + b',"w":' + _json(_tensors()["w"]) + b"}"),
        "duplicate key",
    ),
    _file("a header that is no JSON", made.safetensors(header=b"\x80\x04pickle."), "JSON"),
    _file("a header that is a list", made.safetensors(header=b"[1]"), "object"),
    _file("weights of torch.save", _zip(archive__data=b"\x80\x02ctorch._utils\n."), "its length"),
    _file("an array of objects", _pickled(), "numeric or boolean", "npz"),
    _file("a zip that is none", b"PK\x03\x04" + bytes(50), "npz", "npz"),
    _file("a zip with a path", _zip(**{"..__..__a.npy": _npy()}), "NAME.npy", "npz"),
    _file("a zip with other files", _zip(**{"run.py": b"print()"}), "NAME.npy", "npz"),
    _file("an array shorter than it says", _zip(**{"a.npy": _npy("(9,)")}), "to match its shape", "npz"),
    _file("an array with a huge shape", _zip(**{"a.npy": _npy(f"({2**60}, {2**60})")}), "to match its shape", "npz"),
    _file(
        "a header with code in it", _zip(**{"a.npy": _npy("(__import__('os').getpid(),)")}), "header of a.npy", "npz"
    ),
    _file("an array's header that does not end", _zip(**{"a.npy": _npy(dtype="(")}), "header of a.npy", "npz"),
    _file("an array's header that is no table", _zip(**{"a.npy": _npy(dtype="'<f8', []: 1, 'x'")}), "a.npy", "npz"),
    _file("a damaged zip", made.npz()[:60] + b"\xff\xff\xff" + made.npz()[63:], "header of", "npz"),
    _file("a text that is none", b"abc\xff", "UTF-8", "text"),
    Hostile("a kind that there is not", "PUT", f"/v1/files/{made.sha256(b'a')}?kind=pickle", 422, "safetensors", b"a"),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Store, dict[str, dict[str, str]]]]:
    """A server with something to lose, and tokens of every kind."""
    folder = tmp_path_factory.mktemp("hostile")
    limits = Limits(rate_per_s=1e6, burst=10**6, failures_per_min=1e6)
    with opened(folder / "store", limits=limits) as store:
        rows.fill(store)
        store.files.write(made.safetensors())
        shown = {scope: made.token(store, scope) for scope in ("read", "device", "admin")}
        shown["expired"] = made.token(store, "admin", "expired", expires_s=time.time() - 5)
        shown["revoked"] = made.token(store, "admin", "revoked")
        shown["made up"] = {"Authorization": f"Bearer wt_{'a' * 12}_{'b' * 43}"}
        with store.database.session() as session:
            tokens.revoke(session, "revoked", time.time())
        small = {"json_bytes": 65_536}
        object.__setattr__(store.settings, "limits", Limits(**{**vars(limits), **small}))
        with TestClient(
            create_app(store.settings, store.database, store.files), base_url="http://127.0.0.1:8484"
        ) as client:
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


def test_hostile_requests_are_numerous():
    assert len({hostile.name for hostile in REFUSED}) == len(REFUSED) >= 25


def test_hostile_requests_ran_no_code(guarded):
    assert not Path("/tmp/wattune-was-here").exists()


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


def test_valid_uploads_are_stored(guarded):
    """The same checks let through what they should: else the table above would be met by refusing everything."""
    client, _, shown = guarded
    one = {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}
    empty = {"dtype": "I64", "shape": [0], "data_offsets": [22, 22]}
    scalar = {"dtype": "U8", "shape": [], "data_offsets": [22, 23]}
    tensors = {"b": one, "c": empty, "d": scalar, **_tensors(), "__metadata__": {"format": "pt"}}
    good = [
        (made.safetensors(tensors, data=bytes(23)), "safetensors"),
        (made.npz(), "npz"),
        (_zip(**{"a.npy": _npy()}), "npz"),
        ("Grüße \U0001f600".encode(), "text"),
    ]
    for content, kind in good:
        assert made.put_file(client, content, kind, headers=shown["admin"]).status_code == 201


def test_same_bytes_have_one_kind(sqlite_store):
    with sqlite_store.database.session() as session:
        assert model_catalog.add_file(session, "0" * 64, "text", 5, 0.0)
        assert not model_catalog.add_file(session, "0" * 64, "text", 5, 1.0)
        with pytest.raises(InputError, match="another kind"):
            model_catalog.add_file(session, "0" * 64, "npz", 5, 1.0)


def test_files_from_their_own_libraries_are_valid(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros((2, 3), np.float32), "b": np.arange(5)}, tmp_path / "a.safetensors", {"format": "pt"})
    check_file(tmp_path / "a.safetensors", "safetensors")
    np.savez(tmp_path / "a.npz", images=np.zeros((5, 3, 2, 2), np.uint8), labels=np.asfortranarray(np.eye(3)))
    check_file(tmp_path / "a.npz", "npz")


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
    with opened(tmp_path / "store", limits=Limits(json_bytes=10_000, silence_s=0.3)) as store:
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
            assert b"200 OK" not in raw(url, both, closes=True), "two lengths: a proxy could see another request"
            assert b" 400 " in raw(url, b"\x16\x03\x01\x02\x00" * 40, closes=True).split(b"\r\n")[0], "no HTTP at all"
            huge = b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode() + b"\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"
            assert b" 200 " not in raw(url, huge, closes=True).split(b"\r\n")[0], "a header without end"
            alive = raw(url, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert b" 200 OK" in alive
        assert made.contents(store) == before
