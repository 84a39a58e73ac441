"""Looks at a job: each change has a tag of its own."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.server import dashboard
from tests.support.server.served import model, request

from wattune.records.served import SweepStatus, digest
from wattune_server.jobs import queue
from wattune_server.jobs.answers import JobAnswers


@pytest.fixture
def job(store):
    with store.database.session() as session:
        return queue.submit(session, model(), request(seeds=2), 100.0)[0].id


def test_answer_follows_every_change(store, job):
    answers, now_s = JobAnswers(store.database), 100.0

    def check():
        answer = answers.read(job)
        with store.database.session(reads_only=True) as session:
            status = queue.status(session, job)
        assert SweepStatus.model_validate_json(answer.content) == status
        assert digest(status.model_dump(mode="json")) == answer.tag
        return answer

    tags = [check().tag]
    assert check()[:2] == check()[:2], "nothing changed"

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
    for curve in dashboard.curves()[:2]:
        change(lambda session, s, curve=curve: queue.record_run(session, job, curve, "0" * 64, 1, s))
    change(lambda session, s: queue.cancel(session, job, s))
    change(lambda session, s: queue.retry(session, job, s))
    assert [n for n, (before, after) in enumerate(pairwise(tags)) if before == after] == []
    assert answers.read("0" * 32) is None


def test_change_by_the_server_itself_is_seen_at_once(client, job):
    path = f"/v1/jobs/{job}"
    assert client.get(path).json()["state"] == "waiting"
    for change, state in (("cancel", "cancelled"), ("retry", "waiting")) * 3:
        assert client.post(f"/jobs/{job}/{change}", follow_redirects=False).status_code == 303
        assert client.get(path).json()["state"] == state


def test_known_answer_is_not_sent_again(client, job):
    first = client.get(f"/v1/jobs/{job}")
    assert first.headers["etag"] == f'"{digest(first.json())}"'
    again = client.get(f"/v1/jobs/{job}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"/v1/jobs/{job}", headers={"If-None-Match": '"another"'})
    assert other.json() == first.json()
