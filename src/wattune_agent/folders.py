"""The folders for snapshots: one for all users if they may write there, otherwise each user's own.

A program that root runs looks in the folders of all users, because a change that one of them left is not the board's
original state. A user looks in their own folder and in the common one.
"""

import os
import pwd
from typing import List

from wattune_agent.tree import Tree

__all__ = ["SYSTEM_FOLDER", "folders", "state_folder"]

SYSTEM_FOLDER = "/var/lib/wattune"
"""The folder for state that outlives a process: root's, and that of users who may write there (the group wattune)."""

_OWN = ".local/state"


def state_folder(tree: Tree) -> str:
    """The folder for state that outlives this process, on this machine; it is created when first needed."""
    if tree.root != "/":
        return tree.inside(SYSTEM_FOLDER)
    if os.geteuid() == 0 or os.access(SYSTEM_FOLDER, os.W_OK | os.X_OK):
        return SYSTEM_FOLDER
    return _own()


def folders(tree: Tree) -> List[str]:
    """The folders in which this user finds snapshots, each once; some may not exist."""
    paths = [state_folder(tree)]
    if tree.root == "/":
        paths += [SYSTEM_FOLDER, _own()]
        if os.geteuid() == 0:
            paths += [os.path.join(home, _OWN, "wattune") for home in _homes()]
    places = [os.path.realpath(folder) for folder in paths]
    return [folder for number, folder in enumerate(paths) if places.index(places[number]) == number]


def _own() -> str:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), _OWN)
    return os.path.join(base, "wattune")


def _homes() -> List[str]:
    homes = [user.pw_dir for user in pwd.getpwall()]
    try:
        homes.append(pwd.getpwnam(os.environ.get("SUDO_USER", "")).pw_dir)  # users of a network are often not listed
    except KeyError:
        pass
    return sorted({home for home in homes if home.startswith("/")})
