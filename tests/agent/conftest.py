"""A small tree and its controller, and a live board made of files for the tests of the agent as a process."""

import pytest
from tests.support.agent_trees import MadeTree, board_in, gpu_tree
from tests.support.live_board import live, wait_for

from wattune_agent.controller import Controller


@pytest.fixture
def tree(tmp_path):
    return MadeTree(gpu_tree(tmp_path))


@pytest.fixture
def controller(tree):
    with Controller(board_in(tree)) as controller:
        yield controller


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with live(tmp_path_factory.mktemp("live") / "board", throttled=False) as board:
        yield board


@pytest.fixture
def board(running):
    """The board, as it was found after each test."""
    before = running.state()
    running.load(0.0)
    yield running
    assert wait_for(lambda: running.state() == before), (before, running.state())
    assert wait_for(lambda: running.snapshots() == [])
