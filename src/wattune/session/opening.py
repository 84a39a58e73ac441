"""``wattune.capped``: two lines around one's own training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from wattune.decisions.search import Row, Search
from wattune.devices import Device, open_device
from wattune.errors import InputError
from wattune.planning.selection import Limit
from wattune.planning.sides import module_cap
from wattune.records import CapSide, EfficiencyCurve
from wattune.session.feed import Feed
from wattune.session.governor import Governor
from wattune.session.keeping import Kept
from wattune.session.knowledge import Knowledge, opened_curve
from wattune.session.recipe import Recipe
from wattune.session.rows import batch_sizes as sizes_of
from wattune.session.rows import rows as rows_of
from wattune.session.session import Options, Session


def capped(
    *,
    device: str | Device = "auto",
    cap_w: float | None,
    model: nn.Module,
    optimizer: Optimizer,
    loader: Any = None,
    keep_recipe: bool = False,
    efficiency: EfficiencyCurve | str | Path | None = None,
    scheduler: Any = None,
    scheduler_interval: str = "step",
    scaler: torch.amp.GradScaler | None = None,
    before_step: Callable[[], None] | None = None,
    cap_side: CapSide = "module",
    margin_w: float = 0.0,
    max_temp_c: float | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    record: str | Path | None = None,
    batch_sizes: Sequence[int] | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    seed: int = 0,
) -> Session:
    """A session, as a context: inside, the user's own loop trains below ``cap_w`` watts, as fast as the board can.

        with wattune.capped(device="auto", cap_w=10, model=model, optimizer=optimizer, loader=loader) as session:
            for batch in session.batches():
                session.backward(loss_fn(model(batch.x), batch.y))

    Batch size, micro-batches and clock are chosen while it trains, all by training steps. ``keep_recipe`` leaves the
    batch size as it is: the trajectory is then that of the plain loop, where its loss is a mean over samples. Otherwise
    the learning rate follows the batch size.
    ``scheduler``: one or a list, ticked by the session for each ``loader.batch_size`` samples, or once a pass with
    ``scheduler_interval="epoch"``. ``before_step`` is called before each optimizer step, with gradients that are not
    scaled: clipping belongs there. ``micro_batch_size`` is the largest part that is known to fit, the whole batch
    where it is None. With ``resume``, training goes on from ``checkpoint``, where there is one. ``loader`` None, with
    ``batch_size``, is for loops that fetch and step themselves (``Session.begin_step``).

    Raises: InputError for what cannot be honoured, BoardUnusable and other DeviceErrors.
    """
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        raise InputError("model", value=type(model).__name__, allowed="a torch module with parameters")
    if not isinstance(optimizer, Optimizer):
        raise InputError("optimizer", value=type(optimizer).__name__, allowed="an optimizer of torch")
    _check_parameters(model, optimizer)
    Limit(cap_w, margin_w)  # what is no cap and no margin is refused before anything is opened
    if resume and checkpoint is None:
        raise InputError("resume=True needs", value="checkpoint=PATH")
    feed = None if loader is None else Feed(loader, keep=keep_recipe)
    own = feed.batch_size if feed is not None else batch_size
    if not _is_whole(own) or own < 1:
        raise InputError("batch_size", value=own, allowed="the samples of an optimizer step, where there is no loader")
    start = Row(own, own if micro_batch_size is None else micro_batch_size)
    if not _is_whole(start.micro_batch_size) or not 1 <= start.micro_batch_size <= own:
        raise InputError("micro_batch_size", value=micro_batch_size, allowed=f"1 to the batch size {own}")
    curve = opened_curve(efficiency)
    samples = None if feed is None else feed.samples_per_pass
    sizes = sizes_of(own, batch_sizes, curve, keep=keep_recipe, samples=samples)
    schedulers = [] if scheduler is None else scheduler if isinstance(scheduler, (list, tuple)) else [scheduler]
    knowledge = Knowledge(own, sizes, keep=keep_recipe, curve=curve)
    kept = Kept(Path(checkpoint)) if resume and checkpoint is not None and Path(checkpoint).exists() else None
    opened = device if isinstance(device, Device) else open_device(device, seed=seed)
    try:
        limit_w = module_cap(cap_w, cap_side, opened.supply)
        sensor, every = opened.sensor, rows_of(sizes, start)

        def search(without: set[Row]) -> Search:
            made = Search(
                [row for row in every if row not in without],
                opened.settings,
                cap_w=limit_w,
                start=start,
                margin_w=margin_w,
                noise_w=sensor.noise_w,
                resolution_w=sensor.resolution_w,
                window_s=sensor.window_s,
                period_s=sensor.period_s,
                settle_s=sensor.settle_s,
            )
            made.relative(knowledge.relative)
            return made

        governor = Governor(opened, model, optimizer, search, start, cap_w=limit_w, max_temp_c=max_temp_c)
        recipe = Recipe(optimizer, own, schedulers, interval=scheduler_interval, keep=keep_recipe)
    except BaseException:
        if opened is not device:
            opened.close()
        raise
    _say_what_changes(governor, keep_recipe)
    options = Options(
        supply_cap_w=cap_w if cap_side == "supply" else None,
        cap_side=cap_side,
        margin_w=margin_w,
        seed=seed,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        record=None if record is None else Path(record),
        closes=opened is not device,
        loader=loader,
    )
    return Session(
        governor, recipe, knowledge, optimizer, feed, options, scaler=scaler, before_step=before_step, kept=kept
    )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        hint = "give the two that belong together"
        raise InputError("the optimizer has no parameter of the model", value=type(model).__name__, hint=hint)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError("the model has no weights yet", value="device meta", hint="model.to_empty(device=...) first")


def _say_what_changes(governor: Governor, keep_recipe: bool) -> None:
    model, device = governor.model, governor.device
    norm = next((m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)), None)
    if keep_recipe and norm is not None:
        text = (
            f"the model has {type(norm).__name__}, whose statistics are those of a micro-batch: training in "
            "micro-batches is not exactly that of the plain loop"
        )
        warnings.warn(text, stacklevel=3)
        governor.note(text)
    if device.executes_steps and device.trains_on == "gpu" and not governor.on_cuda:
        governor.note(f"the model is on {next(model.parameters()).device}, while it is the GPU's clock that is set")
