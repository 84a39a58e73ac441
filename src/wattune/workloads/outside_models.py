"""Models of timm and torchvision by name, where the user has these libraries. They are imported when they are named."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from wattune.errors import WorkloadError

LIBRARIES = {"timm": "timm", "torchvision": "torchvision.models"}
"""What stands before the colon of a name -> the module that builds the model."""


def outside_model(name: str) -> Callable[..., Any] | None:
    """What builds the model "timm:NAME" or "torchvision:NAME"; None for any other name.

    Source: timm.create_model, timm.is_model and timm.list_models (huggingface.co/docs/timm/reference/models);
    torchvision.models.get_model and list_models (docs.pytorch.org/vision/stable/models.html).
    Raises: WorkloadError where the library is not installed or has no model of that name.
    """
    library, colon, model = name.partition(":")
    if not colon or library not in LIBRARIES:
        return None
    module = _imported(library, name)
    # timm knows a model with the tag of its weights too ("resnet18.a1_in1k"), and under names that it no longer lists.
    known = module.is_model(model) if library == "timm" else model.lower() in module.list_models()
    if not known:
        close = difflib.get_close_matches(model, module.list_models(), n=5, cutoff=0.5)
        raise WorkloadError(
            f"no model of {library} has the name",
            value=model,
            allowed=", ".join(close) if close else f"one of {library}'s",
            hint=f"python -c 'import {LIBRARIES[library]} as m; print(m.list_models())'",
        )
    return partial(build, library, model)


def build(library: str, name: str, /, *, classes: int | None = None, **options: Any) -> Any:
    """The model, with random weights; ``classes`` is what both libraries call ``num_classes``.

    ``channels`` is what timm calls ``in_chans``; torchvision's models have none. Other options go on as they are.
    Raises: WorkloadError where weights are asked for: they would be fetched from the web at every build.
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
        return importlib.import_module(LIBRARIES[library])
    except Exception as error:  # torchvision raises RuntimeError where it does not fit the version of torch
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == library:
            raise WorkloadError(
                f"the model {name} needs {library}, which is not installed", hint=f"pip install {library}"
            ) from error
        raise WorkloadError(
            f"the model {name} needs {library}, which cannot be imported", value=f"{type(error).__name__}: {error}"
        ) from error
