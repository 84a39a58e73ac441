"""The folder for state that outlives a process. Only its owner may enter it: root, for the machine itself.

Snapshots and locks lie in it. What another user could have written is never obeyed, and no other user can hold a lock.
"""

import os
import stat

from wattune_agent.errors import NotKept
from wattune_agent.tree import Tree

__all__ = ["SYSTEM_FOLDER", "make_private", "state_folder"]

SYSTEM_FOLDER = "/var/lib/wattune"

PRIVATE = 0o700


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
