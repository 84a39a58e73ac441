"""Ctrl-C while the optimizer steps: it waits until the step is whole, so that a checkpoint can be written after it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from typing_extensions import Self


class Shield:
    """A context; an interrupt waits between ``hold`` and ``release``, which raises it.

    Without effect outside the main thread, and where somebody else handles the signal.
    """

    def __init__(self) -> None:
        self._holds = self._came = self._is_set = False

    def __enter__(self) -> Self:
        self._holds = self._came = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._answer)
            self._is_set = True
        return self

    def __exit__(self, *_: Any) -> None:
        if self._is_set:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_set = False

    def hold(self) -> None:
        """From now on it waits."""
        self._holds = True

    def release(self) -> None:
        """From now on it comes at once. Raises: KeyboardInterrupt where one came meanwhile."""
        came, self._holds, self._came = self._came, False, False
        if came:
            raise KeyboardInterrupt

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if not self._holds:
            signal.default_int_handler(number, frame)
        self._came = True
