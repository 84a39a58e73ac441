"""Recorded boards as folders of files."""

import json
from pathlib import Path

from tests.support.agent_trees import link, put

RECORDS = Path(__file__).parents[1] / "boards"


def unpack(name: str, folder: Path) -> Path:
    """A board record of ``tests/boards`` as a tree."""
    return Path(materialise(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")), str(folder)))


def materialise(record: dict, folder: str) -> str:
    """A board record as a tree; returns its folder."""
    for path, text in record["files"].items():
        # The kernel ends its lines; a device tree's text ends with a NUL instead.
        put(folder, path, text if text.endswith(("\n", "\0")) else text + "\n")
    for path, target in record.get("links", {}).items():
        link(folder, path, target)
    return folder
