"""The memory of the computer that trains: what is free, and what was swapped."""

from __future__ import annotations

import os

from wattune_agent.errors import FileFailed
from wattune_agent.tree import Tree, text

MARGIN_BYTES = 256 << 20
MARGIN = 0.05
"""Reserve for the system: this much, or this share of all memory if that is more. The kernel's figure of available
memory includes caches that it needs itself, and a board that runs out stops responding before it kills a process."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def free_bytes(tree: Tree) -> float:
    """Memory that a process can still allocate, minus a margin for the system; never below 0.

    Raises: Forbidden, FileFailed.
    """
    values = {}
    for line in tree.read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        try:
            values[name.strip()] = float(rest.split()[0]) * 1024.0
        except (IndexError, ValueError):
            continue
    if "MemTotal" not in values:
        raise FileFailed("/proc/meminfo does not say how much memory there is")
    # MemAvailable came with Linux 3.14.
    available = values.get("MemAvailable", values.get("MemFree", 0.0) + values.get("Cached", 0.0))
    return max(0.0, available - max(float(MARGIN_BYTES), MARGIN * values["MemTotal"]))


def swapped_bytes(tree: Tree) -> float:
    """Bytes swapped in and out since the board booted; 0 if the kernel does not report them.

    The difference between two calls is the amount swapped between them.
    """
    pages = 0.0
    for line in text(tree, "/proc/vmstat").splitlines():
        name, _, count = line.partition(" ")
        if name in ("pswpin", "pswpout") and count.strip().isdigit():
            pages += float(count)
    return pages * PAGE_BYTES
