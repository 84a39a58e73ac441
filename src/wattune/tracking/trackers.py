"""``log_to=``: the updates of a run in the tracker that a user has already."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from wattune.errors import InputError
from wattune.power.run_update import RunUpdate

OnUpdate = Callable[[RunUpdate], None]
LogTo = str | OnUpdate | Sequence[str | OnUpdate] | None

TRACKERS = {
    "mlflow": "wattune.tracking.mlflow_run:MlflowRun",
    "tensorboard": "wattune.tracking.tensorboard_events:TensorboardEvents",
    "wandb": "wattune.tracking.wandb_run:WandbRun",
}
"""Name of a tracker -> a class that is made when a run is asked for, and called with each of its updates."""


def trackers_of(log_to: LogTo) -> tuple[OnUpdate, ...]:
    """The functions that ``log_to=`` asks for: a tracker's name, a function, or several of them.

    A tracker writes nothing before its first update. Raises: InputError for anything else, a library that is not
    installed.
    """
    wanted = () if log_to is None else log_to if isinstance(log_to, (list, tuple)) else (log_to,)
    return tuple(_tracker(one) for one in wanted)


def values_of(update: RunUpdate, names: Mapping[str, str]) -> dict[str, float]:
    """The figures of an update by their names in a tracker, without those that are not known.

    ``names``: field of the update -> name. The operating point is in the group "wattune".
    """
    values = {name: getattr(update, field) for field, name in names.items()}
    point = {**update.point.fields(), "micro_batch_size": update.point.micro_batch_size}
    values |= {f"wattune/{name}": value for name, value in point.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def _tracker(wanted: object) -> OnUpdate:
    if callable(wanted):
        return cast(OnUpdate, wanted)
    name, colon, path = wanted.partition(":") if isinstance(wanted, str) else ("", "", "")
    if name not in TRACKERS or (colon and not (name == "tensorboard" and path)):
        raise InputError(
            "log_to",
            value=repr(wanted),
            allowed=f"{', '.join(sorted(TRACKERS))}, tensorboard:FOLDER, a function that takes a "
            "wattune.RunUpdate, or a list of these",
        )
    module, _, made = TRACKERS[name].partition(":")
    try:
        tracker = getattr(importlib.import_module(module), made)
    except ImportError as error:
        raise InputError(
            f"log_to: {name} cannot be imported", value=str(error), hint=f'pip install "wattune[{name}]"'
        ) from error
    return cast(OnUpdate, tracker(path) if path else tracker())
