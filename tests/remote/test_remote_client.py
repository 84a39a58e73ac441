"""The client: caching for outages, and validation of responses."""

import time

import pytest
from tests.support.fake_server import MODEL, Answer, faked, problem

from wattune.errors import InputError, ServerError, ServerUnavailable
from wattune.records import EfficiencyPoint, SampleEfficiency
from wattune.records.served import SweepRequest
from wattune.remote import Client

REQUEST = SweepRequest(model="made")
JOB = REQUEST.key(MODEL.digest)
CURVE = SampleEfficiency(
    workload="made", reference_batch_size=8, points=(EfficiencyPoint(batch_size=8, relative_samples=1.0),)
)


def status(state, done=0, **changes):
    values = {"job": JOB, "request": REQUEST.model_dump(mode="json"), "state": state, "runs_done": done}
    return {**values, "runs_most": 4, "created_s": 1.0, **changes}


class Answers:
    """The API of a server that has one model and one job. ``states``: of the job, one after the other;
    None: the server is busy."""

    def __init__(self, *states):
        self.states = list(states) or ["done"]
        self.is_away = False
        self.job = JOB

    def __call__(self, asked):
        path = asked.path.partition("?")[0]
        if self.is_away:
            return Answer(503)
        if path.endswith("/curve"):
            return Answer(body=CURVE.dump())
        if path.startswith("/v1/jobs"):
            state = self.states[0] if len(self.states) == 1 or asked.method == "POST" else self.states.pop(0)
            return Answer(503) if state is None else Answer(body={**status(state, reason="why"), "job": self.job})
        return Answer(body=MODEL.dump()) if path == "/v1/models/made" else problem(404, "no such model")


@pytest.fixture
def said():
    return []


@pytest.fixture
def serve(tmp_path, said, monkeypatch):
    """A server, and its client; the client does not really sleep."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    opened = []

    def serve(answers, **changes):
        fake = faked(answers)
        url = fake.__enter__().url
        server = Client(url, cache=tmp_path, notify=said.append, backoff_s=(), **changes)
        opened.append((fake, server))
        return server

    yield serve
    for fake, server in opened:
        server.close()
        fake.__exit__(None, None, None)


def test_model_is_cached_for_outages(serve, said):
    answers = Answers()
    server = serve(answers)
    assert server.model("made") == MODEL
    answers.is_away = True
    assert server.model("made") == MODEL
    assert server.model("made") == MODEL
    day = time.strftime("%Y-%m-%d", time.gmtime())
    assert said == [
        f"the server {server.url} is busy (status 503)",  # once
        *[f"using the model made cached on {day}"] * 2,
    ]


def test_model_is_found_by_architecture_and_input_size(serve, said):
    answers, listed = Answers(), [MODEL.dump()]

    def answer(asked):
        assert asked.path == f"/v1/models?architecture={MODEL.factory}&input_shape={MODEL.size.partition('@')[2]}"
        return Answer(503) if answers.is_away else Answer(body={"models": listed})

    server = serve(answer)
    assert server.model(MODEL.size) == MODEL
    answers.is_away = True
    assert server.model(MODEL.size) == MODEL
    assert f"using the model {MODEL.size} cached on" in said[-1]
    answers.is_away = False
    listed.append(MODEL.model_copy(update={"model": "other"}).dump())
    with pytest.raises(InputError, match=f"several models .*{MODEL.size}.* by name: made, other"):
        server.model(MODEL.size)
    listed.clear()
    with pytest.raises(InputError, match=f"no such model .*{MODEL.size}.*/models lists them"):
        server.model(MODEL.size)
    listed.append({**MODEL.dump(), "input_shape": [1]})
    with pytest.raises(ServerError, match="instead of"):
        server.model(MODEL.size)


@pytest.mark.parametrize(
    "name", ["../made", "Made", "a/b", "", "os:system", "a" * 65, "a@", "@3", "a@0x3", "a@3x", "a@b@3", "a@3x3x3x3x3"]
)
def test_invalid_model_name_sends_no_request(serve, name):
    with pytest.raises(InputError, match="model"):
        serve(Answers()).model(name)


@pytest.mark.parametrize("change", [{"model": "other"}, {"factory": "os:system"}, {"record": "profile"}, {"extra": 1}])
def test_invalid_model_is_rejected_and_not_cached(serve, change):
    server = serve(lambda asked: Answer(body={**MODEL.dump(), **change}))
    with pytest.raises(ServerError):
        server.model("made")
    assert not list(server._cache.folder.rglob("*.json"))


def test_client_waits_between_looks_and_says_what_it_knows(tmp_path, monkeypatch):
    slept, left = [], [None, "running", None, "done"]
    monkeypatch.setattr(time, "sleep", slept.append)

    def answer(asked):
        if asked.path.endswith("/curve"):
            return Answer(body=CURVE.dump())
        if "if-none-match" not in asked.headers:
            return Answer(body=status("running"))
        state = left.pop(0)
        return Answer(304) if state is None else Answer(body=status(state))

    with faked(answer) as fake, Client(fake.url, cache=tmp_path, backoff_s=()) as server:
        assert server.sweep(REQUEST, MODEL) == CURVE
    assert [1 < seconds <= 5 for seconds in slept] == [True] * 4
    looks = [asked.headers for asked in fake.asked if asked.path == f"/v1/jobs/{JOB}"]
    assert all(look["if-none-match"] for look in looks[1:])


def test_client_waits_for_a_curve(serve):
    server, told = serve(Answers("waiting", "running", None, "running", "done")), []
    assert server.sweep(REQUEST, MODEL, lambda *what: told.append(what)) == CURVE
    # What is new is told, and nothing twice.
    assert told == [(0, 4, "on the server, waiting"), (0, 4, "on the server, running"), (0, 0, "done")]


def test_curve_is_cached_for_outages(serve, said):
    answers = Answers()
    server = serve(answers)
    server.sweep(REQUEST, MODEL)
    answers.is_away = True
    assert server.sweep(REQUEST, MODEL) == CURVE
    assert sum("using the curve cached on" in text for text in said) == 1


def test_long_outage_times_out(serve):
    answers = Answers()
    answers.is_away = True
    server = serve(answers, outage_timeout_s=0.0)
    with pytest.raises(ServerUnavailable, match="--resume"):
        server.sweep(REQUEST, MODEL)


@pytest.mark.parametrize(
    ("state", "kind"), [("failed", InputError), ("parked", ServerError), ("cancelled", ServerError)]
)
def test_failed_job_reports_its_reason(serve, state, kind):
    with pytest.raises(kind, match="cancelled" if state == "cancelled" else "why"):
        serve(Answers("running", state)).sweep(REQUEST, MODEL)


def test_changed_model_is_detected(serve):
    answers = Answers()
    answers.job = "another"
    with pytest.raises(InputError, match="has changed since this run began"):
        serve(answers).sweep(REQUEST, MODEL)


def test_invalid_job_status_is_reported(serve):
    with pytest.raises(ServerError, match="invalid job status"):
        serve(lambda asked: Answer(body={"job": 1})).sweep(REQUEST, MODEL)


def test_each_server_has_its_own_cache_folder(tmp_path):
    urls = ["http://h:1", "http://h:2", "https://h", "http://h", "http://h/a", "http://h/b", "http://[::1]:1"]
    names = set()
    for url in urls:
        with Client(url, cache=tmp_path) as server:
            names.add(server._cache.folder.name)
    assert len(names) == len(urls)


@pytest.mark.parametrize(
    ("url", "token", "warns"),
    [
        ("http://lab:8484", "wt_a_b", True),
        ("HTTP://lab", "wt_a_b", True),
        ("HTTP://LOCALHOST", "wt_a_b", False),
        ("https://lab:8484", "wt_a_b", False),
        ("http://127.0.0.1:8484", "wt_a_b", False),
        ("http://[::1]:8484", "wt_a_b", False),
        ("http://lab:8484", "", False),
        ("http://localhost.lab:8484", "wt_a_b", True),
    ],
)
def test_plain_token_over_network_is_reported(tmp_path, said, url, token, warns):
    with Client(url, token=token, cache=tmp_path, notify=said.append):
        assert [text for text in said if "unencrypted" in text] == said
        assert bool(said) == warns


def test_local_server_bypasses_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with faked(Answers()) as fake, Client(fake.url, cache=tmp_path, backoff_s=()) as server:
        assert server.model("made") == MODEL
