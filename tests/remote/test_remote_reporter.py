"""Status reports from the background thread."""

import threading
import time

import pytest
from tests.support.fake_server import Answer, faked, problem

from wattune.records.served import DeviceStatus
from wattune.remote import Client, Reporter

FIRST = DeviceStatus(device="d1", board="sim:made", kind="simulated", step="waiting")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("wattune.remote.reporter.MIN_INTERVAL_S", 0.05)


def until(is_so, seconds=10.0):
    end_s = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.005)
    return is_so()


def states(fake):
    return [asked.json for asked in fake.asked if asked.method == "PUT"]


def test_newest_status_is_sent_and_final_one_guaranteed(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake, Client(fake.url, cache=tmp_path) as server:
        with Reporter(server, FIRST) as reporter:
            assert until(lambda: fake.asked)
            for done in range(1000):
                reporter.update(step="train", share=done / 1000)
            reporter.update(step="done", share=1.0)
        assert states(fake)[0]["step"] == "waiting"
        assert (states(fake)[-1]["step"], states(fake)[-1]["share"]) == ("done", 1.0)
        assert len(states(fake)) < 20
        assert fake.asked[0].path == "/v1/devices/d1"


def test_hanging_server_does_not_block(tmp_path, monkeypatch):
    monkeypatch.setattr("wattune.remote.client.STATUS_S", 0.2)
    monkeypatch.setattr("wattune.remote.reporter.STATUS_S", 0.2)
    stuck, answered = threading.Event(), []

    def answer(asked):
        stuck.wait(60)
        answered.append(asked)
        return Answer(204)

    with faked(answer) as fake:
        with Client(fake.url, cache=tmp_path) as server:
            with Reporter(server, FIRST) as reporter:
                reporter.update(step="train")
            assert answered == []
        stuck.set()


def test_invalid_status_values_are_dropped(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake, Client(fake.url, cache=tmp_path) as server:
        with Reporter(server, FIRST) as reporter:
            reporter.update(metric=float("nan"), power_w=float("inf"), share=7.0, says="x" * 1000)
            reporter.update(step="no such step")
            assert reporter.status.metric is None
            assert reporter.status.share == 1.0
            assert len(reporter.status.says) == 500
        assert states(fake)[-1]["step"] == "waiting"


def test_only_the_error_type_is_reported(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake, Client(fake.url, cache=tmp_path) as server:
        with pytest.raises(ValueError, match="secret"), Reporter(server, FIRST):
            raise ValueError("a label of the secret data: 7")
        last = states(fake)[-1]
        assert (last["step"], last["says"]) == ("failed", "ended by ValueError")
        assert not any(b"secret" in asked.body for asked in fake.asked)


def test_rejected_status_is_notified_once(tmp_path, quick):
    said = []
    with faked(lambda asked: problem(403, "no")) as fake:
        with Client(fake.url, cache=tmp_path, notify=said.append) as server, Reporter(server, FIRST) as reporter:
            assert until(lambda: len(fake.asked) > 3 or reporter.update(samples=1))
    assert len(said) == 1


def test_raising_callback_does_not_end_the_thread(tmp_path, quick):
    def raises(text):
        raise ZeroDivisionError(text)

    with faked(lambda asked: problem(403, "no")) as fake:
        with Client(fake.url, cache=tmp_path, notify=raises) as server, Reporter(server, FIRST) as reporter:
            assert until(lambda: fake.asked)
            fake.answer = lambda asked: Answer(204)
            sent = len(fake.asked)
            assert until(lambda: len(fake.asked) > sent + 1 or reporter.update(samples=1))


def test_early_close_of_the_client_does_not_fail(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake:
        server = Client(fake.url, cache=tmp_path)
        with Reporter(server, FIRST) as reporter:
            assert until(lambda: fake.asked)
            server.close()
            reporter.update(step="done")
    assert not reporter._thread.is_alive()
