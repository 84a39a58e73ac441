"""How a device is doing, told from beside its work."""

import threading
import time

import pytest
from tests.remote.remote_made import Answer, faked, problem
from tests.reporting import reporting_records as samples

from wattune.records.served import DeviceStatus
from wattune.remote import Reporter, Server

FIRST = DeviceStatus(device="d1", board="sim:made", kind="simulated", step="waiting")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("wattune.remote.reporter.LEAST_S", 0.05)


def until(is_so, seconds=10.0):
    end_s = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.005)
    return is_so()


def states(fake):
    return [asked.json for asked in fake.asked if asked.method == "PUT"]


def test_the_newest_state_is_sent_and_the_last_one_for_sure(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake, Server(fake.url, cache=tmp_path) as server:
        with Reporter(server, FIRST) as reporter:
            assert until(lambda: fake.asked)
            for done in range(1000):
                reporter.tell(step="train", share=done / 1000)
            reporter.tell(step="done", share=1.0)
        assert states(fake)[0]["step"] == "waiting"
        assert (states(fake)[-1]["step"], states(fake)[-1]["share"]) == ("done", 1.0)
        assert len(states(fake)) < 20
        assert fake.asked[0].path == "/v1/devices/d1"


def test_at_most_one_a_second(tmp_path):
    with faked(lambda asked: Answer(204)) as fake, Server(fake.url, cache=tmp_path) as server:
        begin_s = time.monotonic()
        with Reporter(server, FIRST) as reporter:
            while time.monotonic() - begin_s < 1.5:
                reporter.tell(step="train", samples=1)
                time.sleep(0.01)
        assert 2 <= len(states(fake)) <= 3


def test_a_server_that_hangs_holds_nothing_up(tmp_path, monkeypatch):
    monkeypatch.setattr("wattune.remote.server.STATUS_S", 0.2)
    monkeypatch.setattr("wattune.remote.reporter.STATUS_S", 0.2)
    stuck = threading.Event()
    with faked(lambda asked: stuck.wait(20) and Answer(204)) as fake:
        with Server(fake.url, cache=tmp_path) as server:
            begin_s = time.monotonic()
            with Reporter(server, FIRST) as reporter:
                reporter.tell(step="train")
            assert time.monotonic() - begin_s < 5
        stuck.set()


@pytest.mark.parametrize("answer", [Answer(503), problem(403, "no"), problem(422, "no"), Answer(500)])
def test_a_server_that_refuses_fails_nothing(tmp_path, quick, answer):
    with faked(lambda asked: answer) as fake, Server(fake.url, cache=tmp_path, waits_s=()) as server:
        with Reporter(server, FIRST) as reporter:
            assert until(lambda: len(fake.asked) >= 2 or not reporter.tell(step="train"))
        assert fake.asked


def test_what_no_status_can_say_is_left_out(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake, Server(fake.url, cache=tmp_path) as server:
        with Reporter(server, FIRST) as reporter:
            reporter.tell(metric=float("nan"), power_w=float("inf"), share=7.0, says="x" * 1000)
            reporter.tell(step="no such step")
            assert reporter.status.metric is None
            assert reporter.status.share == 1.0
            assert len(reporter.status.says) == 500
        assert states(fake)[-1]["step"] == "waiting"


def test_an_error_is_told_by_its_kind_alone(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake, Server(fake.url, cache=tmp_path) as server:
        with pytest.raises(ValueError, match="secret"), Reporter(server, FIRST):
            raise ValueError("a label of the secret data: 7")
        last = states(fake)[-1]
        assert (last["step"], last["says"]) == ("failed", "ended by ValueError")
        assert not any(b"secret" in asked.body for asked in fake.asked)


def plan():
    made = samples.run().plan
    assert made is not None
    return made


def test_a_refusal_is_told_once_and_a_refused_plan_is_not_sent_again(tmp_path, quick):
    said = []

    def answer(asked):
        return problem(422, "not such a plan") if asked.path.partition("?")[0].endswith("/plan") else Answer(204)

    with faked(answer) as fake, Server(fake.url, cache=tmp_path, tell=said.append) as server:
        with Reporter(server, FIRST) as reporter:
            reporter.tell_plan(plan(), profile=None, job=None)
            assert until(lambda: len(states(fake)) > 4 or reporter.tell(samples=1))
    assert len([asked for asked in fake.asked if "/plan" in asked.path]) == 1
    assert len([text for text in said if "not such a plan" in text]) == 1


def test_a_refused_status_is_told_once(tmp_path, quick):
    said = []
    with faked(lambda asked: problem(403, "no")) as fake:
        with Server(fake.url, cache=tmp_path, tell=said.append) as server, Reporter(server, FIRST) as reporter:
            assert until(lambda: len(fake.asked) > 3 or reporter.tell(samples=1))
    assert len(said) == 1


def test_a_callback_that_raises_does_not_end_the_thread(tmp_path, quick):
    def raises(text):
        raise ZeroDivisionError(text)

    with faked(lambda asked: problem(403, "no")) as fake:
        with Server(fake.url, cache=tmp_path, tell=raises) as server, Reporter(server, FIRST) as reporter:
            assert until(lambda: fake.asked)
            fake.answer = lambda asked: Answer(204)
            sent = len(fake.asked)
            assert until(lambda: len(fake.asked) > sent + 1 or reporter.tell(samples=1))


def test_a_client_that_is_closed_too_early_fails_nothing(tmp_path, quick):
    with faked(lambda asked: Answer(204)) as fake:
        server = Server(fake.url, cache=tmp_path)
        with Reporter(server, FIRST) as reporter:
            assert until(lambda: fake.asked)
            server.close()
            reporter.tell(step="done")
    assert not reporter._thread.is_alive()
