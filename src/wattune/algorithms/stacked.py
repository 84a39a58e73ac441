"""Backpropagation of several runs as one program: the same model and batch size, other seeds.

Parameters of the runs are stacked along a new first dimension, so that every operation of a step works for all runs at
once. A short step costs hardly more for eight runs than for one. Each run keeps its own data, weights and optimizer
state; the arithmetic is that of separate runs, up to the rounding of batched matrix products.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from wattune.algorithms.backprop import Backprop
from wattune.algorithms.base import Batch, Step, Trainable, differentiable_loss
from wattune.algorithms.traced import Untraceable, traced

OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers that treat every element alike, so that a stack needs a single one."""


class StackPrograms:
    """The traced step and forward pass of stacks of a model, by number of runs and shapes; traced when first needed."""

    def __init__(self, trainable: Trainable):
        self.trainable = trainable
        self._training = trainable.model(0).train()
        self._evaluating = copy.deepcopy(self._training).eval()
        self._traced: dict[tuple[object, ...], Callable[..., list[Tensor]]] = {}

    def step(self, names: Names, tensors: Sequence[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
        """Gradients of the trained parameters (k, ...), in their order, and losses (k,) of batches (k, B, ...).

        Raises: Untraceable.
        """

        def loss(trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return differentiable_loss(self.trainable, functional_call(self._training, (trained, fixed), (x,)), y)

        def function(*inputs: Tensor) -> list[Tensor]:
            trained, fixed = names.split(inputs[:-2])
            gradients, losses = vmap(grad_and_value(loss))(trained, fixed, *inputs[-2:])
            return [*(gradients[name] for name in names.trained), losses]

        return self._call("step", function, [*tensors, x, y], x, y)

    def forward(self, names: Names, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs (k, N, ...) of all runs for the same samples (N, ...), in evaluation mode. Raises: Untraceable."""

        def output(values: dict[str, Tensor], x: Tensor) -> Tensor:
            result: Tensor = functional_call(self._evaluating, values, (x,))
            return result

        def function(*inputs: Tensor) -> list[Tensor]:
            trained, fixed = names.split(inputs[:-1])
            return [vmap(output, in_dims=(0, None))({**trained, **fixed}, inputs[-1])]

        return self._call("forward", function, [*tensors, x], x)[0]

    def _call(
        self, what: str, function: Callable[..., list[Tensor]], inputs: list[Tensor], *data: Tensor
    ) -> list[Tensor]:
        key = (what, len(inputs[0]), *((tensor.shape, tensor.dtype) for tensor in data))
        if key not in self._traced:
            self._traced[key] = traced(function, inputs)
        with torch.inference_mode():
            return self._traced[key](*inputs)


class Names(NamedTuple):
    """Names of a model's trained parameters, and of its other parameters and its buffers."""

    trained: tuple[str, ...]
    fixed: tuple[str, ...]

    def split(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors by name."""
        count = len(self.trained)
        trained = dict(zip(self.trained, tensors[:count], strict=True))
        return trained, dict(zip(self.fixed, tensors[count:], strict=True))


class StackedRun(Backprop):
    """One run of a stack, with the interface of a separate one; its parameters are views of the stack's."""

    _stack: Stack | None = None

    def join(self, stack: Stack) -> None:
        """Take the steps of ``stack`` from now on."""
        self._stack = stack
        self._steps: deque[Step] = deque()

    def leave(self) -> None:
        """Step alone from now on, with the batches that follow those of the stack."""
        if self._stack is not None:
            self._stack.unload(self)
        self._stack = None

    @property
    def is_stacked(self) -> bool:
        """True until the run leaves its stack."""
        return self._stack is not None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the run alone."""
        return self._optimizer

    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Yield the steps of this run, which the stack takes for all runs when the first one needs its next step.

        ``batches`` is not used: the stack has the batches of all runs.
        """
        while self._stack is not None:
            stack = self._stack
            if not self._steps:
                stack.step()
            yield self._steps.popleft()
        yield from super().run(stack.stream(self))

    def receive(self, step: Step) -> None:
        """Queue a step that the stack has taken."""
        self._steps.append(step)

    def state_dict(self) -> dict[str, Any]:
        """See ``Backprop``; the state also continues a separate run."""
        if self._stack is not None:
            self._stack.unload(self)
        return super().state_dict()


class _Group(NamedTuple):
    """A parameter group of the optimizer: its parameters of all runs in one vector, one after the other.

    ``shapes``: of the parameters of one run; each takes k times its size, the runs in their order.
    """

    vector: nn.Parameter
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, parameters: Sequence[Sequence[nn.Parameter]]) -> _Group:
        """The group of these parameters, by run."""
        stacked = [torch.stack(parts).detach().flatten() for parts in zip(*parameters, strict=True)]
        vector = nn.Parameter(torch.cat(stacked))
        vector.grad = torch.zeros_like(vector)
        return cls(vector, tuple(parameter.shape for parameter in parameters[0]))

    def views(self, vector: Tensor, runs: int) -> list[Tensor]:
        """The parameters (k, ...) in ``vector``, or in a state of the optimizer of the same size."""
        parts = torch.split(vector.detach(), [runs * shape.numel() for shape in self.shapes])
        return [part.view(runs, *shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Stack:
    """Training runs that step together, each with its own stream of batches of the same size.

    Raises: Untraceable if the model, its optimizer or its data type rules that out.
    """

    def __init__(self, programs: StackPrograms, runs: Sequence[StackedRun], streams: Sequence[Iterator[Batch]]) -> None:
        self._programs = programs
        self._runs = {run: place for place, run in enumerate(runs)}
        self._streams = dict(zip(runs, streams, strict=True))
        self.steps = 0
        optimizer, module = runs[0].optimizer, runs[0].module
        _check(programs.trainable, optimizer)
        name_of = {id(parameter): name for name, parameter in module.named_parameters()}
        trained, options = [], []
        self._groups: list[_Group] = []
        for number, group in enumerate(optimizer.param_groups):
            trained += [name_of[id(parameter)] for parameter in _trained(group)]
            self._groups.append(_Group.of([_trained(run.optimizer.param_groups[number]) for run in runs]))
            options.append({**group, "params": [self._groups[-1].vector], "fused": True, "foreach": False})
        self._optimizer: torch.optim.Optimizer = type(optimizer)(options)  # type: ignore[call-arg]
        tensors = [dict(_tensors(run.module)) for run in runs]
        self._names = Names(tuple(trained), tuple(name for name in tensors[0] if name not in trained))
        views = [view for group in self._groups for view in group.views(group.vector, len(runs))]
        for name, view in zip(trained, views, strict=True):
            for own, part in zip(tensors, view, strict=True):
                own[name].data = part
        self._tensors = [*views, *(torch.stack([own[name].detach() for own in tensors]) for name in self._names.fixed)]
        for run in runs:
            run.join(self)

    def step(self) -> None:
        """Take one step of every run, and queue it for those that have not left. Raises: Untraceable."""
        # The runs that have left go on unseen: the program has a fixed number of runs.
        x, y = (torch.stack(parts) for parts in zip(*map(next, self._streams.values()), strict=True))
        *gradients, losses = self._programs.step(self._names, self._tensors, x, y)
        at = 0
        with torch.no_grad():
            for group in self._groups:
                own = gradients[at : at + len(group.shapes)]
                at += len(own)
                torch.cat([gradient.reshape(-1) for gradient in own], out=group.vector.grad)
            self._optimizer.step()
        self.steps += 1
        for run, loss in zip(self._runs, losses.tolist(), strict=True):
            if run.is_stacked:
                run.receive(Step(samples=x.shape[1], loss=loss))

    def outputs(self, x: Tensor) -> dict[StackedRun, Tensor]:
        """Outputs (N, ...) of the runs for test samples (N, ...). Raises: Untraceable."""
        outputs = self._programs.forward(self._names, self._tensors, x.to(self._tensors[0].device)).float().cpu()
        return dict(zip(self._runs, outputs, strict=True))

    def stream(self, run: StackedRun) -> Iterator[Batch]:
        """The next batches of a run."""
        return self._streams[run]

    def unload(self, run: StackedRun) -> None:
        """Write the state of the stack's optimizer into the run's own, as if it had trained alone."""
        place = self._runs[run]
        for group, own in zip(self._groups, run.optimizer.param_groups, strict=True):
            for name, value in self._optimizer.state[group.vector].items():
                for number, parameter in enumerate(_trained(own)):
                    part = value
                    if isinstance(value, Tensor) and value.shape == group.vector.shape:
                        part = group.views(value, len(self._runs))[number][place]
                    run.optimizer.state[parameter][name] = copy.deepcopy(part)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _trained(group: dict[str, Any]) -> list[nn.Parameter]:
    return [parameter for parameter in group["params"] if parameter.requires_grad]


def _check(trainable: Trainable, optimizer: torch.optim.Optimizer) -> None:
    """Check what needs no trace. Raises: Untraceable."""
    if trainable.data_type not in ("fp32", "tf32"):
        raise Untraceable(f"its data type is {trainable.data_type}, and only fp32 and tf32 are stacked")
    if type(optimizer) not in OPTIMIZERS:
        names = ", ".join(kind.__name__ for kind in OPTIMIZERS)
        raise Untraceable(f"its optimizer is {type(optimizer).__name__}, and only {names} are stacked")
