"""What a training process does with the memory that a step frees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STEPS, TENSORS, BYTES, PAGE = 20, 8, 4 << 20, 4096
PAGES = TENSORS * BYTES // PAGE
PROGRAM = f"""
import resource
from wattune.algorithms.allocator import keep_freed_memory
if "keep" in __import__("sys").argv:
    keep_freed_memory()
step = lambda: [b"x" * {BYTES} for _ in range({TENSORS})]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="another C library has another allocator")
def test_memory_of_a_step_is_not_cleared_again_for_the_next_one():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}

    def faults(*arguments: str) -> int:
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < PAGES
    assert faults() > STEPS * PAGES // 2
