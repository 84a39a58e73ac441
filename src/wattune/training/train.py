"""Training as planned."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from wattune.algorithms import (
    Plain,
    TrainingAlgorithm,
    load_checkpoint,
    open_algorithm,
    save_checkpoint,
    state_bytes,
    tensor_file,
)
from wattune.cap import PEAK, PowerCap
from wattune.cap_source import PAUSE_W, UNLIMITED_W, CapSource, CapTrace, LowestCap
from wattune.devices import Device
from wattune.errors import DeviceError, InputError, Interrupted, RecordError
from wattune.files import set_aside, write_bytes, write_new
from wattune.power.capped_run import Readings
from wattune.power.limiter import check_limit
from wattune.records import BoardEvent, Evaluation, Plan, PointRecord, ProfileKey, Schedule, TrainingRecord
from wattune.revision import check_revision
from wattune.training.loop import Progress, TrainingLoop
from wattune.training.training_record import counts_all
from wattune.workloads import Workload


def train(
    device: Device,
    workload: Workload,
    plan: Plan,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    resume: bool = False,
    key: ProfileKey | None = None,
    weights: Path | None = None,
    max_temp_c: float | None = None,
    cap: CapSource | None = None,
    yield_to: Callable[[], bool] | None = None,
    progress: Progress | None = None,
    on_evaluation: Callable[[Evaluation, Readings], None] | None = None,
) -> TrainingRecord:
    """Train at the plan's point on the device until the target, the end of the budget or a safety stop.

    ``max_temp_c`` is a second limit beside the plan's cap: the highest temperature of the board in degrees Celsius.
    ``cap`` is a cap that changes, whose side is that of the plan: batch size and learning rate stay the plan's, the
    setting is the best one for the plan's goal that the cap allows according to the plan's candidates, and training
    pauses while it allows none; without one it runs at the times of the plan's schedule. ``yield_to`` is called
    before each step, which waits while it returns True: other work on the board goes first.
    ``checkpoint`` is a file that is replaced in one step after each evaluation; with ``resume`` training continues from
    it (from the beginning if there is none yet) and ends with the record of an uninterrupted run. A simulated board
    takes time to write it, too. ``key``, if given, must be the key that the plan's profile was measured with.
    ``weights`` is a safetensors file for what was trained, by the names of the model's state dict. ``on_evaluation``
    gets each evaluation as it is made, and the newest readings.
    The record says if the target was not reached or training was stopped for safety; neither is raised.

    Raises: RecordError if plan or checkpoint belong to something else; Interrupted on Ctrl-C, which leaves the
    last checkpoint; WorkloadError, InputError, DeviceError, OutputError.
    """
    check_revision(plan.algorithm, plan.provenance.software)
    differences = plan.key.differences(key) if key is not None and plan.key is not None else []
    if plan.key is None and plan.device not in (None, device.name):
        differences = [f"device ({device.name}, not {plan.device})"]
    if differences:
        raise RecordError(
            "the plan does not match this device and workload; it differs in",
            value=", ".join(differences),
            hint="profile and plan again",
        )
    device.select(plan.knobs)
    if plan.knobs:
        device.check_knobs(plan.knobs)
    cap = _checked(cap, plan, max_temp_c)
    check_limit(device, max_temp_c)
    if yield_to is not None and not callable(yield_to):
        raise InputError("yield_to", value=yield_to, allowed="a function without arguments")
    # Code of a user may change the current folder.
    checkpoint, weights = checkpoint and checkpoint.absolute(), weights and weights.absolute()
    workload.check()
    identity = {**_identity(device, workload, plan, seed), "max_temp_c": max_temp_c}
    algorithm = open_algorithm(
        plan.algorithm,
        workload,
        plan.batch_size,
        micro_batch_size=plan.micro_batch_size,
        seed=seed,
        on=device.trains_on,
    )
    state = None
    if checkpoint is not None and checkpoint.exists():
        if resume:
            state = _load(checkpoint, identity, algorithm)
        else:
            warnings.warn(f"the checkpoint of an earlier training run is kept in {set_aside(checkpoint)}", stacklevel=2)
    # On the device itself evaluations are as large as training's forward passes: larger ones would draw more power
    # than was measured when the clock was chosen.
    evaluated = {"batch_size": plan.shape.micro} if device.executes_steps else {}
    counts_writes = checkpoint is not None and counts_all(device)

    def save_all(so_far: dict[str, Any]) -> None:
        if checkpoint is not None:
            extra = {"training": identity, "evaluations": loop.evaluations.state, "so_far": Plain(so_far)}
            save_checkpoint(checkpoint, algorithm.state_dict(), extra=extra)

    loop = TrainingLoop(
        device,
        workload,
        plan,
        algorithm,
        steps=algorithm.run,
        batches=lambda samples: workload.batches(plan.batch_size, seed=seed, start=samples),
        evaluate=partial(workload.evaluate, algorithm.module, **evaluated),
        budget_samples=workload.budget_samples,
        checkpoint_bytes=lambda: state_bytes(algorithm.state_dict()) if counts_writes else None,
        max_temp_c=max_temp_c,
        cap=cap,
        yield_to=yield_to,
        save=save_all,
        state=state,
        progress=progress,
        on_evaluation=on_evaluation,
    )
    not_restored: DeviceError | None = None
    try:
        loop.run()
    except KeyboardInterrupt as error:
        hint = "" if checkpoint is None else "; resuming continues from the last evaluation"
        raise Interrupted(f"training was interrupted{hint}") from error
    except DeviceError as error:
        if loop.ended != "stopped for safety":
            raise
        not_restored = error
    record = loop.record(seed=seed, data=identity["data"])
    if not_restored is not None:
        # If the agent is gone, or a file, the board cannot be restored either: that belongs to why it ended.
        event = BoardEvent(time_s=record.time_s, kind="not restored", text=str(not_restored))
        reason, events = f"{record.reason}; {not_restored}", (*record.board_events, event)
        record = record.model_copy(update={"reason": reason, "board_events": events})
    if weights is not None:
        # Tensor by tensor: safetensors' own writer takes two copies, and refuses tied weights, which share memory.
        (write_bytes if resume else write_new)(weights, tensor_file(algorithm.module.state_dict()))
    return record


def _checked(cap: CapSource | None, plan: Plan, max_temp_c: float | None) -> CapSource | None:
    """The cap with the margin and the window that the plan was made with, at the plan's times if it has any."""
    if cap is None and plan.caps:
        raise InputError("the plan is for a cap that changes", hint="give that cap as well, with --cap or cap_w=")
    if plan.schedule is not None:
        times = cap_of_schedule(plan, plan.schedule)
        cap = times if cap is None else LowestCap(sources=(cap, times))
    if cap is None:
        return None
    if cap.form.side != plan.cap_side and plan.cap_w is not None:
        raise InputError("the side of the cap", value=cap.form.side, allowed=f"{plan.cap_side}, that of the plan")
    if plan.relative_time is None or plan.step_s is None or plan.power_mean_w is None or not plan.candidates:
        raise InputError(
            "the plan has no figures to choose a setting for each cap by",
            hint="plan again with a profile and the cap that changes",
        )
    form = PowerCap(margin_w=plan.margin_w, max_temp_c=max_temp_c, window=plan.cap_window_s or PEAK)
    return cap.with_form(form)


def cap_of_schedule(plan: Plan, schedule: Schedule) -> CapTrace:
    """A schedule as a cap that changes: the plan's constant cap while training runs, else 0 W."""
    asked_w = plan.supply_cap_w if plan.supply_cap_w is not None else plan.cap_w
    caps: dict[float, float] = {0.0: PAUSE_W}
    for time in schedule.times:
        caps[time.from_s] = UNLIMITED_W if asked_w is None else asked_w
        if time.until_s is not None:
            caps[time.until_s] = PAUSE_W
    begin = None if schedule.begin is None else datetime.fromisoformat(schedule.begin)
    why = "more carbon now than later" if schedule.unit == "gco2_per_kwh" else "a higher price now than later"
    form = PowerCap(side=plan.cap_side)
    return CapTrace(form, tuple(caps), tuple(caps.values()), begin, "the plan's times", why)


def _identity(device: Device, workload: Workload, plan: Plan, seed: int) -> dict[str, Any]:
    return {
        "device": device.name,
        "workload": workload.fingerprint(),
        "data": workload.data_fingerprint(),
        "algorithm": plan.algorithm,
        "point": PointRecord.model_validate(plan.point).model_dump(),
        "cap_w": plan.cap_w,
        "seed": seed,
    }


def _load(path: Path, identity: dict[str, Any], algorithm: TrainingAlgorithm) -> dict[str, Any]:
    state, extra = load_checkpoint(path)
    saved_identity = extra.get("training", {})
    differences = [
        f"{name} ({saved_identity.get(name)}, not {value})"
        for name, value in identity.items()
        if saved_identity.get(name) != value
    ]
    if differences:
        raise RecordError(
            f"the checkpoint {path} belongs to another training run; it differs in",
            value=", ".join(differences),
            hint="start a new run in another folder",
        )
    algorithm.load_state_dict(state)
    so_far: dict[str, Any] = extra["so_far"]
    if so_far.get("battery") is not None:
        raise RecordError(
            f"the checkpoint {path} is of training from a battery, which wattune does not do any more",
            hint="start a new run in another folder, under a cap that follows the battery's charge",
        )
    return {"evaluations": extra.get("evaluations"), **so_far}  # of before: in so_far
