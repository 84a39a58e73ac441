"""``wattune.capped``: two lines around the user's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wattune.cap import Over
from wattune.cap_source import AnyCap
from wattune.devices import Device, open_device
from wattune.goal import TIME, Goal
from wattune.loop.ranks.agreement import Even, Ranks
from wattune.loop.ranks.channel import RANK_TIMEOUT_S
from wattune.loop.ranks.following import FollowingRun, FollowingSession
from wattune.loop.ranks.meeting import meet, own_rank, processes
from wattune.loop.request import Request
from wattune.loop.session import Session
from wattune.loop.session_run import SessionRun
from wattune.records import ProfileTable, SampleEfficiency
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
    with the loader of its own part of the data set. Rank 0 chooses for all and alone has the record, and each rank
    sets its own device; batch sizes are per rank. ``over``: "device" (each device stays under the cap), "node" (the sum
    of the devices of one computer does) or "job" (that of all devices). A rank that dies ends the others (RankLost),
    and so does a rank that others wait for longer than ``rank_timeout_s``. Loaders without a length that end at
    different steps are refused there; with ``even="stop"`` the pass ends on all ranks.

    Batch size, micro-batch size and clock are chosen by measurements of training steps, while the model trains. With
    ``keep_recipe`` the batch size stays, and the trajectory is that of the plain loop if its loss is a mean over
    samples. Otherwise the learning rate follows the batch size.
    Under a cap that changes, the batch size is chosen once: by ``profile`` (a profile, or the record of an earlier
    session) and ``efficiency`` as the best one over all caps; without both it is the loader's. The clock follows the
    cap, its settings are measured from the lowest up unless the profile knows them, and while none stays under the cap,
    training rests before its next step, and saves a checkpoint.
    ``scheduler``: one or a list, stepped by the session once per ``loader.batch_size`` samples, or once per pass with
    ``scheduler_interval="epoch"``; it has to be given ("step" or "epoch") for a scheduler that most recipes step once
    per epoch, such as StepLR, and for one that would run out within a pass. ``before_step`` is called before each
    optimizer step with unscaled gradients, and is the place to clip them. ``yield_to`` is called before each step,
    which waits while it returns True: other work on the board goes first. ``micro_batch_size`` is the largest size that
    is known to fit (None: the batch size).
    ``log_to``: "tensorboard", "wandb", "mlflow", "trackio", a function, or several of them. They get a
    ``RunUpdate`` (power, energy, temperature, operating point) once a second, at each change of the point and at the
    end, between two steps; the logger "wattune" has the changes, too.
    With ``resume``, training continues from ``checkpoint`` if that exists. Without a ``loader``, ``batch_size`` is
    needed, and the loop fetches and steps itself (``Session.begin_step``).

    Raises: InputError for arguments that cannot be honoured, OutputError for files that cannot be written,
    DeviceUnavailable and other DeviceErrors.
    """
    given = SimpleNamespace(**locals())

    def request() -> Request:
        return Request(given, ranks=processes(), rank=own_rank())

    if processes() == 1:
        asked = request()
        return _session(open_device(device, seed=seed) if isinstance(device, str) else device, asked)
    ranks, asked = meet(request, device)
    if not ranks.is_leader:
        return FollowingSession(FollowingRun(ranks, asked), asked)
    with ranks.preparing():
        session = _session(ranks.open_devices(asked), asked, ranks)
    return session


def _session(device: Device, asked: Request, ranks: Ranks | None = None) -> Session:
    """A session that chooses the points. The device is closed if it was opened here and the session cannot be made."""
    try:
        run = SessionRun(device, asked, ranks)
    except BaseException:
        if asked.closes:
            device.close()
        raise
    if device.knobs and device.executes_steps and device.trains_on == "gpu" and not run.on_cuda:
        run.note(f"the model is on {next(run.model.parameters()).device}, but the clock that is set is the GPU's")
    return Session(run, asked, ranks)
