"""Signals that would end the process while a board is changed: the board comes back first, then they do what they did.

Nothing is installed before something is changed, and no handler stays when nothing is changed any more. SIGTERM and
SIGHUP are taken over where they are not ignored; SIGINT only where nobody handles it, for Python's own answer to it
(KeyboardInterrupt) unwinds the stack. Inside ``held`` all three wait: one never leaves the board's files half-way.
"""

import atexit
import os
import signal
import threading
from contextlib import contextmanager
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional

__all__ = ["call_before_end", "ending", "forget", "held", "tidy", "waiting"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_calls: List[Callable[[], None]] = []
_before: Dict[int, Any] = {}
_waiting: List[int] = []
_at_end = False
_ending = False
_depth = 0
_pid = 0


def call_before_end(call: Callable[[], None]) -> None:
    """Call this before a signal is answered as it was before, and at the end of the interpreter."""
    global _pid, _at_end
    _pid = os.getpid()
    _calls.append(call)
    if not _at_end:
        _at_end = True
        atexit.register(_end)  # once, and for good: what is taken out again leaves its slot behind in the interpreter
    _arrange()


def forget(call: Callable[[], None]) -> None:
    """Do not call it any more."""
    if call in _calls:
        _calls.remove(call)
    _arrange()


def tidy() -> None:
    """Take away handlers that nothing needs any more: another's clean-up may have put one of ours back."""
    _arrange()


@contextmanager
def held() -> Iterator[None]:
    """Signals wait until this is left. In another thread than the main one: nothing, for Python runs handlers there."""
    global _depth, _pid
    if not _is_main():
        yield
        return
    _pid = os.getpid()
    _depth += 1
    try:
        _arrange()
        yield
    finally:
        _depth -= 1
        _arrange()
        if not _depth:
            while _waiting:
                signal.pthread_kill(threading.get_ident(), _waiting.pop(0))


def waiting() -> bool:
    """Whether a signal waits for ``held`` to be left: whoever takes time in there should hurry."""
    return bool(_waiting)


def ending() -> bool:
    """Whether the process ends for certain: a thread that runs on must not change anything any more."""
    return _ending


def _end() -> None:
    global _ending
    if os.getpid() == _pid:
        _ending = True
        for call in reversed(list(_calls)):
            call()


def _arrange() -> None:
    """Install what is needed now, and remove what is not. Only the main thread can; the next call there catches up."""
    if not _is_main():
        return
    for signum in SIGNALS:
        now = signal.getsignal(signum)
        if now is _answer:
            if not _wanted(signum, _before.get(signum)):
                signal.signal(signum, _before.pop(signum, signal.SIG_DFL))
        elif signum in _before:
            continue  # somebody put a handler over this one, and may call it: putting this one on top would be a circle
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
