"""Recorded boards as folders of files."""

import json
import shutil
from pathlib import Path

from tests.support.agent_trees import link, put

RECORDS = Path(__file__).parents[1] / "boards"


def unpack(name: str, folder: Path) -> Path:
    """A board record of ``tests/boards`` as a tree."""
    return Path(materialise(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")), str(folder)))


def without_sensor(tree: Path) -> Path:
    """The tree of an Orin Nano whose power monitor is taken away."""
    for folder in ("bus/i2c", "class/hwmon/hwmon1", "devices/platform/bus@0/c240000.i2c"):
        path = tree / "sys" / folder
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    return tree


def materialise(record: dict, folder: str) -> str:
    """A board record as a tree; returns its folder."""
    for path, text in record["files"].items():
        # The kernel ends its lines; a device tree's text ends with a NUL instead.
        put(folder, path, text if text.endswith(("\n", "\0")) else text + "\n")
    for path, target in record.get("links", {}).items():
        link(folder, path, target)
    return folder
