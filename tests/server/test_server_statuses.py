"""Statuses in memory: the newest of each device is written, in batches, and none is lost if a write fails."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import event, select
from tests.support.server import api as made

from wattune.records.served import DeviceStatus
from wattune_server.store import StoreUnavailable
from wattune_server.store.schema import DeviceRow
from wattune_server.store.statuses import Statuses


def status(name, **changes):
    return DeviceStatus.model_validate({**made.status(name), **changes})


@pytest.fixture
def statuses(store):
    return Statuses(store.database)


def shares(store):
    with store.database.session(reads_only=True) as session:
        return {row.name: (row.status["share"], row.seen_s) for row in session.scalars(select(DeviceRow))}


def test_newest_of_each_device_is_written_in_one_transaction(store, statuses):
    commits = []
    event.listen(store.database.engine, "commit", lambda connection: commits.append(1))
    for share in (0.1, 0.2, 0.3):
        for name in ("a", "b"):
            statuses.put(status(name, share=share), 1000 * share)
    assert shares(store) == {}
    commits.clear()
    statuses.flush()
    statuses.flush()
    assert len(commits) == 1
    assert shares(store) == {"a": (0.3, 300.0), "b": (0.3, 300.0)}
    statuses.put(status("a", share=0.4), 400.0)
    statuses.flush()
    assert shares(store) == {"a": (0.4, 400.0), "b": (0.3, 300.0)}


def test_statuses_wait_for_the_database(store, statuses, monkeypatch):
    statuses.put(status("a", share=0.1), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(statuses, "_write", unavailable)
        statuses.flush()
        statuses.put(status("b", share=0.2), 2.0)
        statuses.flush()
        statuses.put(status("a", share=0.3), 3.0)
    statuses.flush()
    assert shares(store) == {"a": (0.3, 3.0), "b": (0.2, 2.0)}


def test_waiting_statuses_are_limited(store, statuses, monkeypatch):
    monkeypatch.setattr("wattune_server.store.statuses.MOST", 2)
    statuses.put(status("a"), 1.0)
    statuses.put(status("b"), 1.0)
    with pytest.raises(StoreUnavailable, match="too many devices"):
        statuses.put(status("c"), 1.0)
    statuses.put(status("a", share=0.9), 2.0)
    statuses.flush()
    assert shares(store)["a"] == (0.9, 2.0)
    statuses.put(status("c"), 1.0)


def test_server_writes_statuses_without_being_asked(store, live_server):
    import httpx

    assert httpx.put(f"{live_server}/v1/devices/a", json=made.status("a")).status_code == 204
    until_s = time.monotonic() + 60
    while not shares(store):
        assert time.monotonic() < until_s
        time.sleep(0.02)


def unavailable(batch):
    raise StoreUnavailable("the disk is full")
