"""Weights: fetched once, taken up again where they broke off, and never used with another hash."""

import hashlib
import re
import threading

import pytest
from tests.remote.remote_made import Answer, faked, problem

from wattune.errors import ServerAway, ServerError, ServerRefused
from wattune.records.served import ServedFile, ServedModel
from wattune.remote import Server

CONTENT = bytes(range(256)) * 400
FILE = ServedFile(sha256=hashlib.sha256(CONTENT).hexdigest(), bytes=len(CONTENT))
MODEL = ServedModel(
    model="made",
    factory="small-cnn",
    input_shape=(1, 8, 8),
    budget_samples=64,
    batch_sizes=(4, 8),
    weights=FILE,
    proxy={"data": {"source": "digits"}},
)


def ranged(asked, *, cut=None, content=CONTENT):
    """As a server that keeps to RFC 9110 answers."""
    found = re.fullmatch(r"bytes=(\d+)-", asked.headers.get("range", ""))
    if found is None or asked.headers.get("if-range") != f'"{FILE.sha256}"':
        return Answer(200, content, cut=cut)
    begin = int(found[1])
    if begin >= len(content):
        return Answer(416, headers={"Content-Range": f"bytes */{len(content)}"})
    headers = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
    return Answer(206, content[begin:], headers, cut=cut)


@pytest.fixture
def fetch(tmp_path):
    def fetch(answer, asked=None):
        with faked(answer) as fake, Server(fake.url, cache=tmp_path, waits_s=(0.0,)) as server:
            try:
                return server.weights(MODEL), fake
            finally:
                if asked is not None:
                    asked += fake.asked

    return fetch


def test_is_fetched_once(tmp_path):
    with faked(ranged) as fake, Server(fake.url, cache=tmp_path) as server:
        path = server.weights(MODEL)
        assert path.read_bytes() == CONTENT
        assert server.weights(MODEL) == path
        assert len(fake.asked) == 1
        assert server.weights(MODEL.model_copy(update={"weights": None})) is None


def test_goes_on_where_it_broke_off(fetch):
    cuts = iter([30_000, 20_000, None])
    path, fake = fetch(lambda asked: ranged(asked, cut=next(cuts)))
    assert path.read_bytes() == CONTENT
    begun = [int(asked.headers.get("range", "bytes=0-")[6:-1]) for asked in fake.asked]
    assert begun == [0, 30_000, 50_000]


def test_goes_on_in_a_later_run(tmp_path):
    with faked(lambda asked: ranged(asked, cut=40_000 if "range" not in asked.headers else 0)) as fake:
        with Server(fake.url, cache=tmp_path, waits_s=(0.0,)) as server, pytest.raises(ServerAway):
            server.weights(MODEL)
        fake.answer = ranged
        fake.asked.clear()
        with Server(fake.url, cache=tmp_path) as server:
            assert server.weights(MODEL).read_bytes() == CONTENT
        assert fake.asked[0].headers["range"] == "bytes=40000-"


def test_a_server_that_sends_all_of_it_again_is_taken_at_its_word(fetch):
    answers = iter([Answer(200, CONTENT, cut=10_000), Answer(200, CONTENT)])
    path, _ = fetch(lambda asked: next(answers))
    assert path.read_bytes() == CONTENT


def test_a_part_of_somewhere_else_is_thrown_away(fetch):
    begun = iter([True])

    def answer(asked):
        if next(begun, False):
            return Answer(200, CONTENT, cut=10_000)
        if "range" in asked.headers:
            return Answer(206, CONTENT[5:], {"Content-Range": f"bytes 5-{len(CONTENT) - 1}/{len(CONTENT)}"})
        return Answer(200, CONTENT)

    path, _ = fetch(answer)
    assert path.read_bytes() == CONTENT


def test_content_with_another_hash_is_tried_again_and_then_refused(fetch, tmp_path):
    damaged = CONTENT[:-1] + b"!"
    answers = iter([Answer(200, damaged), Answer(200, CONTENT)])
    path, _ = fetch(lambda asked: next(answers))
    assert path.read_bytes() == CONTENT
    path.unlink()
    with pytest.raises(ServerError, match="SHA-256"):
        fetch(lambda asked: Answer(200, damaged))
    assert not [found for found in tmp_path.rglob("*") if found.is_file() and found.suffix in (".safetensors", ".part")]


def test_more_than_was_promised_is_given_up(fetch):
    with pytest.raises(ServerError, match="longer"):
        fetch(lambda asked: Answer(200, CONTENT * 40))


def test_a_file_that_was_changed_in_the_cache_is_fetched_anew(tmp_path):
    with faked(ranged) as fake, Server(fake.url, cache=tmp_path) as server:
        path = server.weights(MODEL)
        path.write_bytes(CONTENT[:-1] + b"!")
        assert server.weights(MODEL).read_bytes() == CONTENT
        assert len(fake.asked) == 2


def test_two_at_a_time_fetch_it_once(tmp_path):
    found = []
    with faked(ranged) as fake:

        def take():
            with Server(fake.url, cache=tmp_path) as server:
                found.append(server.weights(MODEL).read_bytes())

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == [CONTENT] * 4
        assert len(fake.asked) == 1


def test_a_refusal_is_not_tried_again(fetch):
    asked = []
    with pytest.raises(ServerRefused):
        fetch(lambda _: problem(404, "no weights"), asked)
    assert len(asked) == 1
