"""Kills at random moments on each board: whatever was left changed, ``restore`` brings back."""

import json
import os
import random
import signal
from pathlib import Path

import pytest
from tests.support.agent_trees import Ending, MadeTree, cpu_tree, gpu_tree, texts
from tests.support.board_records import materialise

from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.leftover import restore_left_behind
from wattune_agent.snapshot import snapshots

BOARDS = Path(__file__).parent.parent / "boards"
KILLS, ALL_KILLS = 50, 250
"""On each board, usually and in the exhaustive run."""


def made(folder, kind):
    """A board's tree, and its family."""
    if kind == "gpu":
        return gpu_tree(folder), "jetson"
    if kind == "cpu":
        return cpu_tree(folder, {0: {}, 4: {}}, boost="1"), "cpu"
    record = json.loads((BOARDS / (kind + ".json")).read_text(encoding="utf-8"))
    return Path(materialise(record, str(folder))), record["expect"]["family"]


def use(root, family, chance, calls):
    """Pin a few clocks and restore the board, with a kill before one of the first ``calls`` calls that touch files
    (0: without one). Returns: how many there were."""
    controller = Controller(find_board(MadeTree(root), family))
    board = controller.describe()
    settings, others = board["settings_mhz"], sorted(board["others_mhz"].items())
    # More often late than early: the first half of the calls only reads.
    ending = Ending(calls - int(calls * chance.random() ** 2), signal.SIGKILL)
    for _ in range(chance.randrange(1, 4) if calls else 2):
        beside = {name: chance.choice(values) for name, values in others if chance.random() < 0.5}
        controller.pin(chance.choice(settings), beside)
        controller.slice(chance.choice(settings[-2:]))
        controller.slice(chance.choice(settings[-2:]))
        controller.check()
    controller.restore()
    return ending.count


def calls_of(root, family):
    """The calls of a use with two pins that nothing ends."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, str(use(root, family, random.Random(0), 0)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as pipe:
        return int(pipe.read())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["gpu", "cpu", "nano-jp4", "agx-thor-r38"])
def test_nothing_stays_pinned_after_any_kill(kind, tmp_path, exhaustive):
    kills = ALL_KILLS if exhaustive else KILLS
    root, family = made(tmp_path / "board", kind)
    before = texts(root)
    calls, chance = calls_of(root, family), random.Random(kind)
    killed = changed = 0
    for number in range(kills):
        seed = chance.random()
        pid = os.fork()
        if pid == 0:
            use(root, family, random.Random(seed), calls)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        killed += os.WIFSIGNALED(status)
        changed += texts(root) != before
        tree = MadeTree(root)
        restore_left_behind(tree)
        assert texts(root) == before, (number, seed)
        assert snapshots(tree) == []
    assert killed > kills // 2
    assert changed > kills // 10
