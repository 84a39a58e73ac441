"""Tests that need a real board run only where they are asked for, by ``pytest -m hardware``; and a live board."""

from __future__ import annotations

import pytest
from tests.support.live_devices import virtual


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked ``hardware``, unless -m speaks of it."""
    if "hardware" in (config.option.markexpr or ""):
        return
    for item in items:
        if "hardware" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a real board: pytest -m hardware"))


@pytest.fixture
def device(tree):
    """The live board of the test's ``tree``, in virtual time."""
    device = virtual(tree)
    yield device
    device.close()
