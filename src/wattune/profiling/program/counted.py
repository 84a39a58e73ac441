"""Work of a program's step on a simulated board: a Python program is run here, and its operations are counted.

As a module it counts in a process of its own: ``python -m wattune.profiling.program.counted FILE BATCH_SIZE WORDS...``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wattune.errors import OutOfDeviceMemory, WorkloadError
from wattune.program.process import Process
from wattune.records import StepWork

ROUNDS = 4
"""Steps that are counted: the first one also sets up memory, and one may follow an evaluation."""


def counted_work(words: Sequence[str], batch_size: int) -> StepWork:
    """The work of a step of this program. Raises: InputError for another program than Python's; WorkloadError;
    OutOfDeviceMemory.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.json"
        counting = [sys.executable, "-m", __name__, str(file), str(batch_size), *words]
        with Process(counting, now_s=time.monotonic) as program:
            program.over.wait()
        program.check_ending(f"at batch size {batch_size}")
        if not file.exists():
            raise WorkloadError(
                "the program makes too few steps of torch to be simulated; its last line",
                value=program.last_line,
                allowed=f"{ROUNDS} or more",
            )
        return StepWork.model_validate_json(file.read_text())


def counted_works(words: Callable[[int], list[str]], batch_sizes: Sequence[int]) -> dict[int, StepWork]:
    """The work of a step at each of the ascending batch sizes that fits in memory.

    Raises: as ``counted_work``, and if the batch size changes nothing; OutOfDeviceMemory if none fits.
    """
    works: dict[int, StepWork] = {}
    for size in batch_sizes:
        try:
            works[size] = counted_work(words(size), size)
        except OutOfDeviceMemory:
            if not works:
                raise
            break
    phases = [one.phases for one in works.values()]
    if len(works) > 1 and phases.count(phases[0]) == len(phases):
        raise WorkloadError(
            "the program's steps are the same at all batch sizes",
            value=", ".join(map(str, batch_sizes)),
            hint="does it use {batch_size}?",
        )
    return works


def _count(file: str, batch_size: str, *words: str) -> int:
    from wattune.algorithms.counting.counter import Counter, counted_steps
    from wattune.program.hook.sitecustomize import Rounds
    from wattune.program.in_process import in_process

    run, counter, works = in_process(words), Counter(), list[StepWork]()

    def round_ended(_: int) -> None:
        works.append(counter.work(int(batch_size), int(batch_size)))
        counter.tally.clear()
        if len(works) == ROUNDS:
            least = min(works[1:], key=lambda one: sum(part.flops for phase in one.phases for part in phase.operations))
            Path(file).write_text(least.model_dump_json())
            os._exit(0)

    with counted_steps(counter, Rounds(round_ended).count):
        return run()


if __name__ == "__main__":
    sys.exit(_count(*sys.argv[1:]))
