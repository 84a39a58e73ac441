"""Looks at a job: whoever waits is told of a change."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from itertools import pairwise

import httpx
import pytest
from tests.support import report_records as samples
from tests.support.server import api as made
from tests.support.server.served import model, request

from wattune.records import EfficiencyPoint, SampleEfficiency
from wattune.records.served import SweepStatus, digest
from wattune.remote import Client
from wattune.server.jobs import queue
from wattune.server.jobs.watch import JobWatch

WAIT = {"Prefer": "wait=20"}


@pytest.fixture
def job(store):
    with store.database.session() as session:
        return queue.submit(session, model(), request(seeds=2), 100.0)[0].id


def known(answer):
    return {"If-None-Match": f'"{digest(answer.json())}"'}


def test_answer_follows_every_change(store, job):
    watch, now_s = JobWatch(store.database), 100.0

    def check():
        answer = watch.read(job)
        with store.database.session(reads_only=True) as session:
            status = queue.status(session, job)
        assert SweepStatus.model_validate_json(answer.content) == status
        assert digest(status.model_dump(mode="json")) == answer.tag
        return answer

    tags = [check().tag]
    assert check() == check(), "nothing changed"

    def change(act):
        nonlocal now_s
        now_s += 60.0
        with store.database.session() as session:
            result = act(session, now_s)
        tags.append(check().tag)
        return result

    change(queue.begin)
    change(lambda session, s: queue.fail(session, job, "it broke", s))
    change(queue.begin)
    for curve in samples.curves(proxy=True)[:2]:
        change(lambda session, s, curve=curve: queue.record_run(session, job, curve, "0" * 64, 1, s))
    change(lambda session, s: queue.cancel(session, job, s))
    change(lambda session, s: queue.retry(session, job, s))
    assert [n for n, (before, after) in enumerate(pairwise(tags)) if before == after] == []
    assert watch.read("0" * 32) is None


def test_change_by_the_server_itself_is_seen_at_once(client, job):
    path = f"/v1/jobs/{job}"
    assert client.get(path).json()["state"] == "waiting"
    for _ in range(3):
        assert client.post(f"{path}/cancel").status_code == 200
        assert client.get(path).json()["state"] == "cancelled"
        assert client.post(f"{path}/retry").status_code == 200
        assert client.get(path).json()["state"] == "waiting"
    client.post(f"{path}/cancel")
    client.get(path)
    assert client.delete(path).status_code == 204
    made.problem(client.get(path), 404)


def test_known_answer_is_not_sent_again(client, job):
    first = client.get(f"/v1/jobs/{job}")
    assert first.headers["etag"] == f'"{digest(first.json())}"'
    again = client.get(f"/v1/jobs/{job}", headers=known(first))
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"/v1/jobs/{job}", headers={"If-None-Match": '"another"', **WAIT})
    assert other.json() == first.json(), "what the client does not know is not waited for"


def test_waiting_devices_are_told_of_a_change(store, job, live_server):
    path, answers = f"{live_server}/v1/jobs/{job}", []
    first = httpx.get(path)

    def wait():
        answers.append(httpx.get(path, headers={**known(first), **WAIT}, timeout=60))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    with store.database.session() as session:
        queue.begin(session, time.time())
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200] * 8
    assert {answer.json()["state"] for answer in answers} == {"running"}


@pytest.mark.slow
def test_client_waits_with_few_looks(store, job, live_server, tmp_path):
    curve = SampleEfficiency(
        workload="digits", reference_batch_size=8, points=(EfficiencyPoint(batch_size=8, relative_samples=1.0),)
    )

    def work(*progress):
        """The client says what is new; then the sweep goes one step further."""
        with store.database.session() as session:
            row = queue.locked(session, job)
            if row.state == "waiting":
                queue.begin(session, time.time())
            else:
                row.state, row.curve, row.finished_s = "done", curve.dump(), time.time()

    with Client(live_server, cache=tmp_path) as server:
        assert server.wait_for_curve(job, work) == curve
    metrics = httpx.get(f"{live_server}/metrics").text
    looks = re.search(r'requests_total{method="GET",route="/v1/jobs/{job}",status="200"} (\d+)', metrics)
    assert int(looks[1]) == 3, "waiting, running, done"


def test_wait_for_a_change_ends_after_its_timeout(store, job):
    watch = JobWatch(store.database)
    assert asyncio.run(watch.changed(job, watch.read(job).tag, 0.01)) is None


def test_nobody_waits_when_the_server_stops(store, job):
    async def wait():
        watch = JobWatch(store.database)
        tag = watch.read(job).tag
        waiting = asyncio.create_task(watch.changed(job, tag, 3600.0))
        await asyncio.sleep(0)
        watch.close()
        return await waiting, await watch.changed(job, tag, 3600.0)

    assert asyncio.run(wait()) == (None, None)
