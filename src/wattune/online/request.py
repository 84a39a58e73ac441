"""The request for a session: the arguments of ``wattune.capped``, checked before any device is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from wattune.cap import OVER, Over
from wattune.cap_source import AnyCap, CapSource, cap_of
from wattune.errors import InputError, OutputError
from wattune.files import check_writable
from wattune.goal import Goal
from wattune.online.accelerate_parts import own_loader, own_optimizer, own_scheduler
from wattune.online.batch_shapes import batch_sizes as sizes_of
from wattune.online.batch_source import BatchSource
from wattune.online.ranks.channel import LEAST_TIMEOUT_S
from wattune.online.ranks.gradient_sync import GradientSync
from wattune.online.ranks.meeting import Even
from wattune.online.recipe import Recipe
from wattune.online.sample_model import SampleModel, opened_curve
from wattune.online.session_cap import opened_profile, reference_cap
from wattune.online.session_checkpoint import SessionCheckpoint, own_file
from wattune.point import BatchShape
from wattune.records import ProfileTable, SampleEfficiency
from wattune.tracking.trackers import LogTo, trackers_of

log = logging.getLogger("wattune")


class Request:
    """Arguments of a session on ``ranks`` processes, this one of rank ``rank``; see ``capped``.

    ``start`` is the user's own row, ``sizes`` are the batch sizes to choose from, both per rank. Raises: InputError,
    OutputError, RecordError.
    """

    def __init__(
        self,
        *,
        ranks: int,
        rank: int,
        cap_w: AnyCap,
        over: Over,
        goal: Goal | str,
        model: nn.Module,
        optimizer: Optimizer,
        loader: Any,
        keep_recipe: bool,
        efficiency: SampleEfficiency | str | Path | None,
        profile: ProfileTable | str | Path | None,
        scheduler: Any,
        scheduler_interval: str | None,
        scaler: torch.amp.GradScaler | None,
        before_step: Callable[[], None] | None,
        yield_to: Callable[[], bool] | None,
        checkpoint: str | Path | None,
        resume: bool,
        record: str | Path | None,
        log_to: LogTo,
        batch_sizes: Sequence[int] | None,
        batch_size: int | None,
        micro_batch_size: int | None,
        even: Even | None,
        rank_timeout_s: float,
    ):
        if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
            raise InputError("model", value=type(model).__name__, allowed="a torch module with parameters")
        optimizer, own_scaler = own_optimizer(optimizer)
        if not isinstance(optimizer, Optimizer):
            raise InputError("optimizer", value=type(optimizer).__name__, allowed="an optimizer of torch")
        _check_parameters(model, optimizer)
        for name, function in (("before_step", before_step), ("yield_to", yield_to)):
            if function is not None and not callable(function):
                raise InputError(name, value=function, allowed="a function without arguments")
        if yield_to is not None and ranks > 1:
            raise InputError("yield_to", value=f"a job of {ranks} ranks", allowed="one process")
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise InputError("scaler", value=scaler, allowed="a torch.amp.GradScaler")
        if not isinstance(keep_recipe, bool):
            raise InputError("keep_recipe", value=keep_recipe, allowed="True, False")
        for name, file in (("checkpoint", checkpoint), ("record", record)):
            if file is not None and not isinstance(file, (str, Path)):
                raise InputError(name, value=file, allowed="the path of a file")
        if over not in OVER:
            raise InputError("over", value=over, allowed=", ".join(OVER))
        if even not in (None, "stop"):
            raise InputError("even", value=even, allowed='None, or "stop"')
        if not isinstance(rank_timeout_s, (int, float)) or not rank_timeout_s >= LEAST_TIMEOUT_S:
            raise InputError("rank_timeout_s", value=rank_timeout_s, allowed=f"{LEAST_TIMEOUT_S:g} or more")
        self.even, self.rank_timeout_s = even, float(rank_timeout_s)
        self.ranks, self.over = ranks, over
        self.sync = GradientSync(model, ranks)
        self.optimizer, self.scaler = optimizer, own_scaler if scaler is None else scaler
        self.before_step, self.yield_to = before_step, yield_to
        self.loader, self.keep = own_loader(loader), keep_recipe
        cap, self.goal = cap_of(cap_w), session_goal(goal)
        self.moving = cap if isinstance(cap, CapSource) else None
        """The cap, if it changes."""
        self.cap = reference_cap(cap, self.goal) if isinstance(cap, CapSource) else cap
        if self.moving is None and profile is not None:
            raise InputError("profile=", value=str(cap_w), allowed="with a cap that changes, and not otherwise")
        if resume and checkpoint is None:
            raise InputError("resume=True needs", value="checkpoint=PATH")
        if checkpoint is not None and self.sync.is_sharded:
            hint = "save it with torch.distributed.checkpoint"
            raise InputError("checkpoint= of a model in shards", value=str(checkpoint), allowed="none", hint=hint)
        self.checkpoint = None if checkpoint is None else Path(checkpoint).absolute()
        self.record = None if record is None else Path(record).absolute()
        self.listeners = trackers_of(log_to)
        for file in (self.checkpoint, self.record):
            if file is not None:
                check_file(file)
        self.batch_source = None if loader is None else BatchSource(self.loader, keep=keep_recipe, whole=batch_size)
        if self.batch_source is not None and self.batch_source.trained_per_pass == 0:
            # A run without a step would look as if all were well.
            raise InputError("the loader gives no batch", value=f"{self.samples_per_pass} samples", allowed="a batch")
        own = self._own_batch_size(batch_size)
        self.start = BatchShape(own, own if micro_batch_size is None else micro_batch_size)
        if not _is_whole(self.start.micro) or not 1 <= self.start.micro <= own:
            raise InputError("micro_batch_size", value=micro_batch_size, allowed=f"1 to the batch size {own}")
        self.curve = opened_curve(efficiency)
        self.table = opened_profile(profile)
        # Under a cap that changes, there may be nothing to choose a size by.
        stays = keep_recipe or (self.moving is not None and (self.curve is None or self.table is None))
        if stays and not keep_recipe and batch_sizes is not None:
            needs = "profile= and efficiency= as well, to choose by"
            raise InputError("batch_sizes with a cap that changes", value=batch_sizes, allowed=needs)
        self.sizes = sizes_of(own, batch_sizes, self.curve, keep=stays, samples=self.samples_per_pass, ranks=ranks)
        schedulers = [] if scheduler is None else scheduler if isinstance(scheduler, (list, tuple)) else [scheduler]
        schedulers = [own_scheduler(one, ranks) for one in schedulers]
        self.sizes_by_name = batch_sizes is not None
        # The parts of a sharded model cannot be tried by themselves: every pass needs all ranks.
        self.divides = self.moving is None and not self.sync.is_sharded
        self.recipe = Recipe(optimizer, own, schedulers, interval=scheduler_interval, keep=keep_recipe)
        self.sample_model = SampleModel(own, self.sizes, curve=self.curve, ranks=ranks)
        self.resumed: SessionCheckpoint | None = None
        if resume and self.checkpoint is not None:
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
            "over": self.over,
            "goal": repr(self.goal),
            "model": type(self.sync.module).__name__,
            "optimizer": type(self.optimizer).__name__,
            "keep_recipe": self.keep,
            "even": self.even,
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


def check_file(path: Path) -> None:
    """Check that a file can be saved: hours later, it would cost what was trained. Raises: OutputError."""
    if path.is_dir():
        raise OutputError("a folder has the name of the file", value=str(path), hint="give another path")
    check_writable(path.parent)
