"""Limits on connections, and what a stranger or one token can do to others, also behind a proxy."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from tests.server.conftest import opened, served
from tests.support.server import api as made

from wattune_server.limits import Limits
from wattune_server.store import tokens

WAIT_S = 20.0
"""Time after which a test gives up; what it waits for comes at once."""


@pytest.fixture
def server(tmp_path):
    """Starts a server with these limits: (limits) -> its URL."""
    with ExitStack() as stack:

        def start(*, proxy=None, **limits):
            store = stack.enter_context(opened(tmp_path / "store", limits=Limits(**limits), proxy=proxy))
            if proxy is not None:
                with store.database.session() as session:
                    start.tokens = [tokens.make(session, name, "device", 0.0, device="a") for name in ("one", "other")]
            made.put_model(store, weights=bytes(900_000))
            return stack.enter_context(served(store))

        yield start


@contextmanager
def connected(url):
    at = httpx.URL(url)
    with socket.create_connection((at.host, at.port), timeout=WAIT_S) as found:
        yield found


def end(connection):
    """All that the server sends until it closes the connection."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def answers(url):
    return httpx.get(f"{url}/healthz", timeout=WAIT_S, trust_env=False).status_code == 200


@pytest.mark.parametrize("begin", [b"GET /healthz HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9])
def test_endless_headers_are_rejected(server, begin):
    with connected(server()) as connection:
        with suppress(ConnectionError):
            connection.sendall(begin + b"a" * 2**22)
        assert end(connection)[:12] in (b"HTTP/1.1 400", b"")


def test_headers_below_the_limit_are_accepted(server):
    url = server()
    for size, status in ((2**15, 200), (2**19, 400)):
        with suppress(httpx.TransportError):  # closed before all of it was sent
            assert httpx.get(f"{url}/healthz", headers={"X": "a" * size}, trust_env=False).status_code == status


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /h"]
)
def test_incomplete_request_ends_at_the_deadline(server, sent):
    url = server(headers_s=0.2)
    with connected(url) as connection:
        connection.sendall(sent)
        assert end(connection).count(b"200 OK") == sent.count(b"\r\n\r\n")
    assert answers(url)


def test_slow_bytes_do_not_extend_the_deadline(server):
    with connected(server(headers_s=0.3)) as connection:
        connection.settimeout(0.02)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        until_s = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < until_s, "still open"
            try:
                connection.sendall(b"a")
                if not connection.recv(100):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return


def test_body_that_nobody_reads_ends_at_the_deadline(server):
    with connected(server(headers_s=0.3)) as connection:
        head = b"PUT /v1/devices/a HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000000\r\n"
        connection.sendall(head + b"Content-Type: application/json\r\n\r\n{")
        assert b"403" in connection.recv(65536)
        connection.sendall(b" ")  # which ends the wait for a next request
        end(connection)


@pytest.mark.parametrize("sent_later", [b"", b"G"], ids=["waits", "sends what may be a next request"])
def test_response_that_is_read_slowly_arrives_whole(server, sent_later):
    """The application has sent all of it, and the connection waits for the client. A client that has begun to send
    another request has the deadline for it nevertheless."""
    with connected(server(headers_s=0.3)) as connection:
        connection.sendall(b"GET /v1/models/m/weights HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.recv(100)
        connection.sendall(sent_later)
        time.sleep(2.5)  # the server looks at the connections once a second
        assert (len(end(connection)) >= 900_000) == (not sent_later)


@pytest.mark.parametrize("attackers", [1, 5])
def test_slow_sign_ins_keep_nobody_out(server, attackers):
    """A byte now and then, by clients that share the proxy with all others, and without a token."""
    url = server(proxy="127.0.0.1", bodies_per_address=4)
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(50)]
        for number, connection in enumerate(slow):
            head = f"POST /login HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.{number % attackers}\r\n"
            head += "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4000\r\n\r\nt"
            connection.sendall(head.encode())
        refused = [end(connection) for connection in slow[4 * attackers :]]
        assert all(b" 429 " in answer for answer in refused)
        others = {"X-Forwarded-For": "203.0.113.1", "Authorization": f"Bearer {server.tokens[0]}"}
        for _ in range(20):
            answer = httpx.put(f"{url}/v1/devices/a", json=made.status("a"), headers=others, timeout=WAIT_S)
            assert answer.status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"/jobs/{'0' * 32}/cancel", 401),
        ("POST", "/logout", 401),
        ("PUT", "/v1/devices/a", 401),
        ("POST", "/v1/jobs", 401),
        ("POST", "/v1/profiles?device=a", 401),
        ("POST", "/nowhere", 404),
        ("POST", "/login", 413),
    ],
)
def test_no_body_of_a_stranger_is_read(server, method, path, status):
    length = 4097 if path == "/login" else 2000
    kind = "application/json" if path.startswith("/v1/") else "application/x-www-form-urlencoded"
    with connected(server(proxy="127.0.0.1", body_s=1e6)) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode())
        assert f" {status} ".encode() in connection.recv(65536).split(b"\r\n")[0]


@pytest.mark.parametrize(("files", "warnings"), [(1024, 1), (4096, 0)])
def test_few_open_files_are_warned_of(files, warnings):
    code = "from wattune_server.connections import raise_open_files; raise_open_files()"
    command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert said.count(f"the hard limit of open files is {files}") == said.count("\n") == warnings
