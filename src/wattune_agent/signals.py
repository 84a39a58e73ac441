"""Signals that would end the process while a board is changed: restore the board first, then handle them as before.

No handler is installed before the first change, and none stays after the last one is undone. SIGTERM, SIGHUP and
SIGQUIT are handled unless they are ignored; SIGINT only if it has no handler, because Python's own one
(KeyboardInterrupt) unwinds the stack. Inside ``held`` all of them wait, so that a signal never leaves the board's files
half-written.
"""

import atexit
import os
import signal
import threading
from contextlib import contextmanager
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_calls: List[Callable[[], None]] = []
_before: Dict[int, Any] = {}
_waiting: List[int] = []
_at_end = False
_ending = False
_depth = 0
_pid = 0


def call_before_end(call: Callable[[], None]) -> None:
    """Register a call for before a signal's previous handler, and for the exit of the interpreter."""
    global _pid, _at_end
    _pid = os.getpid()
    _calls.append(call)
    if not _at_end:
        _at_end = True
        atexit.register(_end)  # once, and permanently: unregistering would leave its slot behind in the interpreter
    tidy()


def forget(call: Callable[[], None]) -> None:
    """Remove a registered call."""
    if call in _calls:
        _calls.remove(call)
    tidy()


@contextmanager
def held() -> Iterator[None]:
    """Hold back signals until exit. Outside the main thread: nothing, since Python runs handlers in the main thread."""
    global _depth, _pid
    if not _is_main():
        yield
        return
    _pid = os.getpid()
    _depth += 1
    try:
        tidy()
        yield
    finally:
        _depth -= 1
        tidy()
        if not _depth and _waiting:
            # All at once: after a handler that raises, none may be left for a later exit.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            while _waiting:
                signal.pthread_kill(threading.get_ident(), _waiting.pop())
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def waiting() -> bool:
    """True if a signal waits for ``held`` to exit: long work inside should finish early."""
    return bool(_waiting)


def ending() -> bool:
    """True once the process is certain to end: threads that still run must not change the board."""
    return _ending


def _end() -> None:
    global _ending
    if os.getpid() == _pid:
        _ending = True
        for call in reversed(list(_calls)):
            call()


def tidy() -> None:
    """Install the handlers needed now and remove others: other code's clean-up may have reinstalled one of ours.

    Only the main thread can; its next call catches up.
    """
    if not _is_main():
        return
    for signum in SIGNALS:
        now = signal.getsignal(signum)
        if now is _answer:
            if not _wanted(signum, _before.get(signum)):
                signal.signal(signum, _before.pop(signum, signal.SIG_DFL))
        elif signum in _before:
            continue  # another handler replaced this one and may call it: replacing that one would make a loop
        elif now not in (signal.SIG_IGN, None) and _wanted(signum, now):
            _before[signum] = now
            signal.signal(signum, _answer)


def _wanted(signum: int, before: Any) -> bool:
    if _depth:
        return True
    return bool(_calls) and (signum != signal.SIGINT or before == signal.SIG_DFL)


def _answer(signum: int, frame: Optional[FrameType]) -> None:
    global _ending
    before = _before.get(signum, signal.SIG_DFL)
    if os.getpid() == _pid:  # a forked child has the handlers too, but not the board
        if _depth:
            _waiting.append(signum)
            return
        _ending = _ending or not callable(before)
        for call in reversed(list(_calls)):
            call()
    if callable(before):
        before(signum, frame)
    else:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
