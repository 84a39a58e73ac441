"""``log_to=``: the updates of a run in the tracker that a user has already."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, cast

from wattune.errors import InputError
from wattune.power.run_update import RunUpdate

OnUpdate = Callable[[RunUpdate], None]
LogTo = str | OnUpdate | Sequence[str | OnUpdate] | None


def trackers_of(log_to: LogTo) -> tuple[OnUpdate, ...]:
    """The functions that ``log_to=`` asks for: a tracker's name, a function, or several of them.

    A tracker writes nothing before its first update. Raises: InputError for anything else, a library that is not
    installed.
    """
    wanted = () if log_to is None else log_to if isinstance(log_to, (list, tuple)) else (log_to,)
    return tuple(_tracker(one) for one in wanted)


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
    try:
        return TRACKERS[name](path) if path else TRACKERS[name]()
    except ImportError as error:
        raise InputError(
            f"log_to: {name} cannot be imported", value=str(error), hint=f'pip install "wattune[{name}]"'
        ) from error


def values_of(update: RunUpdate) -> dict[str, float]:
    """The known figures of an update, by their names in every tracker."""
    values = {name: getattr(update, name) for name in ("power_w", "energy_j", "temperature_c", "cap_w")}
    values |= {**update.point.fields(), "micro_batch_size": update.point.micro_batch_size}
    return {f"wattune/{name}": float(value) for name, value in values.items() if value is not None}


class TensorboardEvents:
    """Event files in ``folder``, by default a new one below ``runs``, as torch's ``SummaryWriter`` writes them."""

    def __init__(self, folder: str = "") -> None:
        self._library = import_module("tensorboard.summary")
        self._folder = folder
        self._writer: Any = None

    def __call__(self, update: RunUpdate) -> None:
        """Write an update."""
        if self._writer is None:
            device = re.sub(r"\W+", "-", update.device).strip("-")
            folder = self._folder or f"runs/{datetime.now():%Y%m%d-%H%M%S}-{device}-{update.kind}"
            self._writer = self._library.Writer(self._library.DirectoryOutput(folder))
        for tag, value in values_of(update).items():
            self._writer.add_scalar(tag, value, update.steps, description=f"{update.device}, {update.kind}")
        self._writer.flush()
        if update.event == "end":
            self._writer.close()


class MlflowRun:
    """The user's active MLflow run, else one in the present experiment that ends with training."""

    def __init__(self) -> None:
        self._mlflow = import_module("mlflow")
        self._client: Any = None

    def __call__(self, update: RunUpdate) -> None:
        """Log an update."""
        if self._client is None:
            run = self._mlflow.active_run()
            self._is_own = run is None
            self._client, self._id = self._mlflow.MlflowClient(), (run or self._mlflow.start_run()).info.run_id
            self._client.set_tag(self._id, "wattune.device", update.device)
            self._client.set_tag(self._id, "wattune.kind", update.kind)
        metric, now_ms = self._mlflow.entities.Metric, int(1e3 * time.time())
        metrics = [metric(name, value, now_ms, update.steps) for name, value in values_of(update).items()]
        self._client.log_batch(self._id, metrics=metrics)
        if update.event == "end" and self._is_own:
            failed = "KILLED" if update.reason.startswith("interrupted") else "FAILED"
            self._mlflow.end_run("FINISHED" if update.reason == "finished" else failed)


class WandbRun:
    """The user's active W&B run, else one in the project "wattune" that ends with training.

    In the user's run the values join the rows that the user logs: rows of our own would move its step on, and W&B drops
    rows of an earlier step.
    """

    def __init__(self) -> None:
        self._wandb = import_module("wandb")
        self._run: Any = None

    def __call__(self, update: RunUpdate) -> None:
        """Log an update."""
        if self._run is None:
            self._is_own = self._wandb.run is None
            self._run = self._wandb.init(project="wattune") if self._is_own else self._wandb.run
            self._run.config.update({"wattune/device": update.device, "wattune/kind": update.kind})
        self._run.log({**values_of(update), "wattune/steps": update.steps}, commit=self._is_own)
        if update.event == "end" and self._is_own:
            self._run.finish(exit_code=0 if update.reason == "finished" else 1)


class TrackioRun:
    """The user's active Trackio run, else one in the project "wattune" that ends with training."""

    def __init__(self) -> None:
        self._trackio = import_module("trackio")
        self._run: Any = None

    def __call__(self, update: RunUpdate) -> None:
        """Log an update."""
        if self._run is None:
            self._run = self._trackio.context_vars.current_run.get()
            self._is_own = self._run is None
            config = {"wattune/device": update.device, "wattune/kind": update.kind}
            if self._is_own:
                self._run = self._trackio.init(project="wattune", config=config, embed=False)
        self._run.log(values_of(update), step=update.steps)
        if update.event == "end" and self._is_own:
            self._trackio.finish()


TRACKERS: dict[str, Callable[..., OnUpdate]] = {
    "mlflow": MlflowRun,
    "tensorboard": TensorboardEvents,
    "trackio": TrackioRun,
    "wandb": WandbRun,
}
"""Classes of trackers, made when a run is asked for and called with each of its updates."""
