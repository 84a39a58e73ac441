"""Requests to a server: headers, retries, timeouts and error messages."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing

import pytest
from tests.support.fake_server import Answer, faked, problem

from wattune.errors import InputError, ServerError, ServerRefused, ServerUnavailable
from wattune.remote.connection import Connection

QUICK = (0.0, 0.0, 0.0)


@pytest.fixture
def connection():
    made = []

    def connect(url, **changes):
        made.append(Connection(url, **{"backoff_s": QUICK, **changes}))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host", "host:8484", "http://", "http://host:99999", "http://h/?a=b", "http://h#x", "http://h x", ""),
        *("//h", "http://exa\x00mple", "http://xn--zz--a\u0301.", f"http://{64 * 'a'}.com", "http://a..b"),
    ],
)
def test_invalid_url_is_rejected(url):
    with pytest.raises(InputError, match="http://host:8484"):
        Connection(url)


def test_password_in_url_is_rejected_and_hidden():
    with pytest.raises(InputError, match="WATTUNE_TOKEN") as caught:
        Connection("http://me:secret@host:8484")
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError) as caught:
        Connection("gopher://me:secret@host")
    assert "secret" not in str(caught.value)


def test_token_comes_from_argument_or_environment(connection, monkeypatch):
    monkeypatch.setenv("WATTUNE_TOKEN", " wt_a_b\n")
    with faked(lambda asked: Answer(body={})) as fake:
        connection(fake.url).request("GET", "/v1/models")
        connection(fake.url, token="wt_c_d").request("GET", "/v1/models")
        connection(fake.url, token="").request("GET", "/v1/models")
    sent = [asked.headers.get("authorization") for asked in fake.asked]
    assert sent == ["Bearer wt_a_b", "Bearer wt_c_d", None]


def test_multiline_token_is_rejected_and_hidden():
    with pytest.raises(InputError) as caught:
        Connection("http://host", token="secret\nInjected: yes")
    assert "secret" not in str(caught.value)


def test_busy_server_is_retried_after_retry_after(connection, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    busy = [problem(503, "full", **{"Retry-After": after}) for after in ("7", "86400")]
    answers = iter([*busy, problem(429, "slow"), Answer(body={"fine": 1})])
    with faked(lambda asked: next(answers)) as fake:
        found = connection(fake.url, backoff_s=(0.5, 0.5, 1.0)).request("POST", "/v1/jobs", body={"model": "m"})
    assert found == {"fine": 1}
    assert slept[:2] == [7.0, 30.0]
    assert 0.5 <= slept[2] <= 1.0
    assert [asked.json for asked in fake.asked] == [{"model": "m"}] * 4


def test_unreachable_server_is_then_tried_once_without_retries(connection, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    away = connection(f"http://127.0.0.1:{closed_port()}")
    for attempts in (3, 0):
        slept.clear()
        with pytest.raises(ServerUnavailable, match="cannot be reached"):
            away.request("GET", "/v1/models")
        assert len(slept) == attempts
        assert away.is_unavailable


def test_truncated_response_is_retried(connection):
    answers = iter([Answer(body={"whole": True}, cut=4), Answer(body={"whole": True})])
    with faked(lambda asked: next(answers)) as fake:
        assert connection(fake.url).request("GET", "/v1/models") == {"whole": True}


def test_timeout_means_unavailable(connection):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(ServerUnavailable, match="timed out"):
            connection(f"http://127.0.0.1:{silent.getsockname()[1]}").request(
                "GET", "/v1/models", retries=False, timeout_s=0.2
            )


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_token_is_an_input_error_with_a_hint(connection, status):
    with faked(lambda asked: problem(status, "this token has the scope read")) as fake:
        with pytest.raises(ServerRefused, match=r"scope read; pass a token in WATTUNE_TOKEN") as caught:
            connection(fake.url, token="wt_secret_1").request("GET", "/v1/models")
    assert caught.value.exit_code == 2
    assert caught.value.status == status
    assert "wt_secret_1" not in str(caught.value)
    assert len(fake.asked) == 1


def test_redirect_is_not_followed_with_token(connection):
    with faked(lambda asked: Answer(body={})) as other:
        with faked(lambda asked: Answer(307, headers={"Location": f"{other.url}/v1/models"})) as fake:
            with pytest.raises(ServerRefused, match="it has moved"):
                connection(fake.url, token="wt_a_b").request("GET", "/v1/models")
        assert other.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body="<html>log in to this network</html>"),
        Answer(body='{"a": NaN}'),
        Answer(body="[" * 100_000),
        Answer(body=b"\xff\xfe"),
    ],
)
def test_foreign_server_is_reported(connection, answer):
    with faked(lambda asked: answer) as fake:
        with pytest.raises(ServerError, match="not a wattune server"):
            connection(fake.url).request("GET", "/v1/models")


def test_oversized_response_is_aborted(connection, monkeypatch):
    monkeypatch.setattr("wattune.remote.connection.MAX_BYTES", 1000)
    with faked(lambda asked: Answer(body="1" * 100_000)) as fake:
        with pytest.raises(ServerError, match="exceeds"):
            connection(fake.url).request("GET", "/v1/models")


def test_server_failure_is_not_an_input_error(connection):
    with faked(lambda asked: problem(500, "something broke")) as fake:
        with pytest.raises(ServerError, match="failed: something broke") as caught:
            connection(fake.url).request("GET", "/v1/models")
    assert caught.value.exit_code == 1


def certificate(folder):
    """A certificate of this machine's own, for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=lab", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_certificate_is_verified_against_custom_authority(connection, tmp_path, monkeypatch):
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"

        def answer():
            for _ in range(2):
                raw, _address = listening.accept()
                try:
                    with context.wrap_socket(raw, server_side=True) as secure:
                        secure.recv(65536)
                        secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
                except OSError:
                    raw.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(ServerRefused, match=r"cannot be verified.*SSL_CERT_FILE"):
            connection(url).request("GET", "/v1/models")
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert connection(url).request("GET", "/v1/models") == {}
        thread.join(5)


def test_unreadable_certificate_file_is_reported(tmp_path, monkeypatch):
    (tmp_path / "no.pem").write_text("nothing")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "no.pem"))
    with pytest.raises(InputError, match="SSL_CERT_FILE"):
        Connection("https://host")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "http://127.0.0.1:no"])
def test_unusable_proxy_is_reported(monkeypatch, proxy):
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(InputError, match="ALL_PROXY"):
        Connection("http://host:8484")


def test_closed_connection_is_unavailable(connection):
    with faked(lambda asked: Answer(body={})) as fake:
        closed = connection(fake.url)
        closed.close()
        with pytest.raises(ServerUnavailable, match="was closed"):
            closed.request("GET", "/v1/models", retries=False)


def test_hint_of_the_server_is_said_once():
    from wattune_server.problems import Problem, answer

    body = json.loads(
        bytes(answer(Problem(403, "no", value="a", hint="do that"), {"path": "/v1/jobs", "headers": []}).body)
    )
    with faked(lambda asked: Answer(403, body)) as fake, closing(Connection(fake.url)) as connection:
        with pytest.raises(ServerRefused) as refusal:
            connection.request("GET", "/v1/models")
    assert str(refusal.value).count("do that") == 1
