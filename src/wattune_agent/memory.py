"""The memory that training and the rest of the system share on a board."""

import os

from wattune_agent.errors import FileFailed
from wattune_agent.reads import text
from wattune_agent.tree import Tree

__all__ = ["free_bytes", "swapped_bytes"]

MARGIN_BYTES = 256 << 20
MARGIN = 0.05
"""Left to the system: this much, or this share of all memory where that is more. What the kernel calls available
includes caches that it needs itself, and a board that runs out stops answering before it kills."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def free_bytes(tree: Tree) -> float:
    """Memory that a process can still take, less a margin for the system; never below 0.

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
    """What was swapped in and out since the board booted; 0 where the kernel does not tell.

    A difference of two calls is what was swapped between them.
    """
    pages = 0.0
    for line in text(tree, "/proc/vmstat").splitlines():
        name, _, count = line.partition(" ")
        if name in ("pswpin", "pswpout") and count.strip().isdigit():
            pages += float(count)
    return pages * PAGE_BYTES
