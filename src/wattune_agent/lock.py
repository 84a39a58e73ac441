"""One controller per board: a lock on a file beside the snapshots, in a folder that no other user may enter.

The kernel releases the lock when the process ends, for any reason. A container that has another folder has another
lock: there the process in the snapshot is checked as well (see ``leftover``).
"""

import fcntl
import os
import sys
import time
from typing import Any, List, Optional

from wattune_agent.errors import NotKept
from wattune_agent.folders import make_private, state_folder
from wattune_agent.tree import Tree

TRIES = 10
"""Attempts to take the lock before it counts as held: another process may only be testing it."""

PAUSE_S = 0.02

_held: List["Lock"] = []


class Lock:
    """An exclusive lock on a file, which names the process that holds it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor: Optional[int] = None

    def acquire(self) -> bool:
        """Take the lock; False if another process holds it. Raises: NotKept if the file cannot be locked."""
        if self._descriptor is not None:
            return True
        make_private(os.path.dirname(self.path))
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S)
            self._descriptor = self._locked()
            if self._descriptor is not None:
                _held.append(self)
                _let_children_go()
                return True
        return False

    def release(self) -> None:
        """Release the lock; do nothing if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.remove(self)

    def is_free(self) -> bool:
        """True if no process holds the lock. Raises: NotKept."""
        if not os.path.exists(self.path):
            return True
        is_free = self.acquire()
        self.release()
        return is_free

    def holder(self) -> str:
        """The process that took the lock last: "process 12 (python3 train.py)"; empty if that cannot be read."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def _locked(self) -> Optional[int]:
        """The descriptor of the locked file; None if another process has locked it."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
        except BlockingIOError:
            return None
        except OSError as error:
            raise NotKept(
                "{} cannot be locked, so nothing is changed on the board: {}".format(self.path, error.strerror or error)
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, "process {} ({})".format(os.getpid(), this_process()).encode("utf-8", "replace"))
        except OSError:
            pass  # a full disk: the lock holds all the same
        return descriptor


def board_lock(tree: Tree, family: str) -> Lock:
    """The lock on the board of this family. Raises: FileFailed."""
    return Lock(os.path.join(state_folder(tree), "board-{}.lock".format(family)))


def this_process() -> str:
    """The command of this process, on one line."""
    return " ".join(" ".join(sys.argv).split())[:200] or "no command"


_watching = False


def _let_children_go() -> None:
    """Close the lock in forked children at once: a child shares it, and would hold it after its parent's death.

    Python 3.6 has no hook for that; there the lock of a killed process lasts as long as its forked children.
    """
    global _watching
    register: Any = getattr(os, "register_at_fork", None)
    if register is not None and not _watching:
        _watching = True
        register(after_in_child=_close_all)


def _close_all() -> None:
    for lock in list(_held):
        lock.release()
