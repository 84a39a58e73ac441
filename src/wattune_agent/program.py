"""A program and all that it starts: signalled, paused and ended as one, and never left running without its guard."""

import os
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional

from wattune_agent.errors import BadRequest
from wattune_agent.signals import tidy
from wattune_agent.time_source import TimeSource

KILL_S = 10.0
"""Time that a program has to exit after SIGTERM."""

HOLD_AGAIN_S = 1.0
"""Time after which a program that is held is stopped again, in case another process has continued it."""

DEAD_S = 5.0
"""Time after SIGKILL for which to wait for the program's children."""

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
"""A watcher that reads the program's process group from a pipe, written by the program's process before exec, and then
"over". If the pipe closes without that, the guard was killed, and the watcher stops the program too."""


class GuardedProgram:
    """A program in a process group of its own.

    Its time, in seconds since it began, goes on while it is held.
    """

    def __init__(self, command: List[str], time: Optional[TimeSource] = None) -> None:
        self.time = time or TimeSource()
        self.ended = threading.Event()
        self.end_s = 0.0
        """Time at which it ended."""
        self.was_signalled = False
        """True after a signal was passed on to it."""
        self._command = command
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._watcher: Optional["subprocess.Popen[bytes]"] = None
        self._guard_pid = os.getpid()
        self._began_s = self.time.now_s()
        self._pending: List[int] = []
        self._kill_s: Optional[float] = None
        self._held_s: Optional[float] = None  # when it was last stopped to be held
        self._free_until_s = 0.0  # that it has to answer a signal in
        self._holding = threading.RLock()  # handlers of signals interrupt the main thread

    # ------------------------------------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Start the program. Raises: BadRequest if it cannot be run or watched."""
        self._began_s = self.time.now_s()
        self._watch()
        try:
            # A session of its own: its whole group can be stopped, and Ctrl-C reaches it through us alone.
            process = subprocess.Popen(self._command, start_new_session=True, preexec_fn=self._tell_group)
        except OSError as error:
            raise BadRequest("{} cannot be run: {}".format(self._command[0], error.strerror or error)) from error
        self._process = process
        threading.Thread(target=self._await, args=(process,), name="program", daemon=True).start()
        self._forward()

    @property
    def is_held(self) -> bool:
        """True between ``hold`` and ``let_run``."""
        return self._held_s is not None

    def hold(self) -> None:
        """Stop it and all that it started by SIGSTOP; call this regularly until ``let_run``.

        A program that was asked to end is not held, nor one that got a signal within the last ``KILL_S``.
        """
        with self._holding:
            now_s = self.now_s()
            if self._kill_s is not None or now_s < self._free_until_s:
                return
            if self._held_s is None or now_s - self._held_s >= HOLD_AGAIN_S:
                self._held_s = now_s
                self._signal(signal.SIGSTOP)

    def let_run(self) -> None:
        """Continue it if it is held."""
        with self._holding:
            if self._held_s is not None:
                self._held_s = None
                self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end; ``kill_late`` then sees to it that it does."""
        with self._holding:
            self._kill_s, self._held_s = self.now_s() + KILL_S, None
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped program would not receive SIGTERM

    def kill_late(self) -> None:
        """Kill it if it was asked to end ``KILL_S`` ago."""
        if self._kill_s is not None and self.now_s() >= self._kill_s:
            self._signal(signal.SIGKILL)

    def end_group(self) -> bool:
        """After ``stop``, end the processes that it started too; returns true if all have ended."""
        while self._kill_s is not None and self._has_members():
            if self.now_s() >= self._kill_s + DEAD_S:
                return False
            self.kill_late()
            self.time.sleep(0.02)
        return True

    def let_go(self) -> None:
        """Release the watcher, which stops the program if it has not ended."""
        self.let_run()
        watcher, self._watcher = self._watcher, None
        if watcher is None or watcher.stdin is None:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            if self.ended.is_set() or self._process is None:
                watcher.stdin.write(b"over\n")
            watcher.stdin.close()
            if self.ended.is_set() or self._process is None:
                watcher.wait(5.0)

    @property
    def exit_code(self) -> int:
        """The program's own exit code; 128 + n if signal n ended it."""
        code = 0 if self._process is None or self._process.returncode is None else self._process.returncode
        return 128 - code if code < 0 else int(code)

    def _await(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self.end_s = self.now_s()
        self.ended.set()

    def _watch(self) -> None:
        script = _WATCHER.format(int(KILL_S))
        try:
            # With none of our files open: a reader that waits for the end of our output need not wait for this.
            self._watcher = subprocess.Popen(
                ["sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise BadRequest("no shell (sh) to watch the program: put one on PATH") from error
        except OSError as error:
            raise BadRequest("the program cannot be watched: {}".format(error.strerror or error)) from error

    def _tell_group(self) -> None:
        """Announce the process group from the program's process before exec, so that it is watched from the start.

        The process holds the pipe until exec, so that the watcher reads this first, whenever the guard is killed.
        Nothing here may wait for another thread: there is none on this side of the fork.
        """
        assert self._watcher is not None
        assert self._watcher.stdin is not None
        before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a watcher that is gone is noticed by the guard
        with suppress(OSError):
            os.write(self._watcher.stdin.fileno(), "{}\n".format(os.getpid()).encode("ascii"))
        signal.signal(signal.SIGPIPE, before)

    def _has_members(self) -> bool:
        if self._process is None:
            return False
        with suppress(ChildProcessError):
            # If orphans are reparented to us, as to PID 1 of a container, they stay until we wait for them.
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        return self._signal(0)

    # --------------------------------------------------------------------------------------------------------- time

    def now_s(self) -> float:
        """Seconds since it began."""
        return self.at_s(self.time.now_s())

    def at_s(self, time_s: float) -> float:
        """Convert a moment of ``time`` to seconds since it began."""
        return time_s - self._began_s

    # ------------------------------------------------------------------------------------------------------ signals

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass this process's SIGINT, SIGTERM, SIGHUP and SIGQUIT on to the program, and ignore Ctrl-Z, which would
        leave the program without its guard; in the main thread."""
        before: Dict[int, Any] = {}
        try:
            if threading.current_thread() is threading.main_thread():
                for number in (*_FORWARDED, signal.SIGTSTP):
                    # Not SIG_IGN, which the program would inherit.
                    handler = (lambda *_: None) if number == signal.SIGTSTP else self._on_signal
                    if signal.getsignal(number) is not signal.SIG_IGN:
                        before[number] = signal.signal(number, handler)
            yield
        finally:
            for signal_number in before:
                signal.signal(signal_number, before[signal_number])
            tidy()  # the previous handler may belong to a pin that has ended

    def _on_signal(self, number: int, _: Any) -> None:
        if os.getpid() != self._guard_pid:  # the program's process, before it is the program: the guard passes it on
            return
        self.was_signalled = True
        self._pending.append(number)
        self._forward()

    def _forward(self) -> None:
        while self._process is not None and self._pending:
            with self._holding:
                self._free_until_s = self.now_s() + KILL_S  # a stopped program would not receive it
                self._signal(self._pending.pop(0))
                self.let_run()

    def _signal(self, number: int) -> bool:
        """Send the signal to the whole group; returns false if there is none."""
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True
