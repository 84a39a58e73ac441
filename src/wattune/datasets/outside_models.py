"""Models of timm and torchvision by name, if installed. The libraries are imported when they are named."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from wattune.errors import WorkloadError

MODULES = {"timm": "timm", "torchvision": "torchvision.models"}
"""Prefix of a model's name -> the module that builds the model."""


def outside_model(name: str) -> Callable[..., Any]:
    """The factory of the model "timm:NAME" or "torchvision:NAME".

    Source: timm.create_model, timm.is_model and timm.list_models (huggingface.co/docs/timm/reference/models);
    torchvision.models.get_model and list_models (docs.pytorch.org/vision/stable/models.html).
    Raises: WorkloadError if the library is not installed or has no model of that name.
    """
    library, _, model = name.partition(":")
    module = _imported(library, name)
    # timm also accepts names with the tag of their weights ("resnet18.a1_in1k"), and names that it no longer lists.
    exists = module.is_model(model) if library == "timm" else model.lower() in module.list_models()
    if not exists:
        similar = difflib.get_close_matches(model, module.list_models(), n=5, cutoff=0.5)
        raise WorkloadError(
            f"no model of {library} has the name",
            value=model,
            allowed=", ".join(similar) if similar else f"a model of {library}",
            hint=f"python -c 'import {MODULES[library]} as m; print(m.list_models())'",
        )
    return partial(build, library, model)


def build(library: str, name: str, /, *, classes: int | None = None, **options: Any) -> Any:
    """Build the model with random weights. ``classes`` is passed on as ``num_classes``.

    ``channels`` is passed on to timm as ``in_chans``; torchvision's models have no such option. Other options are
    passed on unchanged. Raises: WorkloadError if an option asks for weights, which every build would download.
    """
    for option in ("pretrained", "pretrained_cfg", "weights", "weights_backbone"):
        if options.pop(option, None):
            raise WorkloadError(
                f"option {option} of the model {library}:{name}",
                value=True,
                allowed="none",
                hint="give a safetensors file as weights of [model]",
            )
    module = _imported(library, f"{library}:{name}")
    if classes is not None:
        options["num_classes"] = classes
    if library == "timm":
        if "channels" in options:
            options["in_chans"] = options.pop("channels")
        return module.create_model(name, pretrained=False, **options)
    return module.get_model(name, weights=None, **options)


def _imported(library: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(MODULES[library])
    except Exception as error:  # torchvision raises RuntimeError if it does not fit the version of torch
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == library:
            raise WorkloadError(
                f"the model {name} needs {library}, which is not installed", hint=f"pip install {library}"
            ) from error
        raise WorkloadError(
            f"the model {name} needs {library}, which cannot be imported", value=f"{type(error).__name__}: {error}"
        ) from error
