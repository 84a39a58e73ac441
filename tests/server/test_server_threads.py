"""Reads that many requests wait for are made once, and wait for no write."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.server.conftest import opened, served
from tests.support.server import api as made
from tests.support.server import dashboard as rows

from wattune_server.limits import Limits
from wattune_server.security import TokenCache
from wattune_server.store import tokens
from wattune_server.threads import SharedReads


class Slow:
    """A read that goes on until it is let go."""

    def __init__(self):
        self.begun, self.go_on = 0, threading.Event()

    def __call__(self):
        self.begun += 1
        assert self.go_on.wait(20)
        return self.begun


def test_one_read_answers_all_that_wait_for_it():
    async def ask():
        reads, slow = SharedReads(), Slow()
        waiting = [asyncio.create_task(reads.get("a", slow)) for _ in range(20)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()  # its client is gone
        await asyncio.sleep(0)
        slow.go_on.set()
        assert await asyncio.gather(*waiting[1:]) == [1] * 19
        assert await reads.get("a", slow) == 2, "a later one reads anew"

    asyncio.run(ask())


def test_a_read_that_began_before_a_change_is_not_joined():
    async def ask():
        reads, old, new = SharedReads(), Slow(), Slow()
        before = asyncio.create_task(reads.get("a", old))
        await asyncio.sleep(0.01)
        reads.forget("a")
        new.go_on.set()
        assert await reads.get("a", new) == 1
        old.go_on.set()
        await before
        assert (old.begun, new.begun) == (1, 1)

    asyncio.run(ask())


def test_error_of_a_read_reaches_all_that_wait_for_it():
    async def ask():
        def fail():
            raise OSError("no disk")

        reads = SharedReads()
        found = await asyncio.gather(*(reads.get("a", fail) for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in found] == ["no disk"] * 3
        assert await reads.get("a", lambda: 1) == 1

    asyncio.run(ask())


def test_many_requests_at_once_look_at_the_tokens_once(sqlite_store, monkeypatch):
    with sqlite_store.database.session() as session:
        text = tokens.make(session, "nano-1", "device", 0.0)
        state, token = tokens.state(session), tokens.find(session, text, 0.0)
    looks, now_s = [], 100.0
    monkeypatch.setattr(tokens, "state", lambda session: (looks.append(1), time.sleep(0.1), state)[-1])
    monkeypatch.setattr("wattune_server.security.time.monotonic", lambda: now_s)
    cache = TokenCache(sqlite_store.database)
    cache.keep(text, token, state, now_s - 10)

    async def ask():
        return await asyncio.gather(*(cache.find([f"Bearer {text}"], 0.0) for _ in range(20)))

    assert asyncio.run(ask()) == [token] * 20
    assert len(looks) == 1


@pytest.mark.parametrize("path", ["/v1/models/resnet8-digits", "/readyz", "/jobs"])
def test_reads_do_not_wait_for_writes(tmp_path, path):
    """More writes than threads wait for the database, which another process has locked."""
    with opened(tmp_path / "store", limits=Limits(threads=2)) as store:
        rows.put_model(store)
        holder = sqlite3.connect(tmp_path / "store" / "wattune.db", isolation_level=None)
        with served(store) as url, ThreadPoolExecutor(6) as pool:
            holder.execute("BEGIN IMMEDIATE")
            upload = {"json": made.training(), "timeout": 20}
            sent = [pool.submit(httpx.post, f"{url}/v1/trainings?device=nano-{n}", **upload) for n in range(6)]
            time.sleep(0.5)  # so that they have come
            assert httpx.get(url + path, timeout=20).status_code == 200
            assert not any(one.done() for one in sent)
            holder.execute("ROLLBACK")
            assert sorted(one.result().status_code for one in sent) == [200] * 5 + [201]
        holder.close()
