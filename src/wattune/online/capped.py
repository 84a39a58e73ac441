"""``wattune.capped``: two lines around the user's own training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from wattune.cap import PowerCap
from wattune.devices import Device, open_device
from wattune.errors import InputError
from wattune.goal import TIME, Goal
from wattune.online.batch_shapes import batch_sizes as sizes_of
from wattune.online.batch_shapes import rows as rows_of
from wattune.online.batch_source import BatchSource
from wattune.online.recipe import Recipe
from wattune.online.sample_model import SampleModel, opened_curve
from wattune.online.session import Session, SessionOptions
from wattune.online.session_checkpoint import SessionCheckpoint
from wattune.online.session_run import SessionRun
from wattune.point import BatchShape
from wattune.records import SampleEfficiency
from wattune.search.policy import SESSION, SESSION_BY_CURVE
from wattune.search.search import Search


def capped(
    *,
    device: str | Device = "auto",
    cap_w: float | str | PowerCap | None,
    goal: Goal | str = TIME,
    model: nn.Module,
    optimizer: Optimizer,
    loader: Any = None,
    keep_recipe: bool = False,
    efficiency: SampleEfficiency | str | Path | None = None,
    scheduler: Any = None,
    scheduler_interval: str = "step",
    scaler: torch.amp.GradScaler | None = None,
    before_step: Callable[[], None] | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    record: str | Path | None = None,
    batch_sizes: Sequence[int] | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    seed: int = 0,
) -> Session:
    """Make a session: a context in which the user's own loop trains under a power cap, as fast as the board can.

        with wattune.capped(device="auto", cap_w=10, model=model, optimizer=optimizer, loader=loader) as session:
            for batch in session.batches():
                session.backward(loss_fn(model(batch.x), batch.y))

    ``cap_w``: watts at the power sensor, a text such as "12W@supply", a ``PowerCap`` (with a margin, or a highest
    temperature of the board), or None for no cap. ``goal``: what the chosen point is best for, "energy" or
    a ``Goal`` such as ``Goal("energy", max_slowdown=0.05)``; by default it is the fastest one.

    Batch size, micro-batch size and clock are chosen by measurements of training steps, while the model trains. With
    ``keep_recipe`` the batch size stays, and the trajectory is that of the plain loop if its loss is a mean over
    samples. Otherwise the learning rate follows the batch size.
    ``scheduler``: one or a list, stepped by the session once per ``loader.batch_size`` samples, or once per pass with
    ``scheduler_interval="epoch"``. ``before_step`` is called before each optimizer step with unscaled gradients, and
    is the place to clip them. ``micro_batch_size`` is the largest size that is known to fit (None: the batch size).
    With ``resume``, training continues from ``checkpoint`` if that exists. Without a ``loader``, ``batch_size`` is
    needed, and the loop fetches and steps itself (``Session.begin_step``).

    Raises: InputError for arguments that cannot be honoured, DeviceUnavailable and other DeviceErrors.
    """
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        raise InputError("model", value=type(model).__name__, allowed="a torch module with parameters")
    if not isinstance(optimizer, Optimizer):
        raise InputError("optimizer", value=type(optimizer).__name__, allowed="an optimizer of torch")
    _check_parameters(model, optimizer)
    cap, asked_goal = PowerCap.of(cap_w), session_goal(goal)  # a malformed cap is refused before anything is opened
    if resume and checkpoint is None:
        raise InputError("resume=True needs", value="checkpoint=PATH")
    batch_source = None if loader is None else BatchSource(loader, keep=keep_recipe)
    own = batch_source.batch_size if batch_source is not None else batch_size
    if not _is_whole(own) or own < 1:
        raise InputError("batch_size", value=own, allowed="the samples of an optimizer step, if there is no loader")
    start = BatchShape(own, own if micro_batch_size is None else micro_batch_size)
    if not _is_whole(start.micro) or not 1 <= start.micro <= own:
        raise InputError("micro_batch_size", value=micro_batch_size, allowed=f"1 to the batch size {own}")
    curve = opened_curve(efficiency)
    samples = None if batch_source is None else batch_source.samples_per_pass
    sizes = sizes_of(own, batch_sizes, curve, keep=keep_recipe, samples=samples)
    schedulers = [] if scheduler is None else scheduler if isinstance(scheduler, (list, tuple)) else [scheduler]
    sample_model = SampleModel(own, sizes, keep=keep_recipe, curve=curve)
    resumed = (
        SessionCheckpoint(Path(checkpoint)) if resume and checkpoint is not None and Path(checkpoint).exists() else None
    )
    opened = open_device(device, seed=seed) if isinstance(device, str) else device
    try:
        limit = cap.at_sensor(opened.supply, opened.sensor.window_s)
        sensor, all_rows = opened.sensor, rows_of(sizes, start)

        def new_search(without: set[BatchShape]) -> Search:
            search = Search(
                [row for row in all_rows if row not in without],
                opened.combinations(),
                cap_w=limit.limit_w,
                start=start,
                margin_w=limit.margin_w,
                noise_w=sensor.noise_w,
                resolution_w=sensor.resolution_w,
                window_s=sensor.window_s,
                period_s=sensor.period_s,
                settle_s=sensor.settle_s,
                cap_window_s=limit.window_s,
                manner=SESSION if curve is None else SESSION_BY_CURVE,
                goal=asked_goal,
            )
            search.relative(sample_model.relative)
            return search

        run = SessionRun(opened, model, optimizer, new_search, start, limit)
        recipe = Recipe(optimizer, own, schedulers, interval=scheduler_interval, keep=keep_recipe)
    except BaseException:
        if opened is not device:
            opened.close()
        raise
    _warn(run, keep_recipe)
    options = SessionOptions(
        cap,
        asked_goal,
        seed=seed,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        record=None if record is None else Path(record),
        closes=opened is not device,
        loader=loader,
    )
    return Session(
        run,
        recipe,
        sample_model,
        optimizer,
        batch_source,
        options,
        scaler=scaler,
        before_step=before_step,
        resumed=resumed,
    )


def session_goal(goal: Goal | str) -> Goal:
    """A goal that a session can search for. Raises: InputError."""
    asked = Goal.of(goal)
    if asked.deadline_s is not None or asked.energy_j is not None or asked.aim == "energy-above-rest":
        raise InputError(
            "the goal of a session",
            value="energy-above-rest" if asked.aim == "energy-above-rest" else "a deadline or an energy budget",
            allowed="time, energy, edp or cost, and max_slowdown",
            hint="a session knows neither the samples to a target nor the power at rest; use wattune run",
        )
    return asked


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        hint = "make the optimizer with model.parameters()"
        raise InputError("the optimizer has no parameter of the model", value=type(model).__name__, hint=hint)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(
            "the model has no weights yet", value="device meta", hint="call model.to_empty(device=...) first"
        )


def _warn(run: SessionRun, keep_recipe: bool) -> None:
    model, device = run.model, run.device
    norm = next((m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)), None)
    if keep_recipe and norm is not None:
        text = (
            f"the model has {type(norm).__name__}, whose statistics are those of a micro-batch: training in "
            "micro-batches differs slightly from the plain loop"
        )
        warnings.warn(text, stacklevel=3)
        run.note(text)
    if device.executes_steps and device.trains_on == "gpu" and not run.on_cuda:
        run.note(f"the model is on {next(model.parameters()).device}, but the clock that is set is the GPU's")
