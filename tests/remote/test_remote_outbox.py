"""The outbox: uploads are delivered in order, never lost, never duplicated."""

import json
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_server import Answer, faked, problem

from wattune.errors import OutputError
from wattune.records import ProfileCell, ProfileTable
from wattune.records.served import digest
from wattune.remote import Client
from wattune.remote.cache import Outbox, Upload


def table(device):
    cell = ProfileCell(batch_size=8, step_s=0.1, power_mean_w=3.0, power_peak_w=3.5, steps=5, clock_mhz=100.0)
    return ProfileTable(device=device, workload="w", cells=(cell,))


class Registry:
    """Takes each key once, as a server does, and counts what it was given."""

    def __init__(self):
        self.kept = {}
        self.times = []
        self.fails = iter(())
        self.turn = threading.Lock()

    def __call__(self, asked):
        if asked.method == "GET":
            return Answer(body=[])
        with self.turn:
            fault = next(self.fails, None)
            if fault == "before":
                return Answer(503)
            key = digest(asked.json)
            self.times.append(key)
            self.kept.setdefault(key, asked.json["device"])
            if fault == "after":  # it was done, and the answer is lost
                return Answer(201, {"id": key}, cut=3)
            return Answer(201, {"id": key[:32]})


@pytest.fixture
def said():
    return []


def test_pending_uploads_are_delivered_in_order_after_outage(tmp_path, said):
    registry = Registry()
    with faked(registry) as fake:
        fake.answer = lambda asked: Answer(503)
        with Client(fake.url, cache=tmp_path, notify=said.append, backoff_s=()) as server:
            assert server.publish_profile(table("one"), device="d") is None
            assert server.publish_profile(table("two"), device="d") is None
            assert server.pending == 2
            assert len([text for text in said if "busy" in text]) == 1  # once in plain words
        fake.answer = registry
        with Client(fake.url, cache=tmp_path, notify=said.append) as server:  # another run
            server.jobs = None
            server._request("GET", "/v1/models")  # whatever is asked first
            assert list(registry.kept.values()) == ["one", "two"]
            assert server.pending == 0


@pytest.mark.slow
@given(faults=st.lists(st.sampled_from(["before", "after", None]), max_size=12), count=st.integers(1, 4))
@settings(max_examples=15)
def test_uploads_are_delivered_exactly_once_despite_failures(tmp_path_factory, faults, count):
    registry = Registry()
    registry.fails = iter(faults)
    with faked(registry) as fake:
        cache = tmp_path_factory.mktemp("cache")
        for number in range(count):
            with Client(fake.url, cache=cache, backoff_s=(0.0,)) as server:
                server.publish_profile(table(f"device {number}"), device="d")
        for _ in range(len(faults) + 1):
            with Client(fake.url, cache=cache, backoff_s=()) as server:
                left = server.deliver()
        assert left == 0
        assert list(registry.kept.values()) == [f"device {number}" for number in range(count)]


def test_permanently_rejected_upload_is_set_aside_and_does_not_block_others(tmp_path, said):
    registry = Registry()

    def answer(asked):
        refused = asked.method == "POST" and asked.json["device"] == "bad"
        return problem(422, "no such device") if refused else registry(asked)

    with faked(answer) as fake, Client(fake.url, cache=tmp_path, notify=said.append) as server:
        assert server.publish_profile(table("bad"), device="d") is None
        assert server.publish_profile(table("good"), device="d") is not None
    assert list(registry.kept.values()) == ["good"]
    (kept,) = tmp_path.rglob("refused/*.json")
    assert json.loads(kept.read_text())["body"]["device"] == "bad"
    assert any("refused" in text and str(kept) in text for text in said)


@pytest.mark.parametrize("status", [401, 403, 404, 307, 408, 409, 425, 500])
def test_temporarily_rejected_upload_is_not_lost(tmp_path, said, status):
    with faked(lambda asked: problem(status, "not now")) as fake:
        with Client(fake.url, cache=tmp_path, notify=said.append, backoff_s=()) as server:
            assert server.publish_profile(table("one"), device="d") is None
            assert server.pending == 1
        registry = Registry()
        fake.answer = registry
        with Client(fake.url, cache=tmp_path) as server:
            assert server.deliver() == 0
    assert list(registry.kept.values()) == ["one"]


def test_two_processes_do_not_deliver_concurrently(tmp_path):
    box, other = (Outbox(tmp_path / "box", lambda text: None) for _ in range(2))
    box.put(Upload(path="/v1/profiles", params={}, body={"n": 1}))
    sent = []

    def send(_):
        other.deliver(lambda again: sent.append("other"), {})  # the lock is held meanwhile
        sent.append("own")

    box.deliver(send, {})
    assert sent == ["own"]


@pytest.mark.parametrize("status", [404, 409, 500])
def test_failing_upload_does_not_block_others_and_is_reported_once(tmp_path, said, status):
    registry = Registry()

    def answer(asked):
        fails = asked.method == "POST" and asked.json["device"] == "bad"
        return problem(status, "not this one") if fails else registry(asked)

    with faked(answer) as fake, Client(fake.url, cache=tmp_path, notify=said.append, backoff_s=()) as server:
        assert server.publish_profile(table("bad"), device="d") is None
        assert server.publish_profile(table("good"), device="d") is not None
        for _ in range(3):
            server._request("GET", "/v1/models")
        assert server.pending == 1
        assert len([asked for asked in fake.asked if asked.method == "POST"]) == 2
    assert len([text for text in said if "not this one" in text]) == 1


@pytest.mark.parametrize("content", ["{", '{"path": 1, "params": {}, "body": {}}'])
def test_invalid_file_is_set_aside(tmp_path, said, content):
    box = Outbox(tmp_path / "box", said.append)
    box.put(Upload(path="/v1/profiles", params={}, body={"n": 1}))
    (tmp_path / "box" / "00000-foreign.json").write_text(content)
    sent = []
    box.deliver(lambda one: sent.append(one.body), {})
    assert sent == [{"n": 1}]
    assert box.pending() == []
    assert [path.name for path in tmp_path.rglob("refused/*")] == ["00000-foreign.json"]


@pytest.mark.parametrize("there", [True, False])
def test_full_disk_does_not_fail_the_run(tmp_path, said, monkeypatch, there):
    def full(*_):
        raise OutputError("cannot write", value="No space left on device")

    registry = Registry()
    with faked(registry if there else lambda asked: Answer(503)) as fake:
        with Client(fake.url, cache=tmp_path, notify=said.append, backoff_s=()) as server:
            monkeypatch.setattr("wattune.remote.cache.write_json", full)
            found = server.publish_profile(table("one"), device="d")
    assert (found is not None) == there
    assert any("No space left" in text for text in said) != there


def test_unlockable_outbox_is_reported(tmp_path, said, monkeypatch):
    @contextmanager
    def broken(*_, **__):
        raise OSError(28, "No space left on device")
        yield

    with faked(Registry()) as fake, Client(fake.url, cache=tmp_path, notify=said.append) as server:
        monkeypatch.setattr("wattune.remote.cache.file_lock", broken)
        assert server.publish_profile(table("one"), device="d") is None
        assert server.pending == 1
    assert any("No space left" in text for text in said)
