"""A thousand kills at random moments: whatever was left changed, ``restore`` brings back."""

import json
import os
import random
import signal
from pathlib import Path

import pytest
from tests.support.agent_trees import Ending, MadeTree, cpu_tree, gpu_tree, texts

from wattune_agent.capture import materialise
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.leftover import restore_left_behind
from wattune_agent.snapshot import snapshots

BOARDS = Path(__file__).parent.parent / "boards"
KILLS = 1000
CALLS = 120
"""Calls that touch files while a board is pinned and restored, about."""


def made(folder, kind):
    """A board's tree, and its family."""
    if kind == "gpu":
        return gpu_tree(folder), "jetson"
    if kind == "cpu":
        return cpu_tree(folder, {0: {}, 4: {}}, boost="1"), "cpu"
    record = json.loads((BOARDS / (kind + ".json")).read_text(encoding="utf-8"))
    return Path(materialise(record, str(folder))), record["expect"]["family"]


def use(root, family, chance):
    """Pin a few clocks and restore the board, with a kill before some call."""
    controller = Controller(find_board(MadeTree(root), family))
    settings = controller.describe()["settings_mhz"]
    Ending(chance.randrange(1, CALLS), signal.SIGKILL)
    for _ in range(chance.randrange(1, 4)):
        controller.pin(chance.choice(settings))
        controller.check()
    controller.restore()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["gpu", "cpu", "nano-jp4", "agx-thor-r38"])
def test_nothing_stays_pinned_after_any_of_a_thousand_kills(kind, tmp_path):
    root, family = made(tmp_path / "board", kind)
    before = texts(root)
    chance = random.Random(kind)
    killed = changed = 0
    for number in range(KILLS // 4):
        seed = chance.random()
        pid = os.fork()
        if pid == 0:
            use(root, family, random.Random(seed))
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        killed += os.WIFSIGNALED(status)
        changed += texts(root) != before
        tree = MadeTree(root)
        restore_left_behind(tree)
        assert texts(root) == before, (number, seed)
        assert snapshots(tree) == []
    assert killed > KILLS // 4 // 2
    assert changed > KILLS // 4 // 10
