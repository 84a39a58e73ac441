"""A file with one number of watts, which another program rewrites, read without ever waiting for it."""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from wattune import units
from wattune.errors import InputError

ANSWER_WITHIN_S: Final = 0.5
"""Longest wait for the file. After one such wait nothing waits any more, until an answer comes in time again."""

LONGEST: Final = 4096
"""Most bytes that are read: a number needs less."""


class Content(NamedTuple):
    """Text of the file, or the problem with it; ``written``: time of the last change and inode of what was read."""

    text: str | None
    problem: str | None
    written: tuple[int, int] | None = None


class WatchedFile:
    """The last watts of a file, the lowest ones so far, and why its present content is not watts.

    A thread reads the file, so that a FIFO, a mount that hangs, or a file that gives its bytes one by one cannot hold
    up the caller. A number without the end of its line may be half of one: it counts when it has been read twice.
    ``stale_s``: see ``is_stale``; ``clock``: seconds that only ever ascend.

    Raises: InputError if the file has no watts at the beginning.
    """

    def __init__(self, path: Path, stale_s: float, clock: Callable[[], float] = time.monotonic):
        self.watts = self.lowest_w = -1.0
        self.problem: str | None = None
        self._path, self._stale_s, self._clock = path, stale_s, clock
        self._written: tuple[int, int] | None = None
        self._written_s = clock()
        self._is_kept_fresh = False
        self._unfinished: str | None = None
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Content] = queue.SimpleQueue()
        self._asked_s: float | None = None  # of the read under way
        self._is_slow = False
        threading.Thread(target=_read_when_asked, args=(path, self._asked, self._answers), daemon=True).start()
        weakref.finalize(self, self._asked.put, False)
        for _ in range(2):
            if self.watts < 0:
                self.look()
        if self.watts < 0:
            raise InputError(str(path), value=self.problem, allowed="a file with one number of watts")

    @property
    def is_stale(self) -> bool:
        """True if the file was being rewritten, at least once within ``stale_s``, and has not been for that long."""
        return self._is_kept_fresh and self._clock() - self._written_s > self._stale_s

    def look(self) -> None:
        """Read the file again. If that takes long, everything stays as it is, and a later look takes the answer."""
        if self._asked_s is None:
            self._asked_s = self._clock()
            self._asked.put(True)
        try:
            content = self._answers.get_nowait() if self._is_slow else self._answers.get(timeout=ANSWER_WITHIN_S)
        except queue.Empty:
            if not self._is_slow or self._clock() - self._asked_s > ANSWER_WITHIN_S:
                self._is_slow, self.problem = True, f"{self._path} does not answer"
            return
        self._is_slow = self._clock() - self._asked_s > ANSWER_WITHIN_S
        self._asked_s = None
        self._take(content)

    def _take(self, content: Content) -> None:
        if content.written not in (None, self._written):
            now_s = self._clock()
            if self._written is not None and now_s - self._written_s <= self._stale_s:
                self._is_kept_fresh = True
            self._written, self._written_s = content.written, now_s
        if content.text is None:
            self.problem = content.problem
            return
        watts = units.read(content.text, "W")
        if watts is None:
            text = content.text.strip()[:40]
            self.problem, self._unfinished = f"{self._path} has no number of watts, 0 or more: {text!r}", None
        elif content.text.endswith("\n") or content.text == self._unfinished:
            self.watts, self.problem = watts, None
            self.lowest_w = watts if self.lowest_w < 0 else min(watts, self.lowest_w)
        else:
            self._unfinished = content.text


def _read_when_asked(path: Path, asked: queue.SimpleQueue[bool], answers: queue.SimpleQueue[Content]) -> None:
    while asked.get():
        answers.put(_content(path))


def _content(path: Path) -> Content:
    """Read a regular file. Anything else may have no end."""
    try:
        # Without O_NONBLOCK opening a FIFO waits until another program writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return Content(None, f"{path} is not a regular file")
            data = b""
            while len(data) < LONGEST and (part := os.read(descriptor, LONGEST)):
                data += part
        finally:
            os.close(descriptor)
    except OSError as error:
        return Content(None, f"{path} cannot be read: {error.strerror}")
    written = status.st_mtime_ns, status.st_ino
    try:
        return Content(data.decode("ascii"), None, written)
    except UnicodeDecodeError:
        return Content(None, f"{path} is not a text", written)
