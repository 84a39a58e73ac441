"""Power at the supply from that of the module, (module + other loads) / efficiency; the figures are in a small file."""

from typing import Optional, Tuple

from wattune_agent import figures
from wattune_agent.errors import BadRequest, NotKept
from wattune_agent.tree import Tree

__all__ = ["load_supply", "save_supply"]

FILE = "supply.json"


def load_supply(tree: Tree, board_name: str) -> Optional[Tuple[float, float]]:
    """(watts of the other loads, efficiency of the supply) of this board, or None if they were never measured.

    Raises: as ``figures.load``; NotKept for impossible figures too.
    """
    found = figures.load(tree, FILE, board_name, ["other_w", "efficiency"])
    if found is None:
        return None
    try:
        _check(*found)
    except BadRequest as error:
        raise NotKept("{}: no usable figures for {!r}: {}".format(FILE, board_name, error)) from error
    return found[0], found[1]


def save_supply(tree: Tree, board_name: str, other_w: float, efficiency: float) -> str:
    """Save this board's figures and return the file. Raises: BadRequest for impossible figures; as ``figures.save``."""
    _check(other_w, efficiency)
    return figures.save(tree, FILE, board_name, {"other_w": other_w, "efficiency": efficiency})


def _check(other_w: float, efficiency: float) -> None:
    if not 0.0 <= other_w <= 1000.0 or not 0.0 < efficiency <= 1.0:
        raise BadRequest(
            "a supply of {!r} W beside the module and an efficiency of {!r} cannot be: 0 W or more, and above 0 up to "
            "1".format(other_w, efficiency)
        )
