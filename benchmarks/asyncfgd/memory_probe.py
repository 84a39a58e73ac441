"""The peak memory of a training step in a fresh process: a stack of convolutions of any depth, under any algorithm.

``python -m benchmarks.asyncfgd.memory_probe forward-gradient 64 64`` prints one line of JSON: the
growth of the process's resident memory (VmHWM minus VmRSS, Linux) over some steps, after a step on two samples has
made all permanent allocations. Parameters and the batch itself are not included. ``modelled_mb`` is the figure of
``work()`` for a simulated board, also without these two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.asyncfgd.synthetic_models import SyntheticModel, convolutions
from wattune.algorithms import open_algorithm

ROOT = Path(__file__).parents[2]
STEPS = 3


def measure(algorithm: str, *, depth: int, batch: int) -> dict[str, Any]:
    """Measure in a separate process, in MB (1e6 bytes). Raises: RuntimeError with the last line of its errors."""
    command = [sys.executable, "-m", "benchmarks.asyncfgd.memory_probe", algorithm, str(depth), str(batch)]
    # Return each tensor's memory to the system with the tensor; otherwise memory cached by the allocator counts.
    settings = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise RuntimeError(process.stderr.strip().splitlines()[-1])
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure in this process."""
    name, depth, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    task = SyntheticModel(lambda: convolutions(depth), (3, 32, 32))
    algorithm = open_algorithm(name, task, batch)
    work = algorithm.work()
    # A pipeline yields no Step before it is full.
    list(algorithm.run([task.example(2)] * 8))
    batches = [task.example(batch)] * (STEPS + 8)
    before = _status_kb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to VmRSS
    steps = algorithm.run(batches)
    for _ in range(STEPS):
        next(steps)
    peak = _status_kb("VmHWM")
    fixed = sum(p.numel() * p.element_size() for p in algorithm.module.parameters())
    fixed += sum(t.numel() * t.element_size() for t in batches[0])
    modelled_bytes = work.peak_memory_bytes - fixed
    print(json.dumps({"peak_mb": (peak - before) * 1024 / 1e6, "modelled_mb": modelled_bytes / 1e6}))


def _status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


if __name__ == "__main__":
    main()
