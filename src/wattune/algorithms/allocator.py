"""Settings of the C library's allocator for processes that train on the CPU."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

M_TRIM_THRESHOLD: Final = -1
"""Option for the free memory at the end of the heap from which it is returned to the system.

Source: glibc, malloc.h.
"""

M_MMAP_THRESHOLD: Final = -3
"""Option for the size from which an allocation is mapped separately, and unmapped when it is freed.

Source: glibc, malloc.h.
"""

LARGEST_MMAP_THRESHOLD: Final = 32 << 20
"""Source: mallopt(3), the upper limit of M_MMAP_THRESHOLD on 64-bit systems."""

KEPT_BYTES: Final = 512 << 20


def keep_freed_memory() -> None:
    """Keep what a step frees for the next step, in a process that only trains on the CPU.

    By default glibc returns large tensors to the kernel, which clears the same pages again for the next step: 15 % of
    the CPU time of the built-in example's proxy runs.
    """
    glibc("mallopt", M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    glibc("mallopt", M_TRIM_THRESHOLD, KEPT_BYTES)


def glibc(function: str, *arguments: int) -> None:
    """Call a function of glibc's allocator; another C library does not have it, and nothing is done."""
    with suppress(OSError, AttributeError):
        getattr(ctypes.CDLL("libc.so.6"), function)(*arguments)
