"""Who has the lock on a board, and who cannot have it; a board that is claimed, and not changed."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.agent_trees import HIGH, LOW, board_in, texts

from wattune_agent.controller import Controller
from wattune_agent.errors import Busy, NotKept, NotThere
from wattune_agent.folders import Lock, board_lock
from wattune_agent.snapshot import snapshots

HOLD = """
import sys
from wattune_agent.folders import Lock
assert Lock(sys.argv[1]).acquire()
print("held", flush=True)
input()
"""


@pytest.fixture
def holder(tree):
    """Another process that holds the lock on the board."""
    command = [sys.executable, "-c", HOLD, board_lock(tree, "jetson").path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_who_holds_it_is_named(tree, holder):
    assert not board_lock(tree, "jetson").is_free()
    assert board_lock(tree, "cpu").is_free()
    with Controller(board_in(tree)) as controller:
        with pytest.raises(Busy, match=rf"the jetson clock: process {holder.pid} \(-c {tree.root}"):
            controller.pin(408.0)


def test_the_end_of_a_process_ends_its_lock(tree, holder):
    holder.kill()
    holder.wait()
    assert board_lock(tree, "jetson").is_free()


def test_a_lock_on_a_file_of_the_board_keeps_nobody_from_it(tree):
    """Any user can lock a file that any user can read."""
    with open(tree.inside(HIGH)) as file, Controller(board_in(tree)) as controller:
        fcntl.flock(file, fcntl.LOCK_EX)
        controller.pin(408.0)
        assert tree.read(HIGH) == "408000000"


def test_a_lock_is_not_made_through_a_link(tree, tmp_path):
    path = Path(board_lock(tree, "jetson").path)
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "anywhere")
    with pytest.raises(NotKept, match="cannot be locked, so nothing is changed"):
        Lock(str(path)).acquire()
    assert not (tmp_path / "anywhere").exists()


def test_a_claim_changes_nothing_and_keeps_others_away(tree):
    before = texts(tree.root)
    with Controller(board_in(tree)) as controller, Controller(board_in(tree)) as other:
        controller.claim()
        controller.claim()
        assert (tree.written, snapshots(tree)) == ([], [])
        for change in (other.claim, lambda: other.pin(408.0)):
            with pytest.raises(Busy, match="process {}".format(os.getpid())):
                change()
        controller.restore()
        other.claim()
        assert tree.written == []
    assert texts(tree.root) == before


def test_what_somebody_sets_under_a_claim_stays(tree):
    with Controller(board_in(tree)) as controller:
        controller.claim()
        tree.write(HIGH, "714000000")
    assert tree.read(HIGH) == "714000000"
    with Controller(board_in(tree)) as controller:
        controller.claim()
        tree.write(HIGH, "816000000")
        controller.pin(408.0)
        assert tree.read(LOW) == tree.read(HIGH) == "408000000"
    assert tree.read(HIGH) == "816000000"  # as it was found when it was changed


def test_a_clock_that_is_not_there_cannot_be_claimed(tree):
    board = board_in(tree)
    board.clock = None
    with pytest.raises(NotThere):
        Controller(board).claim()
