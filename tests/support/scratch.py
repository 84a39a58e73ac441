"""Folders for what tests write: in memory where there is room, and removed after a run that was killed, too."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NAME = re.compile(r"wt(\d+)-")
LEAST_FREE, LEAST_AVAILABLE = 4 << 30, 12 << 30
"""Bytes: what tests write at most, and what they and their processes need with it. A full memory ends processes."""


def scratch_folder() -> Path:
    """A new folder, named after this process. Short: the path of a socket has about 100 characters at most."""
    return Path(tempfile.mkdtemp(prefix=f"wt{os.getpid()}-", dir=MEMORY if in_memory() else None))


def in_memory() -> bool:
    """Whether the memory has room for all that tests write, and programs may be run from there."""
    if not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    fits = found.f_bavail * found.f_frsize >= LEAST_FREE and _available() >= LEAST_AVAILABLE
    return fits and not found.f_flag & os.ST_NOEXEC


def remove_left_over() -> None:
    """Remove the folders of processes that have ended: a run that was killed leaves gigabytes of memory taken."""
    for folder in MEMORY.glob("wt*-*"):
        named = NAME.match(folder.name)
        if named and not Path("/proc", named[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _available() -> int:
    """Bytes of memory that programs can have."""
    found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) << 10 if found else 0
