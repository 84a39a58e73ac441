"""Ctrl-C during an optimizer step: it is deferred until the step is complete, so that a checkpoint can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from typing_extensions import Self


class Shield:
    """A context in which an interrupt between ``hold`` and ``release`` is deferred, and raised by ``release``.

    It has no effect outside the main thread, or if SIGINT already has another handler.
    """

    def __init__(self) -> None:
        self._holds = self._is_pending = self._is_set = False

    def __enter__(self) -> Self:
        self._holds = self._is_pending = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._is_set = True
        return self

    def __exit__(self, *_: Any) -> None:
        if self._is_set:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_set = False

    def hold(self) -> None:
        """Defer interrupts."""
        self._holds = True

    def release(self) -> None:
        """Stop deferring interrupts. Raises: KeyboardInterrupt if one was deferred."""
        is_pending, self._holds, self._is_pending = self._is_pending, False, False
        if is_pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._holds:
            signal.default_int_handler(number, frame)
        self._is_pending = True
