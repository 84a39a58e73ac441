"""What the tests of sessions share."""

from __future__ import annotations

import sys

import pytest
from tests.support.sessions import Tour


@pytest.fixture
def touring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that visit every row, so that a test does not depend on what the search makes of a board."""
    # Not by its path as a text: in the package the function has the name of its module.
    monkeypatch.setattr(sys.modules["wattune.loop.session_run"], "Search", Tour)
