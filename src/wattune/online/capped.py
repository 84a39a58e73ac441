"""``wattune.capped``: two lines around the user's own training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wattune.cap import Over
from wattune.cap_source import AnyCap, check_scale
from wattune.devices import Device, open_device
from wattune.errors import InputError
from wattune.goal import TIME, Goal
from wattune.online.batch_shapes import rows as rows_of
from wattune.online.loop_run import LoopRun
from wattune.online.ranks.channel import RANK_TIMEOUT_S
from wattune.online.ranks.following import FollowingSession, follow
from wattune.online.ranks.leading import Leading, lead
from wattune.online.ranks.meeting import Even, Ranks, meet, own_rank, processes
from wattune.online.request import Request
from wattune.online.session import Session, SessionOptions
from wattune.online.session_cap import planned_settings
from wattune.online.session_run import SessionRun
from wattune.online.session_search import session_search
from wattune.online.setting_ladder import KnownSetting, SettingLadder
from wattune.point import BatchShape, Knobs
from wattune.records import ProfileTable, SampleEfficiency
from wattune.search.policy import SESSION, SESSION_BY_CURVE
from wattune.tracking.trackers import LogTo


def capped(
    *,
    device: str | Device = "auto",
    cap_w: AnyCap,
    over: Over = "device",
    goal: Goal | str = TIME,
    model: nn.Module,
    optimizer: Optimizer,
    loader: Any = None,
    keep_recipe: bool = False,
    efficiency: SampleEfficiency | str | Path | None = None,
    profile: ProfileTable | str | Path | None = None,
    scheduler: Any = None,
    scheduler_interval: str | None = None,
    scaler: torch.amp.GradScaler | None = None,
    before_step: Callable[[], None] | None = None,
    yield_to: Callable[[], bool] | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    record: str | Path | None = None,
    log_to: LogTo = None,
    batch_sizes: Sequence[int] | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    even: Even | None = None,
    rank_timeout_s: float = RANK_TIMEOUT_S,
    seed: int = 0,
) -> Session:
    """Make a session: a context in which the user's own loop trains under a power cap, as fast as the board can.

        with wattune.capped(device="auto", cap_w=10, model=model, optimizer=optimizer, loader=loader) as session:
            for batch in session.batches():
                session.backward(loss_fn(model(batch.x), batch.y))

    ``cap_w``: watts at the power sensor, a text such as "12W@supply", a ``PowerCap`` (with a margin, or a highest
    temperature of the board), or None for no cap. Or a cap that changes: the path of a trace ("caps.csv"), a
    ``CapTrace``, "watch:FILE", or a function from seconds to watts. ``goal``: what the chosen point is best
    for, "energy" or a ``Goal`` such as ``Goal("energy", max_slowdown=0.05)``; by default it is the fastest one.

    Under ``torchrun`` every rank calls this, with its model in DistributedDataParallel or after ``fully_shard``, and
    with the loader of its own part of the data set. Rank 0 chooses for all, controls all devices, and alone has the
    record; batch sizes are per rank. ``over``: "device" (each device stays under the cap), "node" (the sum of the
    devices of one computer does) or "job" (that of all devices). A rank that dies ends the others (RankLost), and
    so does a rank that others wait for longer than ``rank_timeout_s``. Loaders without a length that end at different
    steps are refused there; with ``even="stop"`` the pass ends on all ranks.

    Batch size, micro-batch size and clock are chosen by measurements of training steps, while the model trains. With
    ``keep_recipe`` the batch size stays, and the trajectory is that of the plain loop if its loss is a mean over
    samples. Otherwise the learning rate follows the batch size.
    Under a cap that changes, the batch size is chosen once: by ``profile`` (a profile, or the record of an earlier
    session) and ``efficiency`` as the best one over all caps; without both it is the loader's. The clock follows the
    cap, its settings are measured from the lowest up unless the profile knows them, and while none stays under the cap,
    training rests before its next step, and saves a checkpoint.
    ``scheduler``: one or a list, stepped by the session once per ``loader.batch_size`` samples, or once per pass with
    ``scheduler_interval="epoch"``; it has to be given ("step" or "epoch") for a scheduler that most recipes step once
    per epoch, such as StepLR. ``before_step`` is called before each optimizer step with unscaled gradients, and
    is the place to clip them. ``yield_to`` is called before each step, which waits while it returns True: other work
    on the board goes first. ``micro_batch_size`` is the largest size that is known to fit (None: the batch size).
    ``log_to``: "tensorboard", "wandb", "mlflow", a function, or several of them. They get a
    ``RunUpdate`` (power, energy, temperature, operating point) once a second, at each change of the point and at the
    end, between two steps; the logger "wattune" has the changes, too.
    With ``resume``, training continues from ``checkpoint`` if that exists. Without a ``loader``, ``batch_size`` is
    needed, and the loop fetches and steps itself (``Session.begin_step``).

    Raises: InputError for arguments that cannot be honoured, OutputError for files that cannot be written,
    DeviceUnavailable and other DeviceErrors.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("device", "seed")}

    def request() -> Request:
        if not isinstance(device, str) and not hasattr(device, "knobs"):
            raise InputError("device", value=device, allowed="a name such as auto or sim:jetson-nano, or a device")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError("seed", value=seed, allowed="a whole number, 0 or more")
        return Request(ranks=processes(), rank=own_rank(), **arguments)

    if processes() == 1:
        asked = request()
        opened = open_device(device, seed=seed) if isinstance(device, str) else device
        return _session(_run(asked, opened, closes=opened is not device), asked, seed, closes=opened is not device)
    ranks, asked = meet(request, device)
    if not ranks.is_leader:
        following = follow(ranks, device, asked.sync.module, asked.start, seed)
        return _session(following, asked, seed, closes=True, ranks=ranks)
    with ranks.preparing():
        leading = lead(ranks, device, over, seed, asked.sync.module)
        closes = leading.device is not device
        session = _session(_run(asked, leading.device, leading, closes=closes), asked, seed, closes=closes, ranks=ranks)
    return session


def _run(asked: Request, opened: Device, leading: Leading | None = None, *, closes: bool) -> SessionRun:
    """A run that chooses the points. ``closes``: the device is closed if the run cannot be made."""
    start, moving = asked.start, asked.moving
    try:
        if moving is None:
            opened.select([knob.name for knob in opened.offered])
        else:
            opened.only_knob("a session under a cap that changes", hint="give a constant cap")
        check_scale(moving or asked.cap, opened.highest_w)
        limit = asked.cap.at_sensor(opened.supply, opened.sensor.window_s)
        known: dict[Knobs, KnownSetting] = {}
        shape = start
        if moving is not None and asked.table is not None:
            shape, known = planned_settings(
                moving, opened, asked.table, asked.curve, own=start.batch, sizes=asked.sizes
            )
        if moving is not None and asked.resumed is not None:
            shape = asked.resumed.shape or shape  # chosen once

        search = session_search(
            rows_of(asked.sizes, start),
            start,
            opened,
            limit,
            goal=asked.goal,
            relative=lambda: asked.sample_model.relative,
            manner=SESSION if asked.curve is None else SESSION_BY_CURVE,
        )
        run = SessionRun(
            opened,
            asked.sync.module,
            asked.optimizer,
            search if moving is None else lambda usable: SettingLadder(shape, opened, known),
            shape,
            limit,
            cap=moving,
            leading=leading,
            tries_sizes=not asked.sync.is_sharded,
            yield_to=asked.yield_to,
            sizes_by_name=asked.sizes_by_name,
        )
    except BaseException:
        if closes:
            opened.close()
        raise
    _warn(run, asked.keep)
    for text in () if moving is None else moving.assumed:
        run.note(text)
    return run


def _session(run: LoopRun, asked: Request, seed: int, *, closes: bool, ranks: Ranks | None = None) -> Session:
    whole = BatchShape(asked.start.batch, asked.start.batch)
    options = SessionOptions(
        asked.cap,
        asked.goal,
        over=asked.over if asked.ranks > 1 else None,
        seed=seed,
        checkpoint=asked.checkpoint,
        record=asked.record,
        closes=closes,
        even=asked.even,
        listeners=asked.listeners,
        loader=asked.loader,
    )
    kind: Any = Session if isinstance(run, SessionRun) else FollowingSession
    session: Session = kind(
        run,
        asked.recipe,
        asked.sample_model,
        asked.optimizer,
        asked.batch_source,
        options,
        sync=asked.sync,
        ranks=ranks,
        scaler=asked.scaler,
        before_step=asked.before_step,
        divides=asked.divides or (asked.moving is not None and run.start != whole),
        resumed=asked.resumed,
    )
    return session


def _warn(run: SessionRun, keep_recipe: bool) -> None:
    model, device = run.model, run.device
    norm = next((m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)), None)
    if keep_recipe and norm is not None:
        text = (
            f"the model has {type(norm).__name__}, whose statistics are those of a micro-batch: training in "
            "micro-batches differs slightly from the plain loop"
        )
        warnings.warn(text, stacklevel=4)
        run.note(text)
    if device.knobs and device.executes_steps and device.trains_on == "gpu" and not run.on_cuda:
        run.note(f"the model is on {next(model.parameters()).device}, but the clock that is set is the GPU's")
