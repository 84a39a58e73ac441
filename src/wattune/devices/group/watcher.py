"""This process's side of the watching one (``watch``), which restores boards if this one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from wattune.errors import DeviceError

PROGRAM: Final = "wattune.devices.group.watch"

CHANGED: Final = b"c"
RESTORED: Final = b"r"

END_WITHIN_S = 10.0
"""Longest wait for the watching process to end before it is killed."""


_unfinished: list[subprocess.Popen[bytes]] = []
"""Watching processes of boards that could not be restored."""


class Watcher:
    """A process that watches the boards below the roots in ``leftovers``, from the first change on."""

    def __init__(self, leftovers: Sequence[str]):
        self._leftovers = sorted(set(leftovers))
        self._process: subprocess.Popen[bytes] | None = None
        self._said = RESTORED
        self._pid = os.getpid()

    def changed(self) -> None:
        """Have what follows restored if this process is killed. Raises: DeviceError if nothing can watch."""
        if self._is_ours() and (self._said != CHANGED or not self._is_running()):
            self._say(CHANGED)

    def restored(self) -> None:
        """Tell that everything is restored."""
        if self._is_ours() and self._said != RESTORED:
            with suppress(DeviceError):  # there is nothing to watch any more
                self._say(RESTORED)

    def close(self) -> None:
        """Let the process end."""
        if self._is_ours():
            self._let_end()

    def _let_end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        if self._said == CHANGED and process.poll() is None:
            _unfinished.append(process)  # it tries once more when this process has ended
            return
        try:
            process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _is_ours(self) -> bool:
        return bool(self._leftovers) and self._pid == os.getpid()

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _say(self, word: bytes) -> None:
        try:
            if not self._is_running():
                self._let_end()
                self._process = self._start()
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(word)
        except OSError as error:
            raise DeviceError(f"no process can watch over the boards ({error}), so nothing was changed") from error
        self._said = word

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", PROGRAM, json.dumps(self._leftovers), str(os.getpid())]
        # A session of its own: a signal to this process's group or terminal is not for it.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
        )
