"""Signals that wait while files of a board are written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from wattune_agent.signals import held, waiting


@pytest.fixture(autouse=True)
def _raising() -> Iterator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_several_signals_that_waited_leave_none_for_later(numbers: tuple[int, int]) -> None:
    interrupts = 0
    try:
        with held():
            for number in numbers:
                os.kill(os.getpid(), number)
            assert waiting()
    except KeyboardInterrupt:
        interrupts += 1
    try:
        time.sleep(0)  # the second of two raises here
    except KeyboardInterrupt:
        interrupts += 1
    assert 1 <= interrupts <= len(set(numbers))
    assert not waiting()
    with held():
        assert not waiting()
