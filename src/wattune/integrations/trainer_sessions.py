"""Sessions and evaluations of a Transformers ``Trainer``, in one process or in several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import InputError, RecordError, SafetyStop
from wattune.online.ranks.channel import FRAMEWORK_TIMEOUT_S
from wattune.online.ranks.following import FollowingSession, follow
from wattune.online.ranks.gradient_sync import GradientSync
from wattune.online.ranks.leading import Leading, lead
from wattune.online.ranks.meeting import Ranks, meet
from wattune.online.recipe import Recipe
from wattune.online.sample_model import SampleModel
from wattune.online.session import Session, SessionOptions
from wattune.online.session_run import SessionRun
from wattune.online.session_search import session_search
from wattune.point import BatchShape, Knobs
from wattune.power.capped_run import CappedRun

Place = Device | str
"""The device that a rank was given, open or by its name."""

FUSED_OPTIMIZERS: Final = ("lomo", "adalomo")
"""Optimizers that step during the backward pass, so that gradients cannot be accumulated."""


def new_session(
    trainer: Any,
    place: Place,
    options: SessionOptions,
    start: BatchShape,
    rows: Sequence[BatchShape],
    *,
    steps: float,
    state: dict[str, Any] | None = None,
) -> Session:
    """A session of this process, or in a job of several, if ``options`` say what the cap is over, its part in it.

    ``steps``: optimizer steps to come; ``state``: of the run to resume. Raises: RecordError for the state of another
    device; JobRefused on all ranks if rank 0 cannot prepare the session, or the ranks were asked for something else.
    """
    if options.over is None:
        assert not isinstance(place, str)
        return _session(trainer, place, options, start, rows, steps, state)
    same = {
        "per_device_train_batch_size": start.micro,
        "batch size": start.batch,
        "number of steps": trainer.state.max_steps,
        "step to resume from": trainer.state.global_step,
    }
    ranks, asked = meet(lambda: _Arguments(_sync_of(trainer), options, same), place)
    closing = replace(options, closes=isinstance(place, str))
    if not ranks.is_leader:
        run = follow(ranks, place, trainer.model, start, options.seed)
        return FollowingSession(run, *_recipe(trainer, start), None, closing, sync=asked.sync, ranks=ranks)
    with ranks.preparing():
        leading = lead(ranks, place, options.over, options.seed, trainer.model)
        try:
            session = _session(trainer, leading.device, closing, start, rows, steps, state, asked.sync, ranks, leading)
        except BaseException:
            if closing.closes:
                leading.device.close()
            raise
    return session


def _session(
    trainer: Any,
    device: Device,
    options: SessionOptions,
    start: BatchShape,
    rows: Sequence[BatchShape],
    steps: float,
    state: dict[str, Any] | None,
    sync: GradientSync | None = None,
    ranks: Ranks | None = None,
    leading: Leading | None = None,
) -> Session:
    device.select([knob.name for knob in device.offered])
    limit, (recipe, samples, optimizer) = limit_of(options, device), _recipe(trainer, start)
    search = session_search(
        rows,
        start,
        device,
        limit,
        goal=options.goal,
        relative=lambda: samples.relative,
        samples_left=steps * start.batch,
    )
    run = SessionRun(device, trainer.model, optimizer, search, start, limit, leading=leading)
    if state is not None:
        size, before = (1 if ranks is None else ranks.size), state.get("ranks", 1)
        if before != size:
            run.note(f"the checkpoint is of {before} processes: the search, time and energy start over")
        elif state["name"] != device.name:
            raise RecordError("the checkpoint is of another device", value=state["name"], allowed=device.name)
        else:
            run.load_state_dict(state)
    return Session(run, recipe, samples, optimizer, None, options, sync=sync, ranks=ranks)


def _recipe(trainer: Any, start: BatchShape) -> tuple[Recipe, SampleModel, Any]:
    """The user's recipe, which stays: the Trainer steps its schedulers itself."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    recipe = Recipe(optimizer, start.batch, [], interval="step", keep=True)
    return recipe, SampleModel(start.batch, [start.batch], curve=None), optimizer


@contextmanager
def evaluation_run(trainer: Any, place: Place, options: SessionOptions, reached: Knobs) -> Iterator[CappedRun | None]:
    """Context of an evaluation outside of training. Of several ranks, rank 0 gets the run that holds all devices.

    ``reached``: the setting to begin at, or an empty one. Raises: JobRefused, SafetyStop on all ranks, RankLost.
    """
    if options.over is None:
        assert not isinstance(place, str)
        with _held(place, options, reached) as run:
            yield run
        return
    model: Any = SimpleNamespace(module=trainer.model)
    ranks, _ = meet(lambda: _Arguments(model, options, {}), place)
    error: BaseException | None = None
    try:
        with (
            _leading(ranks, place, options, reached, trainer)
            if ranks.is_leader
            else _following(ranks, place, options, trainer) as held
        ):
            try:
                yield held
            finally:
                ranks.channel.leave()
    except BaseException as caught:
        error = caught
        raise
    finally:
        if (lost := ranks.leave(error)) is not None:
            raise lost from error


@contextmanager
def _held(device: Device, options: SessionOptions, reached: Knobs) -> Iterator[CappedRun]:
    limit = limit_of(options, device)
    lowest = Knobs() if limit.limit_w is None else device.safest
    with CappedRun(device, limit, reached or lowest) as run:
        run.start()
        yield run


@contextmanager
def _leading(ranks: Ranks, place: Place, options: SessionOptions, reached: Knobs, trainer: Any) -> Iterator[CappedRun]:
    with ranks.preparing():
        leading = lead(ranks, place, options.over or "device", options.seed, trainer.model)
        limit_of(options, leading.device)
    try:
        with _held(leading.device, options, reached) as run:
            yield run
        ranks.channel.send({"evaluated": True})
    except SafetyStop as stop:
        ranks.channel.send({"stop": str(stop)})
        raise
    finally:
        if isinstance(place, str):
            leading.device.close()


@contextmanager
def _following(ranks: Ranks, place: Place, options: SessionOptions, trainer: Any) -> Iterator[None]:
    run = follow(ranks, place, trainer.model, BatchShape(1, 1), options.seed)
    with run:
        yield
        if "stop" in (message := ranks.channel.receive()):
            raise SafetyStop(message["stop"])


def limit_of(options: SessionOptions, device: Device) -> SensorLimit:
    """The limit at the device's sensor. Raises: InputError."""
    return options.cap.at_sensor(device.supply, device.sensor.window_s)


def _sync_of(trainer: Any) -> GradientSync:
    if trainer.model_wrapped is trainer.model:  # Accelerate prepares a model once, and for an evaluation without DDP
        raise InputError(
            "the Trainer does not average its gradients over the processes",
            value=type(trainer.model).__name__,
            hint="call evaluate() and predict() after train(), not before it",
        )
    return GradientSync(trainer.model_wrapped, trainer.args.world_size)


class _Arguments:
    """Arguments that all ranks have to share."""

    rank_timeout_s = FRAMEWORK_TIMEOUT_S

    def __init__(self, sync: GradientSync, options: SessionOptions, same: dict[str, Any]):
        self.sync = sync
        self.same = {"cap_w": str(options.cap), "over": options.over, "goal": repr(options.goal), **same}


def check_trainer(trainer: Any) -> None:
    """Check that ``attach`` supports the Trainer's settings. Raises: InputError."""
    args = trainer.args
    if (sharing := _unsupported_sharing(trainer)) is not None:
        raise InputError(
            "a Trainer whose processes or GPUs share their work in another way than by DistributedDataParallel",
            value=sharing,
            allowed="one device, or one process for each under torchrun or accelerate launch",
        )
    if args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size",
            value=True,
            allowed="False",
            hint="wattune chooses the micro-batch size and keeps the recipe",
        )
    name = getattr(args.optim, "value", args.optim)
    if name in FUSED_OPTIMIZERS:
        raise InputError("an optimizer that steps during the backward pass", value=name, hint="choose another optim=")


def _unsupported_sharing(trainer: Any) -> str | None:
    mode = trainer.args.parallel_mode.value
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "DeepSpeed" if trainer.is_deepspeed_enabled else "FSDP"
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        return "tensor parallelism"
    if getattr(trainer.accelerator, "parallelism_config", None) is not None:
        return "a parallelism_config"
    return None if mode in ("not_parallel", "distributed") else "nn.DataParallel" if mode == "not_distributed" else mode
