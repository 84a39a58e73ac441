"""TLS with a self-signed certificate, made by the command in the docs."""

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.support.server.served import model
from tests.support.server.serving import serving, wait_for

from wattune.errors import InputError, WattuneError
from wattune.remote import Client
from wattune.server.settings import sqlite_url
from wattune.server.store import Database, model_catalog, tokens

PAGE = Path(__file__).parent.parent.parent / "docs" / "server.md"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, which is not installed")


def certificate(folder):
    """The command of docs/server.md, for this machine's own name and address."""
    (command,) = re.findall(r"^    (openssl req .*?)\n    wattune", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    command = command.replace("trainer.lan", "localhost").replace("192.168.1.20", "127.0.0.1")
    subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.slow
def test_device_trusts_only_the_given_certificate(tmp_path, monkeypatch):
    cert, key = certificate(tmp_path)
    store = tmp_path / "store"
    store.mkdir()
    database = Database(sqlite_url(store))
    database.upgrade()
    with database.session() as session:
        model_catalog.put(session, model(), 0.0)
        token = tokens.make(session, "lab", "device", 0.0)
    database.close()
    with serving(store, "--workers", "0", "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        assert server.url.startswith("https://")
        with Client(server.url, token=token, cache=tmp_path / "none", backoff_s=()) as client:
            with pytest.raises(WattuneError, match="SSL_CERT_FILE"):
                client.model(model().model)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with Client(server.url, token=token, cache=tmp_path / "cache", backoff_s=()) as client:
            assert client.model(model().model) == model()
        # The same port without TLS gives nothing away.
        with Client(server.url.replace("https", "http"), token=token, cache=tmp_path / "plain", backoff_s=()) as client:
            with pytest.raises(WattuneError):
                client.model(model().model)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "not-there.pem"))
    with pytest.raises(InputError, match="SSL_CERT_FILE"):
        Client(server.url, token=token, cache=tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_renewed_certificate_is_used_without_a_restart(tmp_path, processes):
    cert, key = certificate(tmp_path)
    options = ("--workers", "0", "--api-processes", processes, "--tls-cert", str(cert), "--tls-key", str(key))
    with serving(tmp_path / "store", *options) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        assert ssl.get_server_certificate(address) == cert.read_text()
        certificate(tmp_path)
        renewed = cert.read_text()

        def loaded():
            return server.log.read_text().count("the TLS certificate has changed and was loaded again")

        wait_for(lambda: loaded() == int(processes))
        assert {ssl.get_server_certificate(address) for _ in range(10)} == {renewed}
