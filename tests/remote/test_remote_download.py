"""Downloads of weights: once, and verified by hash."""

import hashlib
import subprocess
import sys
import threading

import pytest
from tests.support import fake_server
from tests.support.fake_server import Answer, faked

from wattune.errors import ServerError
from wattune.records.served import ServedFile
from wattune.remote import Client

CONTENT = bytes(range(256)) * 400
FILE = ServedFile(sha256=hashlib.sha256(CONTENT).hexdigest(), bytes=len(CONTENT))
MODEL = fake_server.MODEL.model_copy(update={"weights": FILE})


def whole(asked):
    return Answer(200, CONTENT)


@pytest.fixture
def fetch(tmp_path):
    def fetch(answer):
        with faked(answer) as fake, Client(fake.url, cache=tmp_path, backoff_s=(0.0,)) as server:
            return server.weights(MODEL)

    return fetch


def test_download_is_cached(tmp_path):
    with faked(whole) as fake, Client(fake.url, cache=tmp_path) as server:
        path = server.weights(MODEL)
        assert path.read_bytes() == CONTENT
        assert server.weights(MODEL) == path
        assert len(fake.asked) == 1
        assert server.weights(MODEL.model_copy(update={"weights": None})) is None


def test_interrupted_download_begins_again(fetch):
    answers = iter([Answer(200, CONTENT, cut=10_000), Answer(200, CONTENT)])
    path = fetch(lambda asked: next(answers))
    assert path.read_bytes() == CONTENT


def test_hash_mismatch_is_retried_then_rejected(fetch, tmp_path):
    damaged = CONTENT[:-1] + b"!"
    answers = iter([Answer(200, damaged), Answer(200, CONTENT)])
    path = fetch(lambda asked: next(answers))
    assert path.read_bytes() == CONTENT
    path.unlink()
    with pytest.raises(ServerError, match="SHA-256"):
        fetch(lambda asked: Answer(200, damaged))
    assert not [found for found in tmp_path.rglob("*") if found.is_file() and found.suffix in (".safetensors", ".part")]


def test_oversized_download_is_aborted(fetch):
    with pytest.raises(ServerError, match="larger than expected"):
        fetch(lambda asked: Answer(200, CONTENT * 40))


def test_corrupted_cached_file_is_downloaded_again_and_the_rest_of_a_killed_download_removed(tmp_path):
    with faked(whole) as fake, Client(fake.url, cache=tmp_path) as server:
        path = server.weights(MODEL)
        path.write_bytes(CONTENT[:-1] + b"!")
        killed = "import os, sys, wattune.files as f; f.write_bytes(sys.argv[1], (os._exit(9) for part in [0]))"
        assert subprocess.run([sys.executable, "-c", killed, path]).returncode == 9
        assert len(list(path.parent.glob(".*"))) == 1
        assert server.weights(MODEL).read_bytes() == CONTENT
        assert len(fake.asked) == 2
        assert not list(path.parent.glob(".*"))


def test_concurrent_downloads_fetch_once(tmp_path):
    found = []
    with faked(whole) as fake:

        def take():
            with Client(fake.url, cache=tmp_path) as server:
                found.append(server.weights(MODEL).read_bytes())

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == [CONTENT] * 4
        assert len(fake.asked) == 1
