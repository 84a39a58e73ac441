"""One controller a board: a lock on the file of the clock's upper limit.

The kernel drops it when the process ends, however it ends, and it is one for all users and for containers that see the
same ``/sys``. A container with a ``/sys`` of its own network namespace has other files in the kernel's eyes: there the
process in the snapshot is looked at as well (see ``leftover``).
"""

import fcntl
import os
from typing import Any, List, Optional

from wattune_agent.errors import FileFailed, Forbidden
from wattune_agent.tree import Tree

__all__ = ["Lock", "holders"]

LOCKS = "/proc/locks"
"""Every lock on a file, as far as this user, or this container, is shown them. Source: proc(5)."""

TRIES = 10
"""So often the lock is asked for before it counts as held: somebody may only be looking whether it is."""

PAUSE_S = 0.02

_held: List["Lock"] = []


class Lock:
    """An exclusive lock on a file, which is only opened for reading."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.path = path
        self._tree = tree
        self._descriptor: Optional[int] = None

    def acquire(self) -> bool:
        """Take the lock; False where somebody else has it. Raises: Forbidden, FileFailed."""
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
        """Let the lock go; nothing where it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.remove(self)

    def _open(self) -> int:
        try:
            return os.open(self._tree.inside(self.path), os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError as error:
            raise Forbidden("{} may not be read by this user".format(self.path)) from error
        except OSError as error:
            raise FileFailed("{} cannot be opened: {}".format(self.path, error.strerror)) from error


def holders(tree: Tree, path: str) -> List[str]:
    """Who has locked the file: "process 12 (python3 train.py)"; empty where the kernel does not say.

    A line is "2: FLOCK  ADVISORY  WRITE 4242 00:15:1234 0 EOF"; one with "->" is of a process that waits.
    """
    try:
        status = os.stat(tree.inside(path))
        with open(LOCKS, encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
    except (OSError, FileFailed):
        return []
    place = "{:02x}:{:02x}:{}".format(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    pids = [line[4] for line in lines if len(line) > 5 and line[1] == "FLOCK" and line[5] == place]
    return ["process {} ({})".format(pid, _command(pid)) for pid in pids if pid.isdigit() and int(pid) > 0]


def _command(pid: str) -> str:
    try:
        with open("/proc/{}/cmdline".format(pid), encoding="utf-8", errors="replace") as file:
            return " ".join(file.read().replace("\0", " ").split())[:200] or "no command"
    except OSError:
        return "no command"


_watching = False


def _let_children_go() -> None:
    """A forked child shares the lock, and would hold it on after the death of its parent: it closes it at once.

    Python 3.6 cannot ask for that; there the lock of a killed process lasts as long as its forked children.
    """
    global _watching
    register: Any = getattr(os, "register_at_fork", None)
    if register is not None and not _watching:
        _watching = True
        register(after_in_child=_close_all)


def _close_all() -> None:
    for lock in list(_held):
        lock.release()
