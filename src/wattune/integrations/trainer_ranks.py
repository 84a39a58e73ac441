"""A Trainer in a job of several processes: rank 0 chooses for all, and controls the devices of all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import InputError, SafetyStop
from wattune.integrations.trainer_run import TrainerRun, recipe_of
from wattune.integrations.trainer_steps import TrainerSteps
from wattune.online.ranks.following import FollowingSession, follow
from wattune.online.ranks.gradient_sync import GradientSync
from wattune.online.ranks.leading import lead
from wattune.online.ranks.meeting import Ranks, meet
from wattune.online.session import SessionOptions
from wattune.point import BatchShape, Knobs
from wattune.power.capped_run import CappedRun

Place = Device | str
"""The device that a rank was given, open or by its name."""


class FollowingTrainerRun(TrainerSteps):
    """A Trainer's run on a rank that follows rank 0."""

    def __init__(self, trainer: Any, ranks: Ranks, place: Place, options: SessionOptions, sync: GradientSync):
        super().__init__(trainer, sync, ranks=ranks.size)
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        run = follow(ranks, place, trainer.model, self.start, options.seed)
        self.device = run.device
        self.session = FollowingSession(
            run,
            *recipe_of(optimizer, self.start),
            optimizer,
            None,
            replace(options, closes=True),
            sync=sync,
            ranks=ranks,
        )


def trainer_run(
    trainer: Any, place: Place, loader: Any, options: SessionOptions, state: dict[str, Any] | None
) -> TrainerSteps:
    """This rank's part in a run of the Trainer on all ranks; ``state``: that to resume from, on rank 0.

    Raises: JobRefused on all ranks if rank 0 cannot prepare the run, or the ranks were asked for something else.
    """
    start = BatchShape(
        trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps, trainer.args.train_batch_size
    )
    same = {
        "per_device_train_batch_size": start.micro,
        "batch size": start.batch,
        "number of steps": trainer.state.max_steps,
        "step to resume from": trainer.state.global_step,
    }
    ranks, asked = meet(lambda: _Arguments(_sync_of(trainer), options, same), place)
    if not ranks.is_leader:
        return FollowingTrainerRun(trainer, ranks, place, options, asked.sync)
    with ranks.preparing():
        leading = lead(ranks, place, options.over or "device", options.seed, trainer.model)
        device, closes = leading.device, isinstance(place, str)
        try:
            run = TrainerRun(
                trainer,
                device,
                loader,
                replace(options, closes=closes),
                limit_of(options, device),
                sync=asked.sync,
                ranks=ranks,
                leading=leading,
            )
            if state is not None:
                run.load_state_dict(state)
        except BaseException:
            if closes:
                device.close()
            raise
    leading.announce()
    return run


@contextmanager
def evaluation_run(trainer: Any, place: Place, options: SessionOptions, reached: Knobs) -> Iterator[CappedRun | None]:
    """Context of an evaluation on all ranks outside of training: rank 0 gets the run that holds all devices.

    ``reached``: the setting to begin at, or an empty one. Raises: JobRefused, SafetyStop on all ranks, RankLost.
    """
    model: Any = SimpleNamespace(module=trainer.model)
    ranks, _ = meet(lambda: _Arguments(model, options, {}), place)
    error: BaseException | None = None
    try:
        with (
            _leading(ranks, place, options, reached, trainer)
            if ranks.is_leader
            else _following(ranks, place, options, trainer) as run
        ):
            try:
                yield run
            finally:
                ranks.channel.leave()
    except BaseException as caught:
        error = caught
        raise
    finally:
        if (lost := ranks.leave(error)) is not None:
            raise lost from error


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

    def __init__(self, sync: GradientSync, options: SessionOptions, same: dict[str, Any]):
        self.sync = sync
        self.same = {"cap_w": str(options.cap), "over": options.over, "goal": repr(options.goal), **same}


@contextmanager
def _leading(ranks: Ranks, place: Place, options: SessionOptions, reached: Knobs, trainer: Any) -> Iterator[CappedRun]:
    with ranks.preparing():
        leading = lead(ranks, place, options.over or "device", options.seed, trainer.model)
        device = leading.device
        limit = limit_of(options, device)
    try:
        lowest = Knobs() if limit.limit_w is None else device.safest
        with CappedRun(device, limit, reached or lowest) as run:
            run.start()
            leading.announce()
            yield run
        ranks.channel.send({"evaluated": True})
    except SafetyStop as stop:
        ranks.channel.send({"stop": str(stop)})
        raise
    finally:
        if isinstance(place, str):
            device.close()


@contextmanager
def _following(ranks: Ranks, place: Place, options: SessionOptions, trainer: Any) -> Iterator[None]:
    run = follow(ranks, place, trainer.model, BatchShape(1, 1), options.seed)
    with run:
        yield
        if "stop" in (message := ranks.channel.receive()):
            raise SafetyStop(message["stop"])
