"""The folder for state that outlives a process, and the locks in it: one controller per board.

Only its owner may enter the folder: root, for the machine itself. Snapshots and locks lie in it. What another user
could have written is never obeyed, and no other user can hold a lock.

The kernel releases a lock when its process ends, for any reason. A container that has another folder has another
lock: there the process in the snapshot is checked as well (see ``leftover``).
"""

import errno
import fcntl
import os
import stat
import sys
import time
from contextlib import suppress
from typing import List, Optional

from wattune_agent.errors import NotKept
from wattune_agent.tree import Tree

SYSTEM_FOLDER = "/var/lib/wattune"

PRIVATE = 0o700

PART = ".part"
"""End of the name of a file that is being written."""

TRIES = 10
"""Attempts to take a lock before it counts as held: another process may only be testing it."""

PAUSE_S = 0.02

_held: List["Lock"] = []


def state_folder(tree: Tree) -> str:
    """The folder on this machine; for a copy of a board it is part of the copy. Raises: FileFailed."""
    return tree.inside(SYSTEM_FOLDER)


def make_private(folder: str) -> None:
    """Create the folder for this user alone, or take the permissions of others away. Raises: NotKept."""
    try:
        os.makedirs(folder, mode=PRIVATE, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != PRIVATE:
            os.chmod(folder, PRIVATE)
    except OSError as error:
        raise NotKept(
            "nothing can be saved in {}, so nothing is changed on the board: {}".format(folder, error.strerror or error)
        ) from error
    if status.st_uid != os.geteuid():
        raise NotKept(
            "{} belongs to user {}, not to user {}: nothing in it is obeyed, and nothing is changed on the board; run "
            "this as that user, or move the folder away".format(folder, status.st_uid, os.geteuid())
        )


def write_whole(path: str, text: str, permissions: int) -> None:
    """Replace the file by one with this text, whole or not at all, also in a power cut. Raises: OSError."""
    part, content = path + PART, text.encode("utf-8")
    _delete(part)  # it may be a link to elsewhere
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
        sync(os.path.dirname(path))
    except OSError:
        _delete(part)
        raise


def sync(folder: str) -> None:
    """Bring the folder's list of files to disk. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot do this for a folder
            raise
    finally:
        os.close(descriptor)


def _delete(path: str) -> None:
    """Delete the file, if possible."""
    with suppress(OSError):
        os.unlink(path)


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
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(descriptor, 0)
            os.write(descriptor, "process {} ({})".format(os.getpid(), this_process()).encode("utf-8", "replace"))
        return descriptor


def board_lock(tree: Tree, family: str) -> Lock:
    """The lock on the board of this family. Raises: FileFailed."""
    return Lock(os.path.join(state_folder(tree), "board-{}.lock".format(family)))


def this_process() -> str:
    """The command of this process, on one line."""
    return " ".join(" ".join(sys.argv).split())[:200] or "no command"


def _close_all() -> None:
    """Close the locks in a forked child: a child shares them, and would hold them after its parent's death."""
    for lock in list(_held):
        lock.release()


_register_at_fork = getattr(os, "register_at_fork", None)
if _register_at_fork is not None:  # Python 3.7; before that, the lock of a killed process lasts as long as its children
    _register_at_fork(after_in_child=_close_all)
