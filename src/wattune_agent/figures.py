"""Figures of this machine that were measured once, by board name, in small files: the system's and the user's."""

import json
import os
from typing import Any, Dict, List, Optional

from wattune_agent.errors import NotKept
from wattune_agent.folders import write_whole
from wattune_agent.tree import Tree

__all__ = ["files", "load", "save"]

SYSTEM_FOLDER = "/etc/wattune"


def files(tree: Tree, name: str) -> List[str]:
    """The files of that name that may contain figures on this machine, in order of precedence."""
    system = SYSTEM_FOLDER + "/" + name
    if tree.root != "/":
        return [tree.inside(system)]
    config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return [os.path.join(config_home, "wattune", name), system]


def load(tree: Tree, name: str, board_name: str, numbers: List[str]) -> Optional[List[float]]:
    """These numbers of the board, or None if they were never measured. The user's file takes precedence.

    Raises: NotKept if a file contains something else, FileFailed if a tree's file leads out of it.
    """
    for path in files(tree, name):
        entry = _entries(path).get(board_name)
        if entry is not None:
            try:
                return [float(entry[number]) for number in numbers]
            except (TypeError, KeyError, ValueError, OverflowError) as error:
                raise NotKept("{}: no usable figures for {!r}: {!r}".format(path, board_name, error)) from error
    return None


def save(tree: Tree, name: str, board_name: str, entry: Dict[str, float]) -> str:
    """Save the board's figures: in the file that has some, otherwise the system's, otherwise (not root) the user's.

    Returns the file. Raises: NotKept; FileFailed as ``load``.
    """
    failure: Optional[OSError] = None
    paths = files(tree, name)[::-1]
    for path in sorted(paths, key=lambda path: board_name not in _entries(path)):
        entries = _entries(path)
        entries[board_name] = entry
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_whole(path, json.dumps(entries, indent=2, sort_keys=True) + "\n", 0o644)
        except OSError as error:
            failure = error
            continue
        return path
    raise NotKept("the figures of {} cannot be saved: {}".format(name, failure)) from failure


def _entries(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NotKept("{} cannot be read: {}".format(path, error.strerror or error)) from error
    except (ValueError, RecursionError) as error:
        why = "too deep" if isinstance(error, RecursionError) else error
        raise NotKept("{} is not valid JSON: {}; delete it, and measure again".format(path, why)) from error
    if not isinstance(entries, dict):
        raise NotKept("{} does not contain figures by board name".format(path))
    return entries
