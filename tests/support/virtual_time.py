"""Time that passes only while every thread of a test waits, and a program that runs on it.

Nothing here depends on how fast the machine is: a second of a guard takes about as long as its twenty steps.
"""

import signal
import threading

from wattune_agent.program import GuardedProgram
from wattune_agent.time_source import TimeSource

THREADS = ("guard", "lowest", "tick", "sample", "wattune-lease")
"""The agent's threads that wait for time; those that wait for a socket are not asked."""

LOOK_S = 0.001
"""Real time between two looks at threads that may have ended, or been woken by another one."""

DYING_S = 0.05
"""Virtual time that a program takes to end once it is told to."""

STUCK_S = 60.0
"""Real time of one wait after which a thread must be blocked elsewhere."""


class VirtualTime(TimeSource):
    """Advances to the next deadline when the thread that made it and all of ``THREADS`` that live wait for it.

    Of several threads that are due at the same time, one runs at a time. ``passes`` is called with the seconds of each
    step, for a board that has a time of its own.
    """

    def __init__(self, passes=lambda seconds: None):
        self._main = threading.current_thread()
        self._passes = passes
        self._time_s = 1000.0
        self._changed = threading.Condition()
        self._waiting = {}
        self._later = []

    def now_s(self):
        return self._time_s

    def later(self, seconds, act):
        """Call ``act`` after so much time, while every thread waits."""
        with self._changed:
            self._later.append((self._time_s + seconds, act))
            self._later.sort(key=lambda entry: entry[0])

    def jump(self, seconds):
        """Let time pass while nobody notices, as SIGSTOP does; called by ``later``."""
        self._time_s += seconds
        self._passes(seconds)

    def sleep(self, seconds):
        self.wait(threading.Event(), seconds)

    def wait(self, event, seconds):
        me = threading.current_thread()
        looks = 0
        with self._changed:
            self._waiting[me] = (self._time_s + seconds, event)
            try:
                while not (event.is_set() or seconds <= 0 or self._is_next(me)):
                    if not self._advance() and not self._changed.wait(LOOK_S):
                        looks += 1
                    assert looks * LOOK_S < STUCK_S, f"waiting in vain for {self._busy()}"
            finally:
                del self._waiting[me]
                self._changed.notify_all()
        return event.is_set()

    def _is_next(self, thread):
        """It is due, and the first of those that are, while no other one runs."""
        due = [other for other, (until_s, _) in self._waiting.items() if until_s <= self._time_s]
        return thread in due and due[0] is thread and not self._busy()

    def _busy(self):
        """Threads that run, or wait for something else."""
        ours = [thread for thread in threading.enumerate() if thread is self._main or thread.name in THREADS]
        return [thread for thread in ours if thread not in self._waiting]

    def _advance(self):
        if self._busy() or any(event.is_set() or until_s <= self._time_s for until_s, event in self._waiting.values()):
            return False
        next_s = min([until_s for until_s, _ in self._waiting.values()] + [at_s for at_s, _ in self._later[:1]])
        self._passes(next_s - self._time_s)
        self._time_s = next_s
        while self._later and self._later[0][0] <= self._time_s:
            self._later.pop(0)[1]()
        self._changed.notify_all()
        return True


class VirtualProgram(GuardedProgram):
    """Stands for a program in a guard's hands: it ends by itself with ``code`` after ``lasts_s``, if nothing ends it.

    ``sent``: the signals that it got, each with its time. One that is ``deaf`` minds SIGKILL alone.
    """

    def __init__(self, time, lasts_s, code=0, deaf=False):
        super().__init__(["program"], time)
        self.sent = []
        self._lasts_s, self._code, self._deaf = lasts_s, code, deaf

    def start(self):
        self._began_s = self.time.now_s()
        self.time.later(self._lasts_s, lambda: self._end(self._code))

    @property
    def exit_code(self):
        return self._code

    def _end(self, code):
        if not self.ended.is_set():
            self._code, self.end_s = code, self.now_s()
            self.ended.set()

    def _has_members(self):
        return not self.ended.is_set()

    def _signal(self, number):
        if self.ended.is_set():
            return False
        self.sent.append((self.now_s(), number))
        if number == signal.SIGKILL or (number == signal.SIGTERM and not self._deaf):
            self.time.later(DYING_S, lambda: self._end(128 + number))
        return True
