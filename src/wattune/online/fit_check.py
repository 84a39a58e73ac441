"""Whether the model can be run at another micro-batch size, tried before the user's own loop gets to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from wattune.algorithms import release, shortage_said
from wattune.algorithms.counting import aten
from wattune.devices import Device
from wattune.errors import DeviceError, InputError, OutOfDeviceMemory
from wattune.online.micro_batching import even
from wattune.online.rng_state import undisturbed
from wattune.online.step_counter import StepWorkCounter
from wattune.search.search import Row


class FitCheck:
    """Remembers how the user calls the model, and calls it so with other numbers of samples.

    One forward and backward pass of each new size, of copies of one sample: gradients, buffers and random numbers are
    afterwards as they were. Where the model itself was never called, or cannot be cut by samples, only parts that are
    not larger than those of the user's own are taken to fit.
    """

    def __init__(self, device: Device, model: nn.Module, largest: int, optimizer: Optimizer | None = None):
        self.known: set[int] = set()
        """Micro-batch sizes that training has run with or that were tried."""
        self.failures: dict[int, str] = {}
        self.too_large: dict[Row, str] = {}
        """Rows whose batch does not fit beside a micro-batch that does, on a device that does not run the steps."""
        self._peaks: dict[int, float] = {}
        self._device = device
        self._model = model
        self._optimizer = optimizer
        self._largest = largest
        self._call: tuple[Any, Any, Any] | None = None
        self.samples = 0
        """How many the model is about to be called with."""
        self._hook: Any = None

    def open(self) -> None:
        """Begin to see how the model is called, until that was seen, or until ``close``."""
        if not isinstance(self._model, nn.parallel.DistributedDataParallel):
            self._hook = self._model.register_forward_pre_hook(self._see, with_kwargs=True)

    def is_known(self, row: Row) -> bool:
        """Whether nothing has to be tried to say whether this row fits."""
        size = max(even(*row))
        return size in self.known or size in self.failures or self._call is None

    def fits(self, row: Row, counter: StepWorkCounter) -> bool:
        """Whether steps of this row can be trained. Why not stands in ``failures``. Raises: DeviceError."""
        size = max(even(*row))
        if size in self.failures or row in self.too_large:
            return False
        if size in self.known:
            return self._has_room(row, size)
        if self._call is None:
            return size <= self._largest
        return self.runs(size, lambda: self._try(size, counter)) and self._has_room(row, size)

    def runs(self, size: int, run: Callable[[], None]) -> bool:
        """Whether the model ran with so many samples; else why not stands in ``failures``. Raises: DeviceError."""
        try:
            run()
        except (OutOfDeviceMemory, InputError) as error:
            self.failures[size] = str(error)
        except DeviceError:  # nothing that the size is to blame for
            raise
        except Exception as error:  # noqa: BLE001 - the user's own model may raise anything
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.failures[size] = f"{type(error).__name__}: {text}"
        else:
            self.known.add(size)
            return True
        release()
        return False

    def _has_room(self, row: Row, size: int) -> bool:
        available = self._device.memory_bytes
        if size not in self._peaks or available is None or self._call is None:
            return True
        one = sum(part.nbytes for part in tree_leaves(self._call[:2]) if isinstance(part, _One))
        needed = self._peaks[size] + one * (row.batch_size - size)
        if needed > available:
            self.too_large[row] = f"{needed / 2**20:.0f} MiB needed, {available / 2**20:.0f} MiB available"
        return needed <= available

    def close(self) -> None:
        """Leave the model as it was found."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _see(self, model: nn.Module, arguments: Any, options: Any) -> None:
        if not self.samples or not torch.is_grad_enabled():
            return
        samples = self.samples
        cut = any(t.dim() and t.shape[0] == samples for t in aten.tensors([list(arguments), options]))
        if cut:
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
            self._optimizer.zero_grad(set_to_none=True)  # their memory is not there twice in training, either
        arguments, options = tree_map(
            lambda v: v.expand(size).contiguous() if isinstance(v, _One) else v, (arguments, options)
        )
        with put_back(model):
            counter.begin(("trial", size), [list(arguments), options])
            try:
                with shortage_said(f"a micro-batch of {size}"):
                    timed = self._device.step(counter.placeholder(size, size)) if not counter.counts else nullcontext()
                    with timed, torch.enable_grad():
                        with torch.autocast(kind, dtype=dtype, enabled=enabled):
                            outputs = aten.tensors(_plain(model(*arguments, **options)))
                            means = [t.float().mean() for t in outputs if t.requires_grad]
                        if means:
                            torch.autograd.backward(torch.stack(means).sum())
                work = counter.end(size, size) if counter.counts else None
            finally:
                counter.drop()
        if work is not None:
            self._peaks[size] = work.peak_memory_bytes
            with self._device.step(work):
                pass


class _One:
    """One sample of an argument that has one for each."""

    def __init__(self, value: Tensor):
        self._value = value

    @property
    def nbytes(self) -> int:
        return self._value.nbytes

    def expand(self, size: int) -> Tensor:
        return self._value.expand(size, *self._value.shape[1:])


def _first(value: Any, samples: int) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return _One(value[:1].clone()) if value.dim() and value.shape[0] == samples else value
    return value


def _plain(outputs: Any) -> Any:
    return dict(outputs) if hasattr(outputs, "items") else outputs


@contextmanager
def put_back(model: nn.Module) -> Iterator[None]:
    """Gradients, buffers and random numbers are afterwards as they were; inside there are gradients to add to."""
    gradients = [(p, p.grad) for p in model.parameters()]
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
