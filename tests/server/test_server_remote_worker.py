"""Workers on other machines, over HTTP: the same bytes as the server's own, and what ends one."""

from __future__ import annotations

import re
import signal
import time
from contextlib import ExitStack
from functools import partial

import pytest
from tests.server.conftest import opened, served
from tests.server.test_server_chaos import SECOND_LONG, outcome, status_of, submitted, token_of
from tests.server.test_server_worker import weights_for
from tests.support.fake_server import Answer, faked
from tests.support.server.prefix_proxy import behind_prefix
from tests.support.server.served import pooled, request
from tests.support.server.serving import far_worker, wait_for

from wattune.cli import main
from wattune.errors import ServerRefused
from wattune.remote.connection import Connection
from wattune.server.jobs import queue
from wattune.server.jobs.remote_worker import RemoteQueue
from wattune.server.jobs.worker import Worker
from wattune.server.jobs.worker_process import StoreQueue
from wattune.server.store import tokens


@pytest.fixture
def remote():
    """Make a queue: (URL, token, folder) -> RemoteQueue."""
    with ExitStack() as stack:

        def make(url, token, folder):
            connection = Connection(url, token=token, backoff_s=())
            stack.callback(connection.close)
            return RemoteQueue(connection, "far", folder, "cpu")

        yield make


def worked(queue, monkeypatch):
    """Work until nothing waits."""
    monkeypatch.setattr("wattune.server.jobs.remote_worker.WAIT_S", 0)
    worker = Worker(queue)
    while worker.step():
        pass


@pytest.mark.parametrize(
    "asked",
    [
        request(seeds=1, batch_sizes=[64]),
        pytest.param(pooled(batch_sizes=[16, 64]), marks=pytest.mark.slow),
    ],
)
def test_remote_worker_equals_local_worker(remote, tmp_path, monkeypatch, asked):
    found = {}
    for kind in ("local", "remote"):
        with opened(tmp_path / kind) as store:
            job_id = submitted(store, asked)
            if kind == "local":
                worked(StoreQueue("w1", store.database, store.settings.store), monkeypatch)
            else:
                with served(store) as url:
                    worked(remote(url, token_of(store), tmp_path / "cache"), monkeypatch)
            assert status_of(store, job_id).state == "done"
            found[kind] = outcome(store, job_id)
            for run in status_of(store, job_id).runs:
                assert len(store.files.read(run.curve)) > 100
    assert found["local"] == found["remote"]
    assert not any((tmp_path / "cache" / "work-cpu").iterdir())


def test_files_are_fetched_once_and_checked(remote, tmp_path, monkeypatch):
    with opened(tmp_path / "store") as store, served(store) as url:
        weights = weights_for(store)
        job_id = submitted(store, request(seeds=1, batch_sizes=[64]), weights=weights)
        far = remote(url, token_of(store), tmp_path / "cache")
        damaged = far.files.path(weights["sha256"])
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(b"\0" * weights["bytes"])
        worked(far, monkeypatch)
        assert status_of(store, job_id).state == "done", status_of(store, job_id).reason
        assert damaged.read_bytes() == store.files.read(weights["sha256"])
        store.files.path(weights["sha256"]).unlink()  # so it cannot be fetched a second time
        job_id = submitted(store, request(seeds=1, batch_sizes=[32]), weights=weights)
        worked(far, monkeypatch)
        assert status_of(store, job_id).state == "done", status_of(store, job_id).reason


def test_reason_of_a_failure_may_have_any_character(remote, tmp_path):
    def breaking(sweep, run, look):
        raise ValueError("a\0b\ud800c\nd \u00e9")

    with opened(tmp_path / "store") as store, served(store) as url:
        job_id = submitted(store, request(seeds=1, batch_sizes=[64]))
        assert Worker(remote(url, token_of(store), tmp_path / "cache"), train=breaking).step()
        [run] = status_of(store, job_id).runs
        assert (run.state, run.reason) == ("waiting", "ValueError: a?b?c d \u00e9")


def test_lost_lease_drops_the_result(remote, tmp_path):
    with opened(tmp_path / "store") as store, served(store) as url:
        job_id = submitted(store, request(seeds=1, batch_sizes=[64]))
        far = remote(url, token_of(store), tmp_path / "cache")
        claim = far.claim()
        with store.database.session() as session:
            queue.cancel(session, job_id, time.time())
        assert not far.renew(claim)
        assert not far.fail(claim, "late", is_final=True)
        far.release(claim)
        assert [run.state for run in status_of(store, job_id).runs] == ["cancelled"]


def test_lost_answer_to_a_claim_loses_no_unit(remote, tmp_path):
    with opened(tmp_path / "store") as store, served(store) as url:
        job_id = submitted(store, request(seeds=2, batch_sizes=[64]))
        far = remote(url, token_of(store), tmp_path / "cache")
        first = far._claimed(0)
        far._is_used = False  # as if the answer had been lost
        assert far.claim() == first
        far._is_used = False
        far.give_back()
        assert {(run.state, run.attempts) for run in status_of(store, job_id).runs} == {("waiting", 0)}


@pytest.mark.parametrize("route", ["finish", "choice"])
def test_result_whose_answer_was_lost_counts(remote, tmp_path, monkeypatch, caplog, route):
    caplog.set_level("INFO", logger="wattune.server.jobs.worker")
    lost = []
    with opened(tmp_path / "store") as store, served(store) as upstream, behind_prefix(upstream, "") as proxied:
        forward = proxied.proxy.answer

        def answer(asked):
            given = forward(asked)
            if asked.path.endswith(route) and not lost:
                lost.append(given.status)
                return Answer(200, b"lost", cut=0)
            return given

        proxied.proxy.answer = answer
        job_id = submitted(store, request(seeds=1, batch_sizes=[64]))
        worked(remote(proxied.url, token_of(store), tmp_path / "cache"), monkeypatch)
        assert status_of(store, job_id).state == "done"
        assert [run.attempts for run in status_of(store, job_id).runs] == [1]
    assert lost == [204]
    assert "lease lost" not in caplog.text
    assert len(re.findall(" done in ", caplog.text)) == 2


@pytest.mark.slow
def test_revoked_token_ends_the_worker(remote, tmp_path):
    with opened(tmp_path / "store") as store, served(store) as url:
        submitted(store, request(seeds=1, batch_sizes=[64]))
        far = remote(url, token_of(store), tmp_path / "cache")
        claim = far.claim()
        with store.database.session() as session:
            tokens.revoke(session, "lab", time.time())

        def is_refused():
            return not far.renew(claim)

        wait_for(is_refused)
        with pytest.raises(ServerRefused, match="the token was revoked"):
            Worker(far).run()


@pytest.fixture
def refused(capsys, monkeypatch):
    """Call ``wattune worker`` in this process: (options) -> the one line that it says."""
    monkeypatch.setattr("wattune.server.jobs.remote_worker.Connection", partial(Connection, backoff_s=()))
    monkeypatch.delenv("WATTUNE_TOKEN", raising=False)

    def call(*options):
        code = main(["worker", *map(str, options)])
        captured = capsys.readouterr()
        assert (code, captured.out, captured.err.count("\n")) == (2, "", 1), captured.err
        return captured.err

    return call


def test_unusable_options_are_one_line(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    local = "http://127.0.0.1:9"
    for options, said in (
        (["--server", local, "--token-file", tmp_path / "nothing"], "--token-file cannot be read"),
        (["--server", local, "--token-file", tmp_path / "bytes"], "it is not text"),
        (["--server", "ftp://x"], "allowed: an address such as http://host:8484"),
        (["--server", local, "--device", "tpu"], "--device: tpu; allowed: cpu or cuda"),
        (["--server", local, "--device", "cuda"], "torch finds no CUDA device on this machine"),
        (["--server", local, "--name", "a b"], "name of the worker: a b"),
        (["--server", local], f"the server {local} cannot be reached"),
        ([], "Missing option '--server'"),
    ):
        assert said in refused(*options), options


def test_servers_that_refuse_are_one_line(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with opened(tmp_path / "store") as store, served(store) as url:
        for name, scope in (("a", "read"), ("b", "worker")):
            (tmp_path / name).write_text(token_of(store, name, scope))
        (tmp_path / "bad").write_text(f"wt_{'0' * 12}_{'A' * 43}")
        assert "authentication required" in refused("--server", url)
        assert "no such token" in refused("--server", url, "--token-file", tmp_path / "bad")
        assert "insufficient token scope" in refused("--server", url, "--token-file", tmp_path / "a")
        assert "rejected the request" in refused("--server", f"{url}/else", "--token-file", tmp_path / "b")
        monkeypatch.setattr("wattune.server.jobs.remote_worker.__version__", "0.0.1")
        line = refused("--server", url, "--token-file", tmp_path / "b")
        assert "the worker's version of wattune: 0.0.1; allowed: " in line
    with faked(lambda asked: Answer(200, "<html>")) as other:
        assert "is not a wattune server" in refused("--server", other.url)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_gives_the_run_back_at_once(tmp_path, number, code):
    long = {**SECOND_LONG, "target": 0.9999, "budget_samples": 10**7}
    with opened(tmp_path / "store") as store, served(store) as url:
        job_id = submitted(store, request(seeds=1, batch_sizes=[8]), **long)
        (tmp_path / "token").write_text(token_of(store))
        with far_worker(url, tmp_path / "token", tmp_path / "cache", tmp_path / "log") as process:
            wait_for(lambda: status_of(store, job_id).runs[0].state == "running")
            process.send_signal(number)
            assert process.wait(60) == code, (tmp_path / "log").read_text()
        [run] = status_of(store, job_id).runs
        assert (run.state, run.attempts) == ("waiting", 0)
