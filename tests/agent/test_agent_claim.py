"""A board that is claimed, and not changed: what would keep it from being changed is known before."""

import os

import pytest
from tests.support.agent_trees import HIGH, LOW, board_in, texts

from wattune_agent.controller import Controller
from wattune_agent.errors import Busy, NotThere
from wattune_agent.snapshot import snapshots


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
