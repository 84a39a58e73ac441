"""A program that nothing is known of: started, listened to, and ended with everything that it started itself."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from wattune.errors import DeviceError, InputError, OutOfDeviceMemory, WorkloadError
from wattune.program.hook.sitecustomize import LINES
from wattune_agent.signals import held

KILL_S = 2.0
"""Time that a program has to end after it was asked to: a probe has nothing to save."""

WATCHER = 'read -r over || { kill -s TERM -- "-$0"; sleep "$1"; kill -s KILL -- "-$0"; }'
"""Shell script that ends the process group $0 if its input closes without a line, since this process was killed."""

GONE_S = 5.0
"""Time after SIGKILL in which a process is gone, unless it hangs in the kernel."""

KEPT = 200
"""Last lines that are kept."""

LONGEST = 4096
"""Bytes of a line that are kept where it does not end."""

COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Escape sequence of a color, which may be in the middle of a pattern."""

OURS = {"PYTHONUNBUFFERED": "1"}
"""Variables that the program gets besides: Python then prints a line when it is printed, also into a pipe."""

MARK = "WATTUNE_PROBE"
"""Another one, different in every run: by it those are found that have left the program's group (``setsid``)."""

KILLED = frozenset({-9, -7})
"""Signals by which the kernel ends a program for lack of memory: SIGKILL, and SIGBUS for Tegra's own memory."""

NO_MEMORY = re.compile(
    r"out.of.memory|nvmap|\boom\b|memoryerror|bad_alloc|resource.?exhausted|cannot allocate memory|alloc_failed|"
    r"killed by signal: (killed|bus)",
    re.IGNORECASE,
)
"""Words by which programs report that memory did not suffice."""


@contextmanager
def _unpaused() -> Iterator[None]:
    """Ignore Ctrl-Z, which would leave the program without its cap."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Not SIG_IGN, which the program would inherit.
    before = signal.signal(signal.SIGTSTP, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


class Process:
    """A context around one run of a program; on leaving it, neither the program nor its children are there any more.

    It has a session of its own, so that Ctrl-C reaches it through this process alone, and is the first to end where
    memory runs out. ``now_s`` gives the time of its beginning, its lines and its end; ``on_line`` is called with the
    time and the text of each line of its output, from another thread. ``over`` is set when it has ended. ``kill_s``:
    seconds that it has to end when it is asked to. It also ends if this process is killed. ``before_lines`` is called
    before lines are read, for which the program's next step waits.

    Raises on entering: InputError where it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        now_s: Callable[[], float],
        on_line: Callable[[float, str], None] = lambda time_s, line: None,
        kill_s: float = KILL_S,
        before_lines: Callable[[], None] | None = None,
    ):
        self._words = list(words)
        self._kill_s = kill_s
        self._now_s = now_s
        self._on_line = on_line
        self._before_lines = before_lines
        self._lines: deque[str] = deque(maxlen=KEPT)
        self.over = threading.Event()
        self._mark = uuid.uuid4().hex
        self._inside = ExitStack()
        self.begun_s = self.ended_s = 0.0

    def __enter__(self) -> Self:
        is_started = False
        self._inside.enter_context(_unpaused())
        try:
            with held():  # an interrupt would leave a program running that nothing here knows of yet
                self._start()
                is_started = True
            return self
        except BaseException as error:
            if is_started:
                self.__exit__(type(error), error, None)
            else:
                self._inside.close()
            raise

    def _start(self) -> None:
        self.begun_s = self._now_s()
        try:
            self._program = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **OURS, MARK: self._mark, **({} if self._before_lines is None else {LINES: "1"})},
            )
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise InputError("the program cannot be run", value=self._words[0], hint=str(said)) from error
        with suppress(OSError):  # only Linux has it; to raise it is everybody's right
            Path(f"/proc/{self._program.pid}/oom_score_adj").write_text("1000")
        self._watcher = subprocess.Popen(
            ["sh", "-c", WATCHER, str(self._program.pid), str(self._kill_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()
        threading.Thread(target=self._await, name="program", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._signal(signal.SIGTERM):
                self._signal(signal.SIGCONT)  # one that is stopped would not hear of it
            end_s = time.monotonic() + self._kill_s
            while self._signal(0) and time.monotonic() < end_s:
                time.sleep(0.01)
        finally:  # also where Ctrl-C comes while it is waited for
            self._signal(signal.SIGKILL)
            for process in self._others():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            ended = self.over.wait(GONE_S)
            self._reader.join(1.0)
            with suppress(OSError):  # the watcher may have been killed
                self._watcher.communicate(b"over\n", timeout=GONE_S)
            self._inside.close()
        if not ended and kind is None:
            raise DeviceError(f"the program {self._words[0]} hangs and cannot be ended")

    # ------------------------------------------------------------------------------------------------------ questions

    @property
    def code(self) -> int:
        """Its exit code once it has ended; where a signal ended it, directly or below a shell, less than 0."""
        code = self._program.returncode
        return 128 - code if 128 < code <= 192 else code

    @property
    def lines(self) -> list[str]:
        """The last lines that it printed, those without a letter or digit left out."""
        return [line for line in self._lines if re.search(r"\w", line)]

    @property
    def last_line(self) -> str:
        """The last of them, or "none"."""
        return (self.lines or ["none"])[-1].strip()

    def check_ending(self, where: str) -> None:
        """Check how the program ended; ``where``: at which point. Raises: OutOfDeviceMemory, WorkloadError."""
        if self.code == 0:
            return
        if self.code in KILLED or any(NO_MEMORY.search(line) for line in self.lines):
            raise OutOfDeviceMemory(f"the program runs out of memory {where}")
        ending = f"with exit code {self.code}" if self.code > 0 else f"by signal {-self.code}"
        raise WorkloadError(f"the program ended {ending} {where}; its last line", value=self.last_line)

    # -------------------------------------------------------------------------------------------------------- the end

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._program.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _others(self) -> list[int]:
        """The program's processes outside of its process group; empty on systems other than Linux."""
        wanted, found = f"{MARK}={self._mark}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def _await(self) -> None:
        self._program.wait()
        self.ended_s = self._now_s()
        self.over.set()

    # ----------------------------------------------------------------------------------------------------- its output

    def _read(self) -> None:
        assert self._program.stdout is not None
        rest = b""
        with self._program.stdout as pipe:
            while chunk := self._next(pipe.fileno()):
                # A progress bar goes back to the beginning of its line again and again.
                *whole, rest = re.split(rb"[\r\n]+", rest + chunk)
                for line in whole:
                    self._take(line)
                rest = rest[-LONGEST:]
            self._take(rest)

    def _next(self, pipe: int) -> bytes:
        if self._before_lines is not None:
            select.select([pipe], [], [])
            self._before_lines()
        return os.read(pipe, 65536)

    def _take(self, line: bytes) -> None:
        text = COLOR.sub("", line[-LONGEST:].decode("utf-8", "replace"))
        self._lines.append(text)
        self._on_line(self._now_s(), text)
