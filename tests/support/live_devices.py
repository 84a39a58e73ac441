"""Boards for the tests of the devices: live ones as files, one behind an agent, and recorded ones as trees."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.live.tree import LiveTree

from wattune.devices.agent import BoardDevice
from wattune_agent.capture import materialise
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board

RECORDS = Path(__file__).parents[1] / "boards"


@contextmanager
def live(root: Path, family: str) -> Iterator[Path]:
    """A live board as plain files below ``root``, on real time."""
    command = [sys.executable, "-m", "tests.support.live.daemon", str(root), "--family", family, "--seconds", "300"]
    with _running(command):
        yield root


@contextmanager
def agent(root: Path, socket: Path, family: str = "jetson") -> Iterator[Path]:
    """An agent that holds the board below ``root``."""
    command = [sys.executable, "-m", "wattune_agent", "serve", "--device", family, "--sysfs-root", str(root)]
    with _running([*command, "--socket", str(socket)], socket):
        yield socket


def unpack(name: str, folder: Path) -> Path:
    """A board record as a tree."""
    return Path(materialise(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")), str(folder)))


def virtual(tree: LiveTree) -> BoardDevice:
    """The device of a live tree, in this process and on its time."""
    family = "cpu" if tree.board.family.startswith("cpu-laptop") else "jetson"
    return BoardDevice(Controller(find_board(tree, family)), tree)


@contextmanager
def _running(command: list[str], until: Path | None = None) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        if until is None:
            assert process.stdout.readline()
        else:
            _await(until, process)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _await(path: Path, process: subprocess.Popen[str]) -> None:
    end_s = time.monotonic() + 10
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end_s
        time.sleep(0.01)
