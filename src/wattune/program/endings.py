"""Endings of a program: for lack of memory, or by an error of its own."""

from __future__ import annotations

import re

from wattune.errors import OutOfDeviceMemory, WorkloadError
from wattune.program.process import Process

KILLED = frozenset({-9, -7})
"""Signals by which the kernel ends a program for lack of memory: SIGKILL, and SIGBUS for Tegra's own memory."""

NO_MEMORY = re.compile(
    r"out.of.memory|nvmap|\boom\b|memoryerror|bad_alloc|resource.?exhausted|cannot allocate memory|alloc_failed|"
    r"killed by signal: (killed|bus)",
    re.IGNORECASE,
)
"""Words by which programs report that memory did not suffice."""


def check_ending(program: Process, where: str) -> None:
    """Check how the program ended; ``where``: at which point. Raises: OutOfDeviceMemory, WorkloadError."""
    if program.code == 0:
        return
    if program.code in KILLED or any(NO_MEMORY.search(line) for line in program.lines):
        raise OutOfDeviceMemory(f"the program runs out of memory {where}")
    ending = f"with exit code {program.code}" if program.code > 0 else f"by signal {-program.code}"
    raise WorkloadError(f"the program ended {ending} {where}; its last line", value=program.last_line)
