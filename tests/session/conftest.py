"""What the tests of sessions share."""

from __future__ import annotations

import pytest
from session_made import Tour


@pytest.fixture
def touring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that visit every row, so that a test does not depend on what the search makes of a board."""
    monkeypatch.setattr("wattune.session.opening.Search", Tour)
