"""Check that the model runs at another micro-batch size, before the user's own loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from wattune.algorithms import memory_errors, release
from wattune.algorithms.counting import aten
from wattune.devices import Device
from wattune.errors import DeviceError, InputError, OutOfDeviceMemory
from wattune.loop.micro_batching import even
from wattune.loop.rng_state import undisturbed
from wattune.loop.step_counter import StepWorkCounter
from wattune.point import BatchShape


class FitCheck:
    """Records how the user calls the model, and calls it in the same way with other numbers of samples.

    Each new size gets one forward and backward pass of copies of one sample, after which gradients, buffers and random
    state are restored. If the model itself was never called, or its inputs cannot be split by samples, only parts that
    are not larger than the user's own are assumed to fit.
    """

    def __init__(self, device: Device, model: nn.Module, largest: int, optimizer: Optimizer | None = None):
        self.known: set[int] = set()
        """Micro-batch sizes that training has used or that were tried successfully."""
        self.failures: dict[int, str] = {}
        self._device = device
        self._model = model
        self._optimizer = optimizer
        self._largest = largest
        self._call: tuple[Any, Any, Any] | None = None
        self.samples = 0
        """Number of samples that the model is about to be called with."""
        self._hook: Any = None

    def open(self) -> None:
        """Observe the next call of the model, until ``close``."""
        if not isinstance(self._model, nn.parallel.DistributedDataParallel):
            self._hook = self._model.register_forward_pre_hook(self._record, with_kwargs=True)

    def is_known(self, row: BatchShape) -> bool:
        """True if ``fits`` can answer for this row without a trial."""
        size = max(even(*row))
        return size in self.known or size in self.failures or self._call is None

    def fits(self, row: BatchShape, counter: StepWorkCounter) -> bool:
        """Check that steps of this row can be trained; ``failures`` has the reason if not. Raises: DeviceError."""
        size = max(even(*row))
        if size in self.failures:
            return False
        if size in self.known:
            return True
        if self._call is None:
            return size <= self._largest
        return self.runs(size, lambda: self._try(size, counter))

    def runs(self, size: int, run: Callable[[], None]) -> bool:
        """Try to run the model with ``size`` samples; ``failures`` has the reason if it fails. Raises: DeviceError."""
        try:
            run()
        except (OutOfDeviceMemory, InputError) as error:
            self.failures[size] = str(error)
        except DeviceError:  # not caused by the size
            raise
        except Exception as error:  # noqa: BLE001 - the user's own model may raise anything
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.failures[size] = f"{type(error).__name__}: {text}"
        else:
            self.known.add(size)
            return True
        release()
        return False

    def close(self) -> None:
        """Remove the hook from the model."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _record(self, model: nn.Module, arguments: Any, options: Any) -> None:
        if not self.samples or not torch.is_grad_enabled():
            return
        samples = self.samples
        has_samples = any(t.dim() and t.shape[0] == samples for t in aten.tensors([list(arguments), options]))
        if has_samples:
            one = tree_map(lambda v: _first(v, samples), (arguments, options))
            kind = next(self._model.parameters()).device.type
            autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
            self._call = (*one, (kind, *autocast))
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _try(self, size: int, counter: StepWorkCounter) -> None:
        assert self._call is not None
        arguments, options, (kind, enabled, dtype) = self._call
        model = self._model
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)  # training does not hold two sets of gradients either
        arguments, options = tree_map(
            lambda v: v.expand(size).contiguous() if isinstance(v, _One) else v, (arguments, options)
        )
        with unchanged(model):
            counter.begin(("trial", size), [list(arguments), options])
            try:
                with memory_errors(f"a micro-batch of {size}"):
                    timed = self._device.step(counter.placeholder(size, size)) if not counter.counts else nullcontext()
                    with timed, torch.enable_grad():
                        with torch.autocast(kind, dtype=dtype, enabled=enabled):
                            outputs = aten.tensors(_as_dict(model(*arguments, **options)))
                            means = [t.float().mean() for t in outputs if t.requires_grad]
                        if means:
                            torch.autograd.backward(torch.stack(means).sum())
                work = counter.end(size, size) if counter.counts else None
            finally:
                counter.drop()
        if work is not None:
            with self._device.step(work):
                pass


class _One:
    """One sample of an argument with one entry per sample."""

    def __init__(self, value: Tensor):
        self._value = value

    def expand(self, size: int) -> Tensor:
        return self._value.expand(size, *self._value.shape[1:])


def _first(value: Any, samples: int) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return _One(value[:1].clone()) if value.dim() and value.shape[0] == samples else value
    return value


def _as_dict(outputs: Any) -> Any:
    return dict(outputs) if hasattr(outputs, "items") else outputs


@contextmanager
def unchanged(model: nn.Module, others: Iterable[Tensor] = ()) -> Iterator[None]:
    """Context that restores gradients, buffers, random state and the modules' modes; gradients begin at zero inside.

    ``others``: parameters whose gradients are restored as well, since an optimizer may have some beside the model's.
    """
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(p, p.grad) for p in dict.fromkeys((*model.parameters(), *others))]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for parameter, _ in gradients:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    try:
        with undisturbed():
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for module, training in modes:
            module.training = training
