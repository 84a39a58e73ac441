"""The request for a session: the arguments of ``wattune.capped``, checked before any device is opened."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from wattune.cap import OVER
from wattune.cap_source import CapSource, cap_of
from wattune.errors import InputError, OutputError
from wattune.files import check_writable
from wattune.goal import Goal
from wattune.loop.accelerate_parts import own_loader, own_optimizer, own_scheduler
from wattune.loop.batch_shapes import batch_sizes as sizes_of
from wattune.loop.batch_source import BatchSource
from wattune.loop.ranks.channel import LEAST_TIMEOUT_S
from wattune.loop.ranks.gradient_sync import GradientSync
from wattune.loop.recipe import Recipe
from wattune.loop.sample_model import SampleModel, opened_curve
from wattune.loop.session_cap import opened_profile, reference_cap
from wattune.loop.session_checkpoint import SessionCheckpoint, own_file
from wattune.point import BatchShape
from wattune.tracking.trackers import trackers_of

log = logging.getLogger("wattune")


class Request:
    """Arguments of a session on ``ranks`` processes, this one of rank ``rank``. ``given``: the arguments of ``capped``.

    ``start`` is the user's own row, ``sizes`` are the batch sizes to choose from, both per rank. Raises: InputError,
    OutputError, RecordError.
    """

    def __init__(self, given: Any, *, ranks: int, rank: int):
        model, keep, cap_w, batch_size = given.model, given.keep_recipe, given.cap_w, given.batch_size
        check_device(given.device)
        if not _is_whole(given.seed) or given.seed < 0:
            raise InputError("seed", value=given.seed, allowed="a whole number, 0 or more")
        if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
            raise InputError("model", value=type(model).__name__, allowed="a torch module with parameters")
        self.optimizer, own_scaler = own_optimizer(given.optimizer)
        if not isinstance(self.optimizer, Optimizer):
            raise InputError("optimizer", value=type(self.optimizer).__name__, allowed="an optimizer of torch")
        _check_parameters(model, self.optimizer)
        for name, function in (("before_step", given.before_step), ("yield_to", given.yield_to)):
            if function is not None and not callable(function):
                raise InputError(name, value=function, allowed="a function without arguments")
        if given.yield_to is not None and ranks > 1:
            raise InputError("yield_to", value=f"a job of {ranks} ranks", allowed="one process")
        if given.scaler is not None and not isinstance(given.scaler, torch.amp.GradScaler):
            raise InputError("scaler", value=given.scaler, allowed="a torch.amp.GradScaler")
        if not isinstance(keep, bool):
            raise InputError("keep_recipe", value=keep, allowed="True, False")
        if given.over not in OVER:
            raise InputError("over", value=given.over, allowed=", ".join(OVER))
        if given.even not in (None, "stop"):
            raise InputError("even", value=given.even, allowed='None, or "stop"')
        if not isinstance(given.rank_timeout_s, (int, float)) or not given.rank_timeout_s >= LEAST_TIMEOUT_S:
            raise InputError("rank_timeout_s", value=given.rank_timeout_s, allowed=f"{LEAST_TIMEOUT_S:g} or more")
        self.given, self.ranks, self.keep, self.rank_timeout_s = given, ranks, keep, float(given.rank_timeout_s)
        self.closes = isinstance(given.device, str)
        """True if the session closes its device, which it has opened itself."""
        self.sync = GradientSync(model, ranks)
        self.scaler = own_scaler if given.scaler is None else given.scaler
        self.loader = own_loader(given.loader)
        cap, self.goal = cap_of(cap_w), session_goal(given.goal)
        self.moving = cap if isinstance(cap, CapSource) else None
        """The cap, if it changes."""
        self.cap = reference_cap(cap, self.goal) if isinstance(cap, CapSource) else cap
        if self.moving is None and given.profile is not None:
            raise InputError("profile=", value=str(cap_w), allowed="with a cap that changes, and not otherwise")
        if given.resume and given.checkpoint is None:
            raise InputError("resume=True needs", value="checkpoint=PATH")
        if given.checkpoint is not None and self.sync.is_sharded:
            hint = "save it with torch.distributed.checkpoint"
            raise InputError("checkpoint= of a model in shards", value=given.checkpoint, allowed="none", hint=hint)
        self.checkpoint, self.record = (writable(name, getattr(given, name)) for name in ("checkpoint", "record"))
        self.listeners = trackers_of(given.log_to)
        self.batch_source = None if given.loader is None else BatchSource(self.loader, keep=keep, whole=batch_size)
        is_stream = isinstance(getattr(self.loader, "dataset", None), IterableDataset)
        if given.checkpoint is not None and is_stream and getattr(self.loader, "persistent_workers", False):
            # The workers keep its position, out of reach.
            allowed = "an IterableDataset without persistent_workers"
            raise InputError("checkpoint= of a loader", value="persistent_workers=True", allowed=allowed)
        if self.batch_source is not None and self.batch_source.trained_per_pass == 0:
            # A run without a step would look as if all were well.
            raise InputError("the loader gives no batch", value=f"{self.samples_per_pass} samples", allowed="a batch")
        own = self._own_batch_size(batch_size)
        self.start = BatchShape(own, own if given.micro_batch_size is None else given.micro_batch_size)
        if not _is_whole(self.start.micro) or not 1 <= self.start.micro <= own:
            raise InputError("micro_batch_size", value=given.micro_batch_size, allowed=f"1 to the batch size {own}")
        self.curve = opened_curve(given.efficiency)
        self.table = opened_profile(given.profile)
        # Under a cap that changes, there may be nothing to choose a size by.
        stays = keep or (self.moving is not None and (self.curve is None or self.table is None))
        if stays and not keep and given.batch_sizes is not None:
            needs = "profile= and efficiency= as well, to choose by"
            raise InputError("batch_sizes with a cap that changes", value=given.batch_sizes, allowed=needs)
        samples = self.samples_per_pass
        self.sizes = sizes_of(own, given.batch_sizes, self.curve, keep=stays, samples=samples, ranks=ranks)
        schedulers = given.scheduler if isinstance(given.scheduler, (list, tuple)) else [given.scheduler]
        schedulers = [own_scheduler(one, ranks) for one in schedulers if one is not None]
        # The parts of a sharded model cannot be tried by themselves: every pass needs all ranks.
        self.divides = self.moving is None and not self.sync.is_sharded
        steps = None if samples is None else -(-samples // own)
        self.recipe = Recipe(self.optimizer, own, schedulers, interval=given.scheduler_interval, keep=keep, steps=steps)
        self.sample_model = SampleModel(own, self.sizes, curve=self.curve, ranks=ranks)
        self.resumed: SessionCheckpoint | None = None
        if given.resume and self.checkpoint is not None:
            if self.checkpoint.exists():
                self.resumed = SessionCheckpoint(self.checkpoint, own_file(self.checkpoint, rank))
            elif rank == 0:
                # No warning of Python: each script that may be resumed says resume=True the first time as well.
                log.warning("there is no checkpoint %s to resume from: training begins from the start", self.checkpoint)

    @property
    def samples_per_pass(self) -> int | None:
        """Samples of a pass over this rank's part of the data set; None if that is not known."""
        return None if self.batch_source is None else self.batch_source.samples_per_pass

    @property
    def same(self) -> dict[str, Any]:
        """Arguments that have to be the same on all ranks, by their names for the user."""
        return {
            "cap_w": str(self.cap if self.moving is None else self.moving),
            "over": self.given.over,
            "goal": repr(self.goal),
            "model": type(self.sync.module).__name__,
            "optimizer": type(self.optimizer).__name__,
            "keep_recipe": self.keep,
            "even": self.given.even,
            "rank_timeout_s": self.rank_timeout_s,
            "batch size": self.start.batch,
            "micro_batch_size": self.start.micro,
            "batch_sizes": list(self.sizes),
            "number of samples per pass": self.samples_per_pass,
            "checkpoint to resume from": None if self.resumed is None else self.resumed.steps,
        }

    def _own_batch_size(self, batch_size: int | None) -> int:
        source = self.batch_source
        if source is not None and batch_size not in (None, source.batch_size):
            hint = "give the loader the samples of an optimizer step, and micro_batch_size= those that fit"
            raise InputError("batch_size", value=batch_size, allowed=f"{source.batch_size}, the loader's", hint=hint)
        own = source.batch_size if source is not None else batch_size
        if not _is_whole(own) or own < 1:
            raise InputError("batch_size", value=own, allowed="the samples of an optimizer step, if there is no loader")
        return own


def check_device(device: Any) -> None:
    """Check that this is the name of a device, or a device. Raises: InputError."""
    if not isinstance(device, str) and not hasattr(device, "knobs"):
        allowed = "a name such as auto or sim:jetson-nano, or a device"
        raise InputError("device", value=device, allowed=allowed)


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


def writable(name: str, file: Any) -> Path | None:
    """The whole path of a file that can be saved: hours later, it would cost what was trained.

    Raises: InputError for anything but a path, OutputError.
    """
    if file is None:
        return None
    if not isinstance(file, (str, Path)):
        raise InputError(name, value=file, allowed="the path of a file")
    path = Path(file).absolute()
    if path.is_dir():
        raise OutputError("a folder has the name of the file", value=str(path), hint="give another path")
    check_writable(path.parent)
    return path
