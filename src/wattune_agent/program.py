"""A program and all that it starts: signalled, paused and ended as one, and never left behind by whoever guards it."""

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple

from wattune_agent.errors import BadRequest
from wattune_agent.signals import tidy

__all__ = ["KILL_S", "Program"]

KILL_S = 10.0
"""Time that a program has to end by itself when it is stopped."""

DEAD_S = 5.0
"""Time after SIGKILL after which nobody waits any longer for what a program started."""

SHELL = "sh"

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_WATCHER = """
read -r group && [ "$group" != over ] || exit 0
read -r over && exit 0
kill -s TERM -- "-$group"
kill -s CONT -- "-$group"
n=0
while [ "$n" -lt {:d} ] && kill -s 0 -- "-$group"; do sleep 1; n=$((n + 1)); done
kill -s KILL -- "-$group"
"""
"""Reads the program's group from a pipe, which the program's process says itself before it becomes the program; then
that all is over. Where the pipe ends without that, whoever held it was killed, and the program goes with him."""


class Program:
    """A program in a process group of its own.

    Its time, in seconds since it began, stands still while it is paused by Ctrl-Z.
    """

    def __init__(self, command: List[str]) -> None:
        self.ended = threading.Event()
        self.end_s = 0.0
        """When it ended."""
        self.was_signalled = False
        """Whether a signal was passed on to it."""
        self._command = command
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._watcher: Optional["subprocess.Popen[bytes]"] = None
        self._guard_pid = os.getpid()
        self._began_s = time.monotonic()
        self._pauses: Tuple[float, Optional[float]] = (0.0, None)  # their length so far, and when one began
        self._pending: List[int] = []
        self._kill_s: Optional[float] = None

    # ------------------------------------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Raises: BadRequest where it cannot be run."""
        self._watch()
        self._began_s = time.monotonic()
        try:
            # A session of its own: its whole group can be stopped, and Ctrl-C reaches it through us alone.
            process = subprocess.Popen(
                self._command, start_new_session=True, preexec_fn=None if self._watcher is None else self._tell_group
            )
        except OSError as error:
            raise BadRequest("{} cannot be run: {}".format(self._command[0], error.strerror or error)) from error
        self._process = process
        if self._watcher is not None and self._watcher.poll() is not None:
            self._watcher = None
        threading.Thread(target=self._await, args=(process,), name="program", daemon=True).start()
        self._forward()

    def stop(self) -> None:
        """Ask it to end; ``kill_late`` then sees to it that it does."""
        self._kill_s = self.now_s() + KILL_S
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that is stopped would not hear of it

    def kill_late(self) -> None:
        """Kill it where it was asked to end ``KILL_S`` ago."""
        if self._kill_s is not None and self.now_s() >= self._kill_s:
            self._signal(signal.SIGKILL)

    def end_group(self) -> bool:
        """Where it was stopped, nothing that it started goes on either; whether all of that has ended."""
        while self._kill_s is not None and self._has_members():
            if self.now_s() >= self._kill_s + DEAD_S:
                return False
            self.kill_late()
            time.sleep(0.02)
        return True

    def let_go(self) -> None:
        """It is over: nobody has to watch over it any more. Without its end, it is stopped."""
        watcher, self._watcher = self._watcher, None
        if watcher is None or watcher.stdin is None:
            return
        try:
            if self.ended.is_set() or self._process is None:
                watcher.stdin.write(b"over\n")
            watcher.stdin.close()
            if self.ended.is_set() or self._process is None:
                watcher.wait(5.0)
        except (OSError, subprocess.TimeoutExpired):
            pass

    @property
    def exit_code(self) -> int:
        """The program's own; 128 + n where signal n ended it."""
        code = 0 if self._process is None or self._process.returncode is None else self._process.returncode
        return 128 - code if code < 0 else int(code)

    @property
    def is_watched(self) -> bool:
        """Whether somebody would end it if this process was killed."""
        return self._watcher is not None

    def _await(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self.end_s = self.now_s()
        self.ended.set()

    def _watch(self) -> None:
        script = _WATCHER.format(int(KILL_S))
        try:
            # With none of our files open: whoever waits for the end of our output need not wait for this.
            self._watcher = subprocess.Popen(
                [SHELL, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            self._watcher = None

    def _tell_group(self) -> None:
        """In the program's process, before it is the program: from its first moment on somebody watches over it.

        The process holds the pipe until it runs the program, so that the watcher hears this first, whenever the guard
        is killed. Nothing here may wait for another thread: there is none on this side of the fork.
        """
        assert self._watcher is not None
        assert self._watcher.stdin is not None
        before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a watcher that is gone is noticed by the guard
        try:
            os.write(self._watcher.stdin.fileno(), "{}\n".format(os.getpid()).encode("ascii"))
        except OSError:
            pass
        signal.signal(signal.SIGPIPE, before)

    def _has_members(self) -> bool:
        if self._process is None:
            return False
        try:
            # Where we are the one whom orphans come to, as PID 1 of a container is, they stay until we wait for them.
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        return self._signal(0)

    # --------------------------------------------------------------------------------------------------------- time

    def now_s(self) -> float:
        """Seconds since it began, pauses left out."""
        paused_s, since_s = self._pauses
        return (time.monotonic() if since_s is None else since_s) - self._began_s - paused_s

    def at_s(self, monotonic_s: float) -> float:
        """The same for a moment of the machine's monotonic clock, after the latest pause."""
        return monotonic_s - self._began_s - self._pauses[0]

    # ------------------------------------------------------------------------------------------------------ signals

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside, SIGINT, SIGTERM, SIGHUP, SIGQUIT and Ctrl-Z of this process are the program's; in the main thread."""
        before: Dict[int, Any] = {}
        try:
            if threading.current_thread() is threading.main_thread():
                for number in (*_FORWARDED, signal.SIGTSTP):
                    handler = self._on_pause if number == signal.SIGTSTP else self._on_signal
                    if signal.getsignal(number) is not signal.SIG_IGN:
                        before[number] = signal.signal(number, handler)
            yield
        finally:
            for taken in before:
                signal.signal(taken, before[taken])
            tidy()  # what stood there before may be that of a pin which is over

    def _on_signal(self, number: int, _: Any) -> None:
        if os.getpid() != self._guard_pid:  # the program's process, before it is the program: the guard passes it on
            return
        self.was_signalled = True
        self._pending.append(number)
        self._forward()

    def _forward(self) -> None:
        while self._process is not None and self._pending:
            self._signal(self._pending.pop(0))

    def _on_pause(self, *_: Any) -> None:
        if os.getpid() != self._guard_pid:
            return
        # The program stands still while nobody guards it.
        self._signal(signal.SIGSTOP)
        paused_s, since_s = self._pauses[0], time.monotonic()
        self._pauses = (paused_s, since_s)  # before this process stops: other threads go on before this one does
        os.kill(os.getpid(), signal.SIGSTOP)
        self._pauses = (paused_s + time.monotonic() - since_s, None)
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        """Send it to the whole group; whether there is one."""
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True
