"""Where snapshots are kept: one folder for all users where they may write there, else each user's own.

A program that root runs looks at the folders of all users: what was left changed by one of them is not how the board
was found. A user looks at his own folder and at the one for all.
"""

import os
import pwd
from typing import List

from wattune_agent.tree import Tree

__all__ = ["SYSTEM_FOLDER", "folders", "state_folder"]

SYSTEM_FOLDER = "/var/lib/wattune"
"""What must outlive a process: root's, and that of the users who may write there (the group wattune)."""

_OWN = ".local/state"


def state_folder(tree: Tree) -> str:
    """The folder for what must outlive this process, on this machine; it is made when something is first kept."""
    if tree.root != "/":
        return tree.inside(SYSTEM_FOLDER)
    if os.geteuid() == 0 or os.access(SYSTEM_FOLDER, os.W_OK | os.X_OK):
        return SYSTEM_FOLDER
    return _own()


def folders(tree: Tree) -> List[str]:
    """The folders in which this user finds snapshots, each once; some may not be there."""
    found = [state_folder(tree)]
    if tree.root == "/":
        found += [SYSTEM_FOLDER, _own()]
        if os.geteuid() == 0:
            found += [os.path.join(home, _OWN, "wattune") for home in _homes()]
    places = [os.path.realpath(folder) for folder in found]
    return [folder for number, folder in enumerate(found) if places.index(places[number]) == number]


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
