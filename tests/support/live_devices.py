"""Live boards in this process, for the tests of the devices."""

from __future__ import annotations

from tests.support.live.tree import LiveTree

from wattune.devices.agent import BoardDevice
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board


def virtual(tree: LiveTree) -> BoardDevice:
    """The device of a live tree, in this process and on its time."""
    family = "cpu" if tree.board.family.startswith("cpu-laptop") else "jetson"
    return BoardDevice(Controller(find_board(tree, family)), tree)
