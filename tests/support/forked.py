"""A child process that inherits all loaded modules: a fork of the test process.

A new ``python -m wattune`` takes seconds to load what it needs; a test that kills and resumes a command many times
waits for little else. Signals, exit codes, stdout and stderr are those of a real process; only the loading is not
tested again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import IO, Any, NoReturn

PR_SET_PDEATHSIG = 1
"""Linux, ``prctl(2)``: the signal that a process gets when its parent ends."""


class Forked:
    """Runs ``act`` in a child whose exit code is what ``act`` returns; used as ``subprocess.Popen`` is.

    ``session``: the child leads a session of its own; ``first``: called in the child before anything else.
    """

    def __init__(
        self, act: Callable[[], int | None], *, session: bool = False, first: Callable[[], object] | None = None
    ) -> None:
        self.returncode: int | None = None
        self._said = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115 - until it ends
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
            self.pid = os.fork()
        if self.pid == 0:
            _become(act, self._said, session, first)

    def poll(self) -> int | None:
        """The exit code, or None where it still runs; the signal's number below zero where one ended it."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Raises: subprocess.TimeoutExpired, and it is killed."""
        end_s = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end_s:
                self.kill()
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Until it is gone."""
        self.send_signal(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.001)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for file in self._said:
            file.close()

    def communicate(self, timeout: float = 300.0) -> tuple[str, str]:
        """Wait for its end; what it wrote to stdout and to stderr."""
        self.wait(timeout)
        out, err = (_all_of(file) for file in self._said)
        return out, err


def forked_command(*arguments: object, **options: Any) -> Forked:
    """The command line as such a process."""
    import sklearn.datasets  # noqa: F401 - once, in this process
    import torch._dynamo  # noqa: F401

    import wattune.job.run  # noqa: F401
    from wattune.cli import main

    words = [str(argument) for argument in arguments]
    return Forked(lambda: main(words), **options)


def _become(
    act: Callable[[], int | None], said: list[IO[str]], session: bool, first: Callable[[], object] | None
) -> NoReturn:
    code: int | None = 1
    try:
        if sys.platform == "linux":  # it holds all that its parent has open, and nobody may wait for that for ever
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if session:
            os.setsid()
        for number, file in enumerate([open(os.devnull), *said]):  # noqa: SIM115 - until the end of this process
            os.dup2(file.fileno(), number)
        # What pytest has put in their place is the parent's.
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        threading.excepthook = threading.__excepthook__
        if first is not None:
            first()
        code = act()
    except BaseException:  # noqa: BLE001 - as at the end of any process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code or 0)


def _all_of(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()
