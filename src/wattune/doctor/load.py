"""Load that draws power on demand: one busy process per core, or matrix products on the GPU if torch has one.

The processes start ahead of time, so that a load begins at a known moment. They end on request, or when their parent
process is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

from typing_extensions import Self

from wattune.errors import DeviceError

READY_TIMEOUT_S = 180.0
"""Timeout for a process to be ready: on a small board the first use of CUDA takes most of a minute."""

_CPU = """
import os
parent = os.getppid()
print("ready", flush=True)
os.read(0, 1)
while os.getppid() == parent:
    for _ in range(100000):
        pass
"""
_GPU = """
import os
import torch
parent = os.getppid()
a = torch.randn(1024, 1024, device="cuda")
(a @ a).sum().item()
print("ready", flush=True)
os.read(0, 1)
while os.getppid() == parent:
    for _ in range(8):
        a @ a
    torch.cuda.synchronize()
"""


class BusyProcess:
    """A number of processes (or one on the GPU) that start with the context and work once ``begin`` is called.

    Raises: DeviceError if one of them does not get ready.
    """

    def __init__(self, processes: int, *, on_gpu: bool = False):
        self._code = _GPU if on_gpu else _CPU
        self._count = 1 if on_gpu else processes
        self._running: list[subprocess.Popen[bytes]] = []
        self.words = "the GPU busy" if on_gpu else f"{processes} busy core{'s' * (processes != 1)}"

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                self._running.append(_start(self._code))
            for process in self._running:
                _await_ready(process)
        except BaseException:
            self.end()
            raise
        return self

    def begin(self) -> None:
        """Start working."""
        for process in self._running:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b".")
                process.stdin.flush()

    def end(self) -> None:
        """End the processes."""
        for process in self._running:
            process.kill()
        for process in self._running:
            process.communicate()
        self._running = []

    def __exit__(self, *_: object) -> None:
        self.end()


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(code: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        # Ctrl-C reaches only this process, which then ends them.
        start_new_session=True,
    )


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    timeout = threading.Timer(READY_TIMEOUT_S, process.kill)
    timeout.start()
    try:
        line = process.stdout.readline()
    finally:
        timeout.cancel()
    if line.strip() != b"ready":
        raise DeviceError("the process that puts load on the board did not start")
