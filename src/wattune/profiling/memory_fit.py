"""Trials of which micro-batches fit in memory that training shares with the system, in a process that may be killed.

On a board whose GPU and system share the memory, or on the CPU, a step that is too large is not refused: the kernel
ends some process. So it is tried in a process of its own, which asks the kernel to be the first to end.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch.utils._pytree import tree_leaves

from wattune.algorithms import open_algorithm, release
from wattune.devices import Device
from wattune.errors import OutOfDeviceMemory, WattuneError, WorkloadError
from wattune.point import BatchShape
from wattune.profiling.peak_memory import PeakMemory
from wattune.workloads import Workload

STEPS = 2
"""Steps that are tried: the optimizer's state is there from the first on, so the second takes the most."""

WITHIN_S = 900.0
"""Seconds that a size is given; one that takes longer, since the board does nothing but swap, does not fit.

The first step on a Jetson Nano alone takes 49 s (CUDA's and cuDNN's start). Source: dusty-nv/jetson-inference.
"""

KILLED = frozenset({signal.SIGKILL, signal.SIGBUS})
"""Signals that a process gets which took more memory than there is: the kernel's, and Tegra's for its own memory."""


def is_needed(device: Device) -> bool:
    """Return True if a step that does not fit endangers this process and others."""
    return device.executes_steps and device.shares_memory


def can_travel(workload: Workload) -> bool:
    """Return True if the workload can be sent to another process, and so be tried there."""
    try:
        pickle.dumps(workload)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


class MemoryFit(NamedTuple):
    """Micro-batch sizes that do not fit in memory, and the most bytes that a step with each other one took, all but the
    inputs of its batch; ``sample_bytes`` are those of a sample."""

    unfit: frozenset[int]
    taken_bytes: Mapping[int, float]
    sample_bytes: float

    def memory_bytes(self, shape: BatchShape) -> float | None:
        """The most memory that a step of this shape takes; None if that is unknown."""
        taken = self.taken_bytes.get(shape.micro)
        return None if taken is None else taken + self.sample_bytes * shape.batch


def fit(device: Device, workload: Workload, algorithm: str, rows: Sequence[BatchShape]) -> MemoryFit:
    """Find the micro-batch sizes of the shapes that do not fit in memory: the first ascending one, and all above it.

    Each is trained for ``STEPS`` steps in a process of its own, which measures what that takes. That it runs out of
    memory, is killed by the kernel or does not end within ``WITHIN_S`` seconds all mean that the size does not fit.

    Raises: WorkloadError if a step fails for another reason.
    """
    tried = _tried(rows)
    left = [micro for _, micro in tried]
    batch_of = {micro: batch_size for batch_size, micro in tried}
    sample_bytes = _bytes(workload.example(1))
    taken: dict[int, float] = {}
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(
        target=_try, args=(theirs, workload, algorithm, device.trains_on, tried), name="wattune-fit", daemon=True
    )
    process.start()
    theirs.close()
    try:
        while left and ours.poll(WITHIN_S):
            try:
                said, failure, peak_bytes = ours.recv()
            except EOFError:  # it has ended
                process.join()
                _check_ending(process.exitcode)
                break
            if failure is not None:
                raise WorkloadError("a training step fails", value=failure)
            if said is None:
                break
            left.remove(said)
            if peak_bytes is not None:
                taken[said] = max(peak_bytes - sample_bytes * batch_of[said], 1.0)
    finally:
        process.kill()
        process.join()
        ours.close()
    return MemoryFit(frozenset(left), taken, sample_bytes)


def _bytes(batch: Any) -> float:
    return float(sum(leaf.nbytes for leaf in tree_leaves(batch) if hasattr(leaf, "nbytes")))


def _tried(rows: Sequence[BatchShape]) -> list[BatchShape]:
    # Two micro-batches where a batch has several: the second one's pass runs beside the gradients of the first. More
    # of them take no more memory.
    largest = {shape.micro: shape.batch for shape in sorted(rows)}
    return [BatchShape(min(2 * micro, batch), micro) for micro, batch in sorted(largest.items())]


def _check_ending(code: int | None) -> None:
    if code is None or -code not in KILLED:
        raise WorkloadError(
            "a training step cannot be tried in a process of its own, which ended with",
            value=code,
            hint="a script has to start under `if __name__ == '__main__':`",
        )


def _try(
    results: Connection, workload: Workload, algorithm: str, on: Literal["cpu", "gpu"], tried: Sequence[BatchShape]
) -> None:
    """In the other process. Sends (size, None, bytes) for one that fits, (None, None, None) for one that does not, and
    (None, what failed, None)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    with suppress(OSError):  # only Linux has it; to raise it is everybody's right
        Path("/proc/self/oom_score_adj").write_text("1000")
    peak = PeakMemory(on, alone=True)
    # The smallest once before: a step's memory does not include what the libraries load and set up.
    for again, (batch_size, micro) in enumerate([*tried[:1], *tried]):
        peak.begin()
        try:
            training = open_algorithm(algorithm, workload, batch_size, micro_batch_size=micro, on=on)
            for _ in training.run(repeat(workload.example(batch_size), STEPS)):
                pass
        except OutOfDeviceMemory:
            results.send((None, None, None))
            return
        except WattuneError as error:
            results.send((None, str(error), None))
            return
        del training
        if again:
            results.send((micro, None, peak.read()))
            release()
        else:
            peak.settle()
