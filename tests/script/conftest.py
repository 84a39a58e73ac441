"""What the tests of guarded programs share."""

from __future__ import annotations

import pytest
from tests.support.live.tree import LiveTree
from tests.support.live_devices import virtual

from wattune.program.rounds import StepPage


@pytest.fixture
def page():
    with StepPage() as page:
        yield page


@pytest.fixture
def tree(tmp_path):
    return LiveTree(tmp_path / "board")


@pytest.fixture
def device(tree):
    """A live board in virtual time."""
    device = virtual(tree)
    yield device
    device.close()
