"""Reads in other threads that many requests wait for at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread

T = TypeVar("T")


class SharedReads:
    """Reads in a thread, one at a time for each key: a request during a read gets the result of that read.

    Otherwise all requests of the moments in which a read is slow would start reads of their own, and keep it slow.
    """

    def __init__(self) -> None:
        self._reads: dict[object, asyncio.Task[Any]] = {}

    async def get(self, key: object, read: Callable[[], T]) -> T:
        """Get the result of ``read``, or of a read with the same key that has begun before."""
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(to_thread.run_sync(read))
            task.add_done_callback(partial(self._end, key))
        return await asyncio.shield(task)  # a client that disconnects ends its own request alone

    def forget(self, key: object) -> None:
        """Let the next request start another read."""
        self._reads.pop(key, None)

    def _end(self, key: object, task: asyncio.Task[Any]) -> None:
        if self._reads.get(key) is task:
            del self._reads[key]
