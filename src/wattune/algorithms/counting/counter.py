"""Counting of operations while they run: the dispatch mode that intercepts them, and its tallies."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from wattune.algorithms.counting import aten
from wattune.records import Operation, PhaseWork

Tally = dict[tuple[str, str], tuple[float, float, float]]
"""(phase, kind) -> FLOPs, bytes, kernels."""


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts the operations within it, and tracks the memory in use.

    ``tally``: the counts in each ``phase``; ``memory_bytes``: after each operation, the memory of the tensors given to
    ``hold`` and of all results alive. In the optimizer an operation on scalars does not count: it updates the step
    number, which PyTorch keeps on the CPU.
    """

    def __init__(self, phase: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = phase
        self.tally: Tally = {}
        self.memory_bytes: list[int] = []
        self._alive_bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def enter(self, phase: str) -> None:
        """Count from now on in this phase."""
        self.phase = phase

    def hold(self, values: Any) -> None:
        """Count the memory of these tensors while it is alive."""
        for tensor in aten.tensors(values):
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._alive:
                self._alive[key] = weakref.ref(storage, functools.partial(self._release, key, size))
                self._alive_bytes += size
        self.memory_bytes.append(self._alive_bytes)

    def _release(self, key: int, size: int, _: Any) -> None:
        del self._alive[key]
        self._alive_bytes -= size

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        outputs = operation(*arguments, **(options or {}))
        self.hold(outputs)
        if not aten.launches(operation):
            return outputs
        if self.phase == "optimizer" and all(t.dim() == 0 for t in aten.tensors([arguments, outputs])):
            return outputs
        kind = "optimizer" if self.phase == "optimizer" else aten.kind(operation, arguments)
        flops, moved_bytes, kernels = self.tally.get((self.phase, kind), (0.0, 0.0, 0.0))
        self.tally[self.phase, kind] = (
            flops + aten.flops(operation, arguments, outputs),
            moved_bytes + aten.moved_bytes(operation, arguments, outputs),
            kernels + 1,
        )
        return outputs


def total(*parts: tuple[float, Tally]) -> Tally:
    """The weighted sum of tallies."""
    result: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for weight, tally in parts:
        for key, amounts in tally.items():
            for index, amount in enumerate(amounts):
                result[key][index] += weight * amount
    return {key: (flops, moved_bytes, kernels) for key, (flops, moved_bytes, kernels) in result.items()}


def phases(tally: Tally, *, host_s: float = 0.0) -> tuple[PhaseWork, ...]:
    """The phases of a step in order; "host" comes first if it takes any time."""
    result = [PhaseWork(phase="host", host_s=host_s)] if host_s else []
    for phase in dict.fromkeys(phase for phase, _ in tally):
        operations = tuple(
            Operation(kind=kind, flops=flops, bytes=moved_bytes, kernels=round(kernels))
            for (other, kind), (flops, moved_bytes, kernels) in sorted(tally.items())
            if other == phase
        )
        result.append(PhaseWork(phase=phase, operations=operations))
    return tuple(result)
