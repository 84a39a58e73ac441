"""Power at the supply from that of the module, (module + other loads) / efficiency; the figures are in a small file."""

import json
import os
from typing import Any, Dict, List, Optional, Tuple

from wattune_agent.errors import BadRequest, NotKept
from wattune_agent.folders import write_whole
from wattune_agent.tree import Tree

__all__ = ["load_supply", "save_supply", "supply_files"]

SYSTEM_FILE = "/etc/wattune/supply.json"


def load_supply(tree: Tree, board_name: str) -> Optional[Tuple[float, float]]:
    """(watts of the other loads, efficiency of the supply) of this board, or None if they were never measured.

    The user's file takes precedence over the system's. Raises: NotKept if a file contains something else, FileFailed if
    a tree's file leads out of it.
    """
    for path in supply_files(tree):
        entry = _entries(path).get(board_name)
        if entry is None:
            continue
        try:
            other_w, efficiency = float(entry["other_w"]), float(entry["efficiency"])
            _check(other_w, efficiency)
        except (TypeError, KeyError, ValueError, OverflowError, BadRequest) as error:
            raise NotKept("{}: no usable figures for {!r}: {}".format(path, board_name, error)) from error
        return other_w, efficiency
    return None


def save_supply(tree: Tree, board_name: str, other_w: float, efficiency: float) -> str:
    """Save this board's figures: in the file that has some, otherwise the system's, otherwise (not root) the user's.

    Returns the file. Raises: BadRequest for impossible figures, NotKept; FileFailed as ``load_supply``.
    """
    _check(other_w, efficiency)
    failure: Optional[OSError] = None
    files = supply_files(tree)[::-1]
    for path in sorted(files, key=lambda path: board_name not in _entries(path)):
        entries = _entries(path)
        entries[board_name] = {"other_w": other_w, "efficiency": efficiency}
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_whole(path, json.dumps(entries, indent=2, sort_keys=True) + "\n", 0o644)
        except OSError as error:
            failure = error
            continue
        return path
    raise NotKept("the supply's figures cannot be saved: {}".format(failure)) from failure


def supply_files(tree: Tree) -> List[str]:
    """The files that may contain figures on this machine, in order of precedence."""
    if tree.root != "/":
        return [tree.inside(SYSTEM_FILE)]
    config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return [os.path.join(config_home, "wattune", "supply.json"), SYSTEM_FILE]


def _check(other_w: float, efficiency: float) -> None:
    if not 0.0 <= other_w <= 1000.0 or not 0.0 < efficiency <= 1.0:
        raise BadRequest(
            "a supply of {!r} W beside the module and an efficiency of {!r} cannot be: 0 W or more, and above 0 up to "
            "1".format(other_w, efficiency)
        )


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
