"""The work of a training step, counted from the operations that PyTorch would run: FLOPs, bytes, kernels, memory.

The model's forward pass, its backward pass and its optimizer run on copies without values: on the meta device or, for
fp16 and bf16, on fake CPU tensors, since autocast does not support the meta device. The bytes then follow from the
casts of PyTorch's autocast for CPUs, which nearly match those on CUDA; the casts count as copies. A model whose
operations depend on its values cannot run without them: it is counted with two small batches on the CPU, and every
figure is extrapolated linearly in the batch size.

The count is that of a small board: each operation that is not a view is one launch, nothing is fused, attention is
spelled out (its fused kernels need newer chips) and the optimizer goes from one weight tensor to the next (``foreach``
and ``fused`` off). Recurrent layers are spelled out too, step by step, in every data type: the vendors' fused kernels
launch less, and need not read the weights at every step. Workspaces of the vendors' libraries and the rounding of the
memory allocator are not counted.
"""

from __future__ import annotations

import weakref
from collections import Counter as Multiset
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import nn

from wattune.algorithms.base import Batch, Trainable, differentiable_loss
from wattune.algorithms.counting.counter import Counter, Place, StagedCopy, Tally, phases, total
from wattune.algorithms.counting.fused import fused_memory
from wattune.algorithms.placement import LOW_PRECISION, autocast
from wattune.errors import WattuneError, WorkloadError
from wattune.records import StepWork

Kind = Literal["first", "next", "forward", "optimizer"]
"""Kinds of passes: the first forward and backward pass; a later one, which adds to the gradients; a forward pass in
evaluation mode; an update of the parameters."""

Value = TypeVar("Value")

SMALL_BATCHES = 2, 4
"""Batch sizes at which to count a model that depends on its values."""


class TrainingPass(Protocol):
    """A pass over a batch that leaves gradients in the parameters: the part of an algorithm that is counted.

    Equal passes must be interchangeable, and hashable: they are cache keys.
    """

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Run it on a copy of the model in training mode; it calls ``phase`` when a phase after "forward" begins."""


def backward_pass(
    module: Callable[[Any], Any], trainable: Trainable, batch: Batch, phase: Callable[[str], None]
) -> None:
    """The pass of backpropagation."""
    with autocast("cpu", trainable.data_type):
        loss = differentiable_loss(trainable, module(batch[0]), batch[1])
    phase("backward")
    loss.backward()  # type: ignore[no-untyped-call]


def step_work(
    trainable: Trainable,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    micro_batch_size: int,
    training_pass: TrainingPass = backward_pass,
) -> StepWork:
    """Count the work of one training step, without changing ``module`` or ``optimizer``.

    The peak memory is that of parameters, gradients, optimizer state, the inputs of the whole batch and everything
    alive in the pass of one micro-batch. Raises: WorkloadError if model, loss or optimizer fail.
    """
    counts = _counts(trainable, module, optimizer, training_pass)
    first, *others = split(batch_size, micro_batch_size)
    passes = [(1, counts.of("first", first, trainable))]
    passes += [(n, counts.of("next", size, trainable)) for size, n in Multiset(others).items()]
    passes.append((1, counts.of("optimizer", 0, trainable)))
    inputs = sum(n * p.input_bytes for n, p in passes)
    return StepWork(
        samples=batch_size,
        micro_batch_size=micro_batch_size,
        data_type=trainable.data_type,
        phases=phases(total(*((n, p.tally) for n, p in passes)), host_s=trainable.host_s_per_sample * batch_size),
        peak_memory_bytes=inputs + max(p.peak_bytes - p.input_bytes for _, p in passes),
    )


def evaluation_work(
    trainable: Trainable,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: int,
    training_pass: TrainingPass = backward_pass,
) -> StepWork:
    """Count the work of a forward pass of ``samples`` samples, in fp32 and without gradients, between two steps.

    ``training_pass``: pass of a step, by which the copy of the model is tried. Raises: WorkloadError if it fails.
    """
    forward = _counts(trainable, module, optimizer, training_pass).of("forward", samples, trainable)
    return StepWork(
        samples=samples,
        micro_batch_size=samples,
        data_type="fp32",
        phases=phases(forward.tally, host_s=trainable.host_s_per_sample * samples),
        peak_memory_bytes=forward.peak_bytes,
    )


def on_copy(
    trainable: Trainable,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: int,
    call: Callable[[StagedCopy, Trainable, int], Value],
) -> Value:
    """Call a function that counts on a copy of the model, or with a small batch if the model depends on its values.

    The result is cached for the lifetime of the trainable. Raises: WorkloadError if model or loss fail.
    """

    def counted(place: Place, size: int) -> Value:
        with model_errors():
            return call(StagedCopy(place, trainable, module, optimizer), trainable, size)

    def made() -> Value:
        try:
            return counted(_without_values(trainable), samples)
        except WorkloadError:  # a model that fails without values may still run with them
            return counted("cpu", SMALL_BATCHES[1])

    return _cached(trainable, (samples, call, *_identity(trainable, module, optimizer)), made)


def _without_values(trainable: Trainable) -> Place:
    """The place of a copy that is counted without values."""
    return "fake" if trainable.data_type in LOW_PRECISION else "meta"


def split(batch_size: int, micro_batch_size: int) -> list[int]:
    """Sizes of the micro-batches of one batch; the last may be smaller."""
    full, rest = divmod(batch_size, micro_batch_size)
    return [micro_batch_size] * full + [rest] * bool(rest)


# ------------------------------------------------------------------------------------------------------------- passes


@dataclass(frozen=True)
class Pass:
    """The counts of one pass, the memory alive after each of its operations, and the inputs' part of that memory."""

    tally: Tally
    memory_bytes: tuple[float, ...]
    input_bytes: float

    @property
    def peak_bytes(self) -> float:
        """The most memory alive at one moment."""
        return max(self.memory_bytes)

    def towards(self, other: Pass, weight: float) -> Pass:
        """Extrapolate linearly from here (0) through ``other`` (1) to ``weight``; no figure falls below zero."""

        def line(a: float, b: float) -> float:
            return max(0.0, (1 - weight) * a + weight * b)

        nothing = (0.0, 0.0, 0.0)
        pairs = {key: (self.tally.get(key, nothing), other.tally.get(key, nothing)) for key in self.tally | other.tally}
        # The moment of the peak changes with the batch size, so each moment has its own line; if the passes differ in
        # their operations, the moments do not correspond.
        mine, others = self.memory_bytes, other.memory_bytes
        if len(mine) != len(others):
            mine, others = (max(mine),), (max(others),)
        return Pass(
            {key: (line(a[0], b[0]), line(a[1], b[1]), line(a[2], b[2])) for key, (a, b) in pairs.items()},
            tuple(map(line, mine, others)),
            line(self.input_bytes, other.input_bytes),
        )


class Counts:
    """Cached counts of one model with one optimizer. It references neither values nor the ``Trainable``."""

    def __init__(
        self,
        trainable: Trainable,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        training_pass: TrainingPass = backward_pass,
    ):
        self._passes: dict[tuple[Kind, int], Pass] = {}
        self._training_pass = training_pass
        self._stage: StagedCopy | None = None
        try:
            self._stage = StagedCopy(_without_values(trainable), trainable, module, optimizer)
            self.of("first", SMALL_BATCHES[0], trainable)
            self.of("forward", SMALL_BATCHES[0], trainable)
        except Exception:  # noqa: BLE001 - a model that fails without values may still run with them
            self._stage = None
            self._passes = self._with_values(trainable, module, optimizer)

    def of(self, kind: Kind, samples: int, trainable: Trainable) -> Pass:
        """The pass of this kind with ``samples`` samples."""
        samples = 0 if kind == "optimizer" else samples
        if (kind, samples) not in self._passes:
            if self._stage is not None:
                with model_errors():
                    result = count(self._stage, kind, samples, trainable, self._training_pass)
            else:
                few, more = SMALL_BATCHES
                weight = (samples - few) / (more - few)
                result = self._passes[kind, few].towards(self._passes[kind, more], weight)
            self._passes[kind, samples] = result
        return self._passes[kind, samples]

    def _with_values(
        self, trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[tuple[Kind, int], Pass]:
        kinds: tuple[Kind, ...] = "first", "next", "forward"
        run = self._training_pass
        with model_errors():
            stage = StagedCopy("cpu", trainable, module, optimizer)
            passes = {(k, n): count(stage, k, n, trainable, run) for k in kinds for n in SMALL_BATCHES}
            passes["optimizer", 0] = count(stage, "optimizer", 0, trainable, run)
        return passes


@contextmanager
def model_errors() -> Iterator[None]:
    """Map an error of the model, its loss or its optimizer. Raises: WorkloadError."""
    try:
        yield
    except WattuneError:
        raise
    except Exception as error:  # the user's own model, loss and optimizer may raise anything
        raise WorkloadError("a training step of the model fails", value=f"{type(error).__name__}: {error}") from error


def count(
    stage: StagedCopy, kind: Kind, samples: int, trainable: Trainable, training_pass: TrainingPass = backward_pass
) -> Pass:
    """Run one pass on the copies of ``stage`` and count it."""
    with stage.running(), _unfused_recurrence(stage.module):
        counter = Counter("optimizer" if kind == "optimizer" else "forward")
        batch: Batch = stage.batch(trainable, samples) if samples else (None, None)
        counter.hold(batch)
        input_bytes = counter.memory_bytes[-1]
        stage.set_gradients(kind != "first")
        counter.hold(stage.state())
        if kind == "optimizer":
            with counter:
                stage.optimizer.step()
            if trainable.data_type == "fp16":
                counter.tally = total((1, counter.tally), (1, _scaler(stage)))
        elif kind == "forward":
            with stage.forward(train=False), fused_memory(counter), counter:
                stage.module(batch[0])
        else:
            with stage.forward(train=True), fused_memory(counter), counter:
                training_pass(stage.module, trainable, batch, counter.enter)
    return Pass(counter.tally, tuple(counter.memory_bytes), input_bytes)


@contextmanager
def _unfused_recurrence(module: nn.Module) -> Iterator[None]:
    """Turn off the CPU's fused kernel for LSTM: neither the meta device nor the other recurrent layers have one.

    Only for a model with recurrent layers: convolutions with values would be slow without these kernels.
    """
    # Not torch.backends.mkldnn.flags: it sets the use of TF32 as well, and warns if TF32 is not supported.
    enabled = torch._C._get_mkldnn_enabled()
    if not enabled or not any(isinstance(part, nn.RNNBase) for part in module.modules()):
        yield
        return
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


def _scaler(stage: StagedCopy) -> Tally:
    # Gradient scaling divides every gradient by the scale, looks for infinities on the way, and updates the scale.
    elements = sum(p.numel() for p in stage.module.parameters() if p.requires_grad)
    return {("optimizer", "optimizer"): (elements, 8.0 * elements, 2)}


_CACHE: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _cached(trainable: Trainable, key: Any, make: Callable[[], Value]) -> Value:
    """The value of this key, made once in the lifetime of the trainable."""
    try:
        cache = _CACHE.setdefault(trainable, {})
    except TypeError:  # an object with __slots__ has no weak references
        return make()
    if key not in cache:
        cache[key] = make()
    value: Value = cache[key]
    return value


def _identity(trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    shapes = tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters())
    return type(optimizer), trainable.data_type, shapes


def _counts(
    trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer, training_pass: TrainingPass
) -> Counts:
    """The counts of this model, cached for the lifetime of the trainable."""
    key = training_pass, *_identity(trainable, module, optimizer)
    return _cached(trainable, key, lambda: Counts(trainable, module, optimizer, training_pass))
