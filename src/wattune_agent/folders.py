"""The folder for state that outlives a process. Only its owner may enter it: root, for the machine itself.

Snapshots and locks lie in it. What another user could have written is never obeyed, and no other user can hold a lock.
"""

import errno
import os
import stat

from wattune_agent.errors import NotKept
from wattune_agent.tree import Tree

SYSTEM_FOLDER = "/var/lib/wattune"

PRIVATE = 0o700

PART = ".part"
"""End of the name of a file that is being written."""


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
    try:
        os.unlink(path)
    except OSError:
        pass
