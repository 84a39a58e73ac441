"""Counting of operations while they run: the dispatch mode that intercepts them, its tallies, and copies to run on."""

from __future__ import annotations

import copy
import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Batch, Trainable
from wattune.algorithms.counting import aten
from wattune.errors import WorkloadError
from wattune.records import Operation, PhaseWork, StepWork

DATA_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}

Tally = dict[tuple[str, str], tuple[float, float, float]]
"""(phase, kind) -> FLOPs, bytes, kernels."""


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts the operations within it, and tracks the memory in use.

    ``tally``: the counts in each ``phase``; without a ``phase``, "optimizer" while ``in_optimizer``, "backward" in a
    backward pass, else "forward". Nothing counts while ``paused``. ``memory_bytes``: after each operation, the memory
    of the tensors given to ``hold`` and of all results alive, but for results made while ``unheld``. In the optimizer
    an operation on scalars does not count: it updates the step number, which PyTorch keeps on the CPU.
    """

    def __init__(self, phase: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = phase
        self.in_optimizer = self.paused = self.unheld = False
        self._product_flops: dict[str, float] = defaultdict(float)  # by the data type of the result
        self.tally: Tally = {}
        self.memory_bytes: list[int] = []
        self.alive_bytes = 0  # now
        self._alive: dict[int, weakref.ref[Any]] = {}

    def enter(self, phase: str) -> None:
        """Count from now on in this phase."""
        self.phase = phase

    @contextmanager
    def switched(self, name: Literal["paused", "unheld"]) -> Iterator[None]:
        """Be ``paused`` or ``unheld`` within."""
        before = getattr(self, name)
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, before)

    def hold(self, values: Any) -> None:
        """Count the memory of these tensors while it is alive."""
        for tensor in aten.tensors(values):
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._alive:
                self._alive[key] = weakref.ref(storage, functools.partial(self._release, key, size))
                self.alive_bytes += size
        self.memory_bytes.append(self.alive_bytes)

    def _release(self, key: int, size: int, _: Any) -> None:
        del self._alive[key]
        self.alive_bytes -= size

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        outputs = operation(*arguments, **(options or {}))
        if self.paused:
            return outputs
        if not self.unheld:
            self.hold(outputs)
        if not aten.launches(operation):
            return outputs
        in_backward = torch._C._current_graph_task_id() != -1
        phase = self.phase or ("optimizer" if self.in_optimizer else "backward" if in_backward else "forward")
        if phase == "optimizer" and all(t.dim() == 0 for t in aten.tensors([arguments, outputs])):
            return outputs
        kind, new_flops = aten.kind(operation, arguments), aten.flops(operation, arguments, outputs)
        if kind in ("matmul", "convolution"):
            self._product_flops[DATA_TYPES.get(next(aten.tensors(outputs)).dtype, "fp32")] += new_flops
        if phase == "optimizer":
            kind = "optimizer"
        flops, moved_bytes, kernels = self.tally.get((phase, kind), (0.0, 0.0, 0.0))
        new_bytes = aten.moved_bytes(operation, arguments, outputs)
        self.tally[phase, kind] = flops + new_flops, moved_bytes + new_bytes, kernels + 1
        return outputs

    def work(self, samples: int, micro_batch_size: int) -> StepWork:
        """Combine the work so far into a step, in the data type that most of the products ran in."""
        return StepWork(
            samples=samples,
            micro_batch_size=micro_batch_size,
            data_type=max(self._product_flops, key=lambda name: self._product_flops[name], default="fp32"),
            phases=phases(self.tally),
            peak_memory_bytes=max(self.memory_bytes, default=0),
        )


@contextmanager
def counted_steps(counter: Counter, on_step: Callable[[int], None]) -> Iterator[None]:
    """Count all that runs inside; ``on_step`` gets each optimizer that has stepped, by its identity."""

    def stepped(optimizer: object, *_: object) -> None:
        counter.in_optimizer = False
        on_step(id(optimizer))

    # The last post-hook: what the program registers itself has run before.
    hooks = (
        register_optimizer_step_pre_hook(lambda *_: setattr(counter, "in_optimizer", True)),
        register_optimizer_step_post_hook(stepped),
    )
    try:
        with counter:
            yield
    finally:
        for hook in hooks:
            hook.remove()


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


Place = Literal["meta", "fake", "cpu"]
"""Place of the copies: the meta device, fake CPU tensors, or the CPU with their values."""


class StagedCopy:
    """Copies of ``module`` and ``optimizer``, with the state that the optimizer has after its first step.

    The copy of the optimizer goes from one weight tensor to the next (``foreach`` and ``fused`` off).
    """

    def __init__(self, place: Place, trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer):
        self.place = place
        self._fake = FakeTensorMode(allow_non_fake_inputs=True) if place == "fake" else None
        self._sample = None if place == "cpu" else trainable.example(1)
        with self.running():
            copies: dict[int, Any] = {}
            for tensor in (*module.parameters(), *module.buffers()):
                values = tensor.detach().cpu().clone() if place == "cpu" else self._empty(tensor, *tensor.shape)
                trains = isinstance(tensor, nn.Parameter)
                copies[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if trains else values
            # The copies go to deepcopy as if it had made them: no value is copied twice, and tied weights stay tied.
            self.module = copy.deepcopy(module, dict(copies))
            self.optimizer = _optimizer_of(optimizer, copies)
            self.set_gradients(True)
            self.optimizer.step()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context for everything that touches the copies; it leaves the global random state unchanged."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self._fake is not None:
                stack.enter_context(self._fake)
            yield

    @contextmanager
    def forward(self, *, train: bool) -> Iterator[None]:
        """Context of a forward pass: tensors that the model creates are created in the same place."""
        self.module.train(train)
        with ExitStack() as stack:
            if self.place == "meta":
                stack.enter_context(torch.device("meta"))
            stack.enter_context(torch.set_grad_enabled(train))
            yield

    def batch(self, trainable: Trainable, samples: int) -> Batch:
        """A batch of ``samples`` samples."""
        if self._sample is None:
            return trainable.example(samples)
        x, y = tree_map(lambda v: self._empty(v, samples, *v.shape[1:]) if isinstance(v, Tensor) else v, self._sample)
        return x, y

    def set_gradients(self, present: bool) -> None:
        """Give every trainable parameter a gradient, or remove it."""
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter) if present and parameter.requires_grad else None

    def state(self) -> list[Any]:
        """Tensors that are always in memory: parameters, gradients, buffers, the optimizer's state."""
        parameters = list(self.module.parameters())
        return [
            parameters,
            [p.grad for p in parameters],
            list(self.module.buffers()),
            list(self.optimizer.state.values()),
        ]

    def _empty(self, like: Tensor, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=like.dtype, device="meta" if self.place == "meta" else "cpu")


def _optimizer_of(optimizer: torch.optim.Optimizer, copies: dict[int, Any]) -> torch.optim.Optimizer:
    """Copy the optimizer with its settings and without its state, for the copies of its parameters."""
    result = copy.copy(optimizer)
    result.state = defaultdict(dict)
    result.param_groups = []
    for group in optimizer.param_groups:
        if any(id(p) not in copies for p in group["params"]):
            raise WorkloadError(
                "the optimizer trains a parameter that does not belong to the model", hint="build it from the model"
            )
        copied_group = {**group, "params": [copies[id(p)] for p in group["params"]]}
        copied_group.update({name: False for name in ("foreach", "fused", "capturable") if name in group})
        result.param_groups.append(copied_group)
    return result
