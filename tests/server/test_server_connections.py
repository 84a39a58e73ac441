"""Limits on connections: size and deadline of headers, and how many may be open, in total and from one address."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from tests.server.conftest import opened, served
from tests.support.server.serving import Serving

from wattune.server import connections
from wattune.server.limits import Limits

WAIT_S = 20.0
"""Time after which a test gives up; what it waits for comes at once."""


@pytest.fixture
def server(tmp_path):
    """Starts a server with these limits: (limits) -> its URL."""
    with ExitStack() as stack:

        def start(**limits):
            store = stack.enter_context(opened(tmp_path / "store", limits=Limits(**limits)))
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


def test_silent_connections_keep_nobody_out(server):
    url = server(connections=8)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(url)) for _ in range(20)]
        assert all(answers(url) for _ in range(20))
        assert end(silent[0]) == b""


def test_one_address_cannot_take_the_connections_of_others(server):
    url = server(connections=100, connections_per_address=4)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(url)) for _ in range(4)]
        at = httpx.URL(url)
        other = stack.enter_context(
            socket.create_connection((at.host, at.port), timeout=WAIT_S, source_address=("127.0.0.2", 0))
        )
        for _ in range(8):
            assert answers(url)
        assert end(silent[0]) == b""
        other.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in end(other)


def test_connection_is_closed_if_no_other_is_idle(server):
    url = server(connections=3)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    with ExitStack() as stack:
        busy = [stack.enter_context(connected(url)) for _ in range(3)]
        for connection in busy:
            connection.sendall(head + b"{")
        until_s = time.monotonic() + WAIT_S
        while True:  # until all of their headers have been read
            try:
                assert answers(url)
                assert time.monotonic() < until_s
            except httpx.TransportError:
                break
        busy[0].sendall(b'"a": 1}\n')
        assert b"422" in busy[0].recv(65536)
        assert answers(url)  # in the place of the one that is idle now


def test_connections_fit_into_the_limit_of_open_files(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: asked.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 4096))
    assert connections.fitting(Limits()).connections == 2000
    assert asked == [(2128, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 1024))
    assert connections.fitting(Limits()).connections == 1024 - connections.RESERVED_FILES


@pytest.mark.slow
def test_server_survives_floods_of_connections(tmp_path):
    """500 half-sent requests, 1,020 silent sockets and an endless header, with 1,024 open files at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    server = Serving(tmp_path / "store", "--workers", "0", log=tmp_path / "log", open_files=1024)
    try:
        with ExitStack() as stack:
            half = [stack.enter_context(connected(server.url)) for _ in range(500)]
            for connection in half:
                with suppress(ConnectionError):
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a")
            silent = [stack.enter_context(connected(server.url)) for _ in range(1020)]
            assert all(answers(server.url) for _ in range(20))
            with suppress(ConnectionError):
                silent[-1].sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * (200 * 2**20))
            assert all(answers(server.url) for _ in range(20))
            for connection in (*half, *silent):
                end(connection)  # at the latest at the deadline
        assert "closed" in (tmp_path / "log").read_text()
    finally:
        server.end()
