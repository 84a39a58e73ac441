"""Boards for the tests of the devices: recorded ones as trees, and live ones in this process."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.live.tree import LiveTree

from wattune.devices.agent import BoardDevice
from wattune.doctor.capture import materialise
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board

RECORDS = Path(__file__).parents[1] / "boards"


def unpack(name: str, folder: Path) -> Path:
    """A board record as a tree."""
    return Path(materialise(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")), str(folder)))


def virtual(tree: LiveTree) -> BoardDevice:
    """The device of a live tree, in this process and on its time."""
    family = "cpu" if tree.board.family.startswith("cpu-laptop") else "jetson"
    return BoardDevice(Controller(find_board(tree, family)), tree)
