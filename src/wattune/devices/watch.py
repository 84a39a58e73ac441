"""A process beside this one that restores this computer's boards if this one is killed.

Boards that this process controls itself stay as they are set when it gets SIGKILL. ``python -m
wattune.devices.watch PARENT ROOT...`` waits for the end of its parent, and restores what the parent has left
behind: the snapshot on disk tells, and nothing happens if there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from wattune.errors import DeviceError

PROGRAM: Final = "wattune.devices.watch"

LOOK_S = 0.1
"""Time between two looks at the parent. A pipe would stay open while a fork of the parent lives, such as a data
loader's worker."""

TRY_FOR_S = 60.0
"""Time for which a restore is tried again: forks of the parent hold its lock until they notice its end."""

PAUSE_S = 0.5

_unfinished: list[subprocess.Popen[bytes]] = []
"""Watching processes of boards that could not be restored."""


class Watcher:
    """A process that watches the boards below the roots in ``leftovers``, from the first change on."""

    def __init__(self, leftovers: Sequence[str]):
        self._leftovers = sorted(set(leftovers))
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Have what follows restored if this process is killed. Raises: DeviceError if nothing can watch."""
        if not self._is_ours() or (self._process is not None and self._process.poll() is None):
            return
        command = [sys.executable, "-m", PROGRAM, str(self._pid), *self._leftovers]
        try:
            # A session of its own: a signal to this process's group or terminal is not for it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise DeviceError(f"no process can watch over the boards ({error}), so nothing was changed") from error

    def close(self, *, is_restored: bool) -> None:
        """End the process, unless something could not be restored: it tries once more when this process has ended."""
        process, self._process = self._process, None
        if process is None or not self._is_ours():
            return
        if not is_restored:
            _unfinished.append(process)
            return
        process.kill()
        process.wait()

    def _is_ours(self) -> bool:
        return bool(self._leftovers) and self._pid == os.getpid()


def main() -> None:
    """Watch, and restore; print what was done."""
    from wattune_agent.leftover import restore_left_behind
    from wattune_agent.tree import Tree

    parent, *waiting = sys.argv[1:]
    while os.getppid() == int(parent):
        time.sleep(LOOK_S)
    until_s = time.monotonic() + TRY_FOR_S
    while waiting:
        for leftover in list(waiting):
            try:
                said = restore_left_behind(Tree(leftover))
            except Exception as error:  # noqa: BLE001 - nobody is left who could handle it
                if time.monotonic() < until_s:
                    continue
                said = [str(error)]
            waiting.remove(leftover)
            sys.stderr.writelines(f"wattune: {line}\n" for line in said)
        if waiting:
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
