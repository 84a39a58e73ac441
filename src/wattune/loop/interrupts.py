"""Signals that end training: they wait for the end of an optimizer step, so that a whole checkpoint can be saved."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from typing_extensions import Self


class Ended(KeyboardInterrupt):
    """A signal ends this process. ``number``: which one; the session passes it on once all is saved."""

    def __init__(self, number: int):
        super().__init__(f"the process got {signal.Signals(number).name}")
        self.number = number

    def pass_on(self) -> None:
        """End the process by the signal."""
        signal.raise_signal(self.number)


class Shield:
    """A context in which signals raise an exception, but between ``hold`` and ``release`` only at ``release``.

    SIGINT raises KeyboardInterrupt. With ``ends``, SIGTERM, SIGHUP and SIGQUIT raise ``Ended``. A signal that has
    another handler than Python's own keeps it. Outside the main thread there is no effect.
    """

    yields = False
    """True if a later handler that calls this one decides alone what its signal does."""

    def __init__(self, *, ends: bool = False) -> None:
        ending = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) if ends else ()
        self._usual: dict[int, Any] = {
            signal.SIGINT: signal.default_int_handler,
            **dict.fromkeys(ending, signal.SIG_DFL),
        }
        self._set: set[int] = set()
        self._holds = False
        self._pending: int | None = None

    def __enter__(self) -> Self:
        self._holds, self._pending = False, None
        if threading.current_thread() is threading.main_thread():
            for number, usual in self._usual.items():
                handler = signal.getsignal(number)
                if handler == usual or _is_over(handler, number):
                    signal.signal(number, self._handle)
                    self._set.add(number)
        return self

    def __exit__(self, *_: Any) -> None:
        for number in self._set:
            if signal.getsignal(number) == self._handle:  # else what has replaced it may still call it
                signal.signal(number, self._usual[number])
        self._set.clear()

    def hold(self) -> None:
        """Defer signals."""
        self._holds = True

    def release(self) -> None:
        """Stop deferring signals. Raises: KeyboardInterrupt if one was deferred."""
        pending, self._holds, self._pending = self._pending, False, None
        if pending is not None:
            _raise(pending)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.yields and signal.getsignal(number) != self._handle:
            return
        if number not in self._set:
            signal.signal(number, self._usual[number])
            os.kill(os.getpid(), number)
        elif self._holds:
            self._pending = self._pending or number
        else:
            _raise(number)


def _is_over(handler: Any, number: int) -> bool:
    """True for the handler of a shield whose context is over, which a framework has restored."""
    shield = getattr(handler, "__self__", None)
    return isinstance(shield, Shield) and number not in shield._set


def _raise(number: int) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)
