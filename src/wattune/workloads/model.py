"""The model of a workload: built, loaded with its initial weights, and partly reinitialised."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from wattune.errors import WorkloadError
from wattune.workloads.values import attempt

Weights = str | Path | Callable[[], str | Path]
"""A safetensors file, or a callable that makes one when it is first needed and returns its path."""


@dataclass(frozen=True, eq=False)
class Model:
    """A recipe for a model: ``Model(factory, ...)(seed)`` builds one.

    ``factory``: a callable that takes ``options`` and returns a module, or a module to copy.
    ``weights``: initial weights; names and shapes must match the model's, except for the layers to reinitialise.
    ``reinitialise``: names of layers ("fc") to draw again with the seed.
    ``train_only``: names of the layers or parameters to train; empty: all. Batch normalisation keeps updating its
    running statistics in frozen layers too.
    """

    factory: nn.Module | Callable[..., nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Weights | None = None
    reinitialise: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()

    def __call__(self, seed: int) -> nn.Module:
        """Build the model; ``seed`` determines everything random in it.

        Raises: WorkloadError if the factory fails, the weights do not fit or a named layer does not exist.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._build()
            if self.weights is not None:
                _load(model, self._weights_file(), except_for=self.reinitialise)
            for name in self.reinitialise:
                _reinitialise(model, name)
        for name in self.train_only:
            if not any(_within(parameter, (name,)) for parameter, _ in model.named_parameters()):
                raise WorkloadError("no parameter with this name to train", value=name, allowed=_layers(model))
        if self.train_only:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(_within(name, self.train_only))
        if not any(p.requires_grad for p in model.parameters()):
            raise WorkloadError("the model has no trainable parameter", value=type(model).__name__)
        return model

    def _build(self) -> nn.Module:
        if isinstance(self.factory, nn.Module):
            return copy.deepcopy(self.factory)
        problem = f"the model cannot be built with the options {dict(self.options)}"
        factory = self.factory
        model = attempt(problem, lambda: factory(**self.options))
        if not isinstance(model, nn.Module):
            raise WorkloadError("result of the model factory", value=type(model).__name__, allowed="a torch.nn.Module")
        return model

    def _weights_file(self) -> Path:
        return Path(self.weights() if callable(self.weights) else str(self.weights))


def state_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Hash names, types, shapes and values of the tensors to a short fingerprint."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def structure_hash(model: nn.Module) -> str:
    """Hash the structure of a model, on which the cost of a step depends, to a short fingerprint.

    The structure is its modules, their settings, the shapes of the parameters and which of them train, not the values.
    """
    modules = [f"{name} {type(module).__qualname__} {module.extra_repr()}" for name, module in model.named_modules()]
    tensors = [f"{n} {p.dtype} {tuple(p.shape)} {p.requires_grad}" for n, p in model.named_parameters()]
    return hashlib.sha256("\n".join(modules + tensors).encode()).hexdigest()[:16]


def _load(model: nn.Module, path: Path, *, except_for: tuple[str, ...]) -> None:
    try:
        weights = load_file(path)
    except FileNotFoundError as error:
        raise WorkloadError("no such file with initial weights", value=os.fspath(path)) from error
    except (OSError, safetensors.SafetensorError) as error:
        raise WorkloadError(
            f"cannot read the weights {path}", value=str(error), allowed="a safetensors file"
        ) from error
    state = {n: t for n, t in model.state_dict().items() if not _within(n, except_for)}
    weights = {n: t for n, t in weights.items() if not _within(n, except_for)}
    hint = "list the layers to draw again in reinitialise"
    for problem, names in (
        ("lack", state.keys() - weights.keys()),
        ("do not belong to the model", weights.keys() - state.keys()),
    ):
        if names:
            raise WorkloadError(f"the weights {path.name} {problem}: {', '.join(sorted(names)[:3])}", hint=hint)
    for name, tensor in weights.items():
        if tensor.shape != state[name].shape:
            raise WorkloadError(
                f"shape of {name} in the weights {path.name}",
                value=tuple(tensor.shape),
                allowed=f"{tuple(state[name].shape)} as in the model",
                hint=hint,
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise WorkloadError(f"{name} in the weights {path.name} holds NaN or infinite values")
    model.load_state_dict(weights, strict=False)


def _reinitialise(model: nn.Module, name: str) -> None:
    layer = dict(model.named_modules()).get(name)
    if layer is None:
        raise WorkloadError("no layer with this name to reinitialise", value=name, allowed=_layers(model))
    for part_name, part in layer.named_modules(prefix=name):
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
        elif any(True for _ in part.parameters(recurse=False)):
            raise WorkloadError(
                "a layer that cannot be reinitialised", value=part_name, hint="give it a method reset_parameters()"
            )


def _within(name: str, layers: tuple[str, ...]) -> bool:
    return any(name == layer or name.startswith(f"{layer}.") for layer in layers)


def _layers(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and any(True for _ in module.parameters())]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
