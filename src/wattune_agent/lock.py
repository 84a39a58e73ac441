"""One controller per board: a lock on the file of the clock's upper limit, or on one beside a card's snapshots.

The kernel releases it when the process ends, for any reason, and it holds for all users and for containers that see the
same ``/sys``. For a container with a ``/sys`` of its own network namespace these are different files to the kernel:
there the process in the snapshot is checked as well (see ``leftover``).
"""

import fcntl
import os
from typing import Any, List, Optional

from wattune_agent.errors import FileFailed, Forbidden
from wattune_agent.folders import state_folder
from wattune_agent.tree import Tree, card_of

__all__ = ["Lock", "holders", "place"]

LOCKS = "/proc/locks"
"""Every file lock that this user, or this container, can see. Source: proc(5)."""

TRIES = 10
"""Attempts to take the lock before it counts as held: another process may only be testing it."""

PAUSE_S = 0.02

_held: List["Lock"] = []


class Lock:
    """An exclusive lock on a file that is only opened for reading."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.path = path
        self._tree = tree
        self._descriptor: Optional[int] = None

    def acquire(self) -> bool:
        """Take the lock; False if another process holds it. Raises: Forbidden, FileFailed."""
        if self._descriptor is not None:
            return True
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise FileFailed("{} cannot be locked: {}".format(self.path, error.strerror)) from error
            else:
                self._descriptor = descriptor
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

    def _open(self) -> int:
        try:
            path, flags = place(self._tree, self.path), os.O_RDONLY | os.O_CLOEXEC
            if card_of(self.path):
                os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
                flags |= os.O_CREAT | os.O_NOFOLLOW
            return os.open(path, flags, 0o644)
        except PermissionError as error:
            raise Forbidden("{} may not be read by this user".format(self.path)) from error
        except OSError as error:
            raise FileFailed("{} cannot be opened: {}".format(self.path, error.strerror)) from error


def place(tree: Tree, path: str) -> str:
    """The file on this machine that is locked for this file of the tree. Raises: FileFailed.

    A card has none of the kernel's, so one beside the snapshots is locked for all of its files.
    """
    uuid = card_of(path)
    return os.path.join(state_folder(tree), "nvidia-{}.lock".format(uuid)) if uuid else tree.inside(path)


def holders(tree: Tree, path: str) -> List[str]:
    """The processes that lock the file: "process 12 (python3 train.py)"; empty if the kernel does not list them.

    A line is "2: FLOCK  ADVISORY  WRITE 4242 00:15:1234 0 EOF"; one with "->" belongs to a waiting process.
    """
    try:
        status = os.stat(place(tree, path))
        with open(LOCKS, encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
    except (OSError, FileFailed):
        return []
    inode = "{:02x}:{:02x}:{}".format(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    pids = [line[4] for line in lines if len(line) > 5 and line[1] == "FLOCK" and line[5] == inode]
    return ["process {} ({})".format(pid, _command(pid)) for pid in pids if pid.isdigit() and int(pid) > 0]


def _command(pid: str) -> str:
    try:
        with open("/proc/{}/cmdline".format(pid), encoding="utf-8", errors="replace") as file:
            return " ".join(file.read().replace("\0", " ").split())[:200] or "no command"
    except OSError:
        return "no command"


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
