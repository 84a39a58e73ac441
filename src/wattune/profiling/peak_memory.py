"""The most memory that training takes, measured in a process that does nothing else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch

from wattune.algorithms import place, release
from wattune.algorithms.allocator import M_MMAP_THRESHOLD, glibc


class PeakMemory:
    """The most memory taken at once since ``begin``, beyond what was taken before anything was trained.

    On a CUDA device it is what PyTorch's tensors took; on the CPU what the process had in memory, so that ``settle``
    has to be called once the libraries are loaded and nothing of a training is left. ``alone``: the process is there
    for this only, so its allocator is told to give back at once what is freed. Else it keeps up to as much again, by
    the order in which things were freed, which says nothing of what a step needs.
    """

    def __init__(self, on: Literal["cpu", "gpu"], *, alone: bool = False):
        self._device = place(on)
        self._before = 0.0
        if alone:
            glibc("mallopt", M_MMAP_THRESHOLD, 128 * 1024)

    @classmethod
    def of_cuda(cls, on: Literal["cpu", "gpu"]) -> PeakMemory | None:
        """From now on, where training is on a CUDA device; None elsewhere, where a process does too much besides."""
        if place(on).type != "cuda":
            return None
        peak = cls(on)
        peak.settle()
        peak.begin()
        return peak

    def settle(self) -> None:
        """Exclude the memory that is taken now."""
        release()
        if self._device.type == "cuda":
            self._before = float(torch.cuda.memory_allocated(self._device))
            return
        glibc("malloc_trim", 0)
        self._before = _status("VmRSS") or 0.0

    def begin(self) -> None:
        """Measure the peak from now on."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with suppress(OSError):
            # Source: Linux, Documentation/filesystems/proc.rst, "5" resets the peak of the resident set size.
            Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> float | None:
        """The peak in bytes; None if the system does not report it."""
        if self._device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self._device)) - self._before or None
        peak = _status("VmHWM")
        return None if peak is None or peak <= self._before else peak - self._before


def _status(field: str) -> float | None:
    """The field in bytes; None if there is no such field, as on systems other than Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith(f"{field}:")), None)
    return None if found is None else 1024.0 * int(found)
