"""Attacks without a token on a server behind the configurations of docs/server.md: another device gets its answers."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.server.conftest import opened
from tests.support.server import api as made
from tests.support.server.serving import Serving, free_port, wait_for

from wattune_server.store import tokens

PAGE = (Path(__file__).parents[2] / "docs/server.md").read_text(encoding="utf-8")
CALLS, VICTIM = 20, "127.0.0.2"
"""Number of calls of another device, which has an address of its own, during each attack."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def block(begins: str) -> str:
    """The code block of the page that begins like this."""
    found = re.search(rf"```\w*\n({re.escape(begins)}.*?)```", PAGE, re.DOTALL)
    assert found, begins
    return found[1]


def nginx(folder: Path, port: int, upstream: str) -> tuple[list[str], dict[str, str]]:
    """Command of nginx with the documented server, and Debian's settings around it."""
    key = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    key += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(key, check=True, capture_output=True)
    own = block("limit_conn_zone").replace("listen 443", f"listen 127.0.0.1:{port}")
    own = own.replace("/etc/ssl/trainer.pem", "cert.pem").replace("/etc/ssl/trainer-key.pem", "key.pem")
    own = own.replace("http://127.0.0.1:8484", upstream)
    temporary = "".join(f"{name}_temp_path t;" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    around = "daemon off; pid pid; error_log log; worker_processes auto; events { worker_connections 768; }\n"
    (folder / "nginx.conf").write_text(f"{around}http {{ access_log off; {temporary}\n{own} }}")
    return ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", "log"], {}


def caddy(folder: Path, port: int, upstream: str) -> tuple[list[str], dict[str, str]]:
    """Command of Caddy with the documented site, and a certificate of its own."""
    own = (
        block("trainer.example")
        .replace("trainer.example", f"https://localhost:{port}")
        .replace("127.0.0.1:8484", upstream)
    )
    own = own.replace("{\n", "{\n    tls internal\n", 1)
    (folder / "Caddyfile").write_text("{\n admin off\n skip_install_trust\n auto_https disable_redirects\n}\n" + own)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", "Caddyfile"], {"XDG_DATA_HOME": str(folder)}


@pytest.fixture(params=["direct", "nginx", "caddy"])
def entrance(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a server as others see it, and the header of another device."""
    if request.param != "direct" and shutil.which(request.param) is None:
        assert not os.environ.get("WATTUNE_REQUIRE_PROXIES"), f"{request.param} is required, and is not installed"
        pytest.skip(f"{request.param} is not installed (Debian: apt-get install {request.param})")
    with opened(tmp_path / "store") as store, store.database.session() as session:
        token = tokens.make(session, "nano-1", "device", time.time())
    server = Serving(
        tmp_path / "store", "--workers", "0", "--proxy", "127.0.0.1", log=tmp_path / "log", open_files=1024
    )
    with ExitStack() as stack:
        stack.callback(server.end)
        url = server.url
        if request.param != "direct":
            folder, port = tmp_path / "proxy", free_port()
            folder.mkdir()
            upstream = server.url if request.param == "nginx" else server.url.removeprefix("http://")
            command, more = {"nginx": nginx, "caddy": caddy}[request.param](folder, port, upstream)
            with (folder / "out").open("wb") as out:
                process = subprocess.Popen(command, cwd=folder, env={**os.environ, **more}, stdout=out, stderr=out)
            stack.enter_context(process)
            stack.callback(process.terminate)
            url = f"https://localhost:{port}"
            wait_for(lambda: answers(url) or process.poll() is not None)
            assert process.poll() is None, (folder / "out").read_text()
        yield url, {"Authorization": f"Bearer {token}"}


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", verify=False, timeout=5).status_code == 200
    return False


@contextmanager
def connected(url: str, *, shakes_hands: bool = True) -> Iterator[socket.socket]:
    """A connection of an attacker."""
    at, context = httpx.URL(url), ssl._create_unverified_context()
    with socket.create_connection(("127.0.0.1", at.port), timeout=60) as plain:
        if at.scheme == "http" or not shakes_hands:
            yield plain
            return
        with context.wrap_socket(plain, server_hostname="localhost") as secret:
            yield secret


def sign_in(body: bytes, length: int) -> bytes:
    kind = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % length
    return b"POST /login HTTP/1.1\r\nHost: localhost\r\n" + kind + body


ATTACKS: dict[str, tuple[int, bytes]] = {
    "a long body that never comes": (520, sign_in(b"t", 60_000)),
    "a short body, byte by byte": (520, sign_in(b"t", 4000)),
    "half-sent headers": (500, b"GET / HTTP/1.1\r\nHost: a"),
    "silence": (1020, b""),
}
"""Connections and bytes of each attack, which then goes on with a byte now and then."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_keeps_nobody_out(entrance, attack):
    url, token = entrance
    count, content = ATTACKS[attack]
    seconds = []
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            held.append(stack.enter_context(connected(url, shakes_hands=bool(content))))
            held[-1].sendall(content)
        transport = httpx.HTTPTransport(local_address=VICTIM, verify=False)
        for turn in range(CALLS):
            with httpx.Client(transport=transport, timeout=60) as other:
                begin_s = time.monotonic()
                answer = other.put(f"{url}/v1/devices/nano-1", json=made.status("nano-1"), headers=token)
                seconds.append(time.monotonic() - begin_s)
            assert answer.status_code == 204, (turn, answer.text)
            transport = httpx.HTTPTransport(local_address=VICTIM, verify=False)
            for connection in held[turn::CALLS]:
                with suppress(OSError):  # refused meanwhile
                    connection.sendall(b"x" if content else b"")
    print(f"{attack}, {url}: the slowest answer to another device took {max(seconds):.2f} s")
