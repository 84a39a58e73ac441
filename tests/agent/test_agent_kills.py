"""Kills and signals at random moments on each board: all that was changed comes back."""

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


def use(root, family, chance, calls, number=signal.SIGKILL):
    """Pin a few clocks and restore the board, with a signal before one of the first ``calls`` calls that touch files
    (0: without one). Returns: how many there were."""
    with Controller(find_board(MadeTree(root), family)) as controller:
        board = controller.describe()
        settings, others = board["settings_mhz"], sorted(board["others_mhz"].items())
        # More often late than early: the first half of the calls only reads.
        ending = Ending(calls - int(calls * chance.random() ** 2), number)
        for _ in range(chance.randrange(1, 4) if calls else 2):
            beside = {name: chance.choice(values) for name, values in others if chance.random() < 0.5}
            controller.pin(chance.choice(settings), beside)
            controller.slice(chance.choice(settings[-2:]))
            controller.slice(chance.choice(settings[-2:]))
            controller.check()
        controller.restore()
    return ending.count


def restore(root, seed):
    """Restore the board, with SIGKILL before one of the first calls that touch files."""
    tree = MadeTree(root)
    Ending(random.Random(seed).randrange(1, 40), signal.SIGKILL)
    restore_left_behind(tree)


def in_child(act):
    """What it returns, and the status of the process in which it ran."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.write(write, str(act()).encode())
            os._exit(0)
        except KeyboardInterrupt:
            os._exit(130)
        finally:
            os._exit(1)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    return said, os.waitpid(pid, 0)[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["gpu", "cpu", "nano-jp4", "agx-thor-r38"])
def test_nothing_stays_pinned_after_any_end(kind, number, tmp_path, exhaustive):
    """After SIGKILL it is ``restore`` that brings the board back, else the process itself before it ends."""
    kills = ALL_KILLS if exhaustive else KILLS
    root, family = made(tmp_path / "board", kind)
    before, chance = texts(root), random.Random(kind)
    calls = int(in_child(lambda: use(root, family, random.Random(0), 0))[0])
    ended = changed = 0
    for attempt in range(kills):
        seed = chance.random()
        _, status = in_child(lambda: use(root, family, random.Random(seed), calls, number))  # noqa: B023
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (0, 130), (attempt, seed)
        ended += status != 0
        changed += texts(root) != before
        if attempt % 4 == 0:
            in_child(lambda: restore(root, seed))  # noqa: B023
        tree = MadeTree(root)
        restore_left_behind(tree)
        assert texts(root) == before, (attempt, seed)
        assert snapshots(tree) == []
    assert ended > kills // 2
    assert changed > kills // 10 if number == signal.SIGKILL else changed == 0
