"""The rules' points trained one after the other on the board itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from wattune import training
from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import RecordError
from wattune.job.coercion import Progress
from wattune.point import OperatingPoint
from wattune.records import Plan, TrainingRecord
from wattune.workloads import Workload

WARMER_C = 1.0
"""Degrees by which the board may be warmer than it was before the first training."""

LONGEST_REST_S = 900.0
LOOK_EVERY_S = 5.0

METHOD = (
    "The points that the rules chose were trained in turn on the board, to the target, on the target's own data, under "
    "the cap. Before each training the board rested until its temperature was back."
)


def train_in_turn(
    device: Device,
    workload: Workload,
    points: Collection[OperatingPoint],
    *,
    limit: SensorLimit,
    algorithm: str,
    seeds: Sequence[int],
    folder: Path | None,
    progress: Progress | None,
) -> dict[OperatingPoint, list[TrainingRecord]]:
    """Train every point with every seed, seed by seed, so that what drifts meets all points alike.

    ``folder`` keeps finished records and the checkpoint of the present training, from which a later call continues.

    Raises: RecordError for records of another training, WorkloadError, DeviceError, OutputError, Interrupted.
    """
    cool_c = device.conditions().temperature_c
    found: dict[OperatingPoint, list[TrainingRecord]] = {point: [] for point in points}
    turns = [(seed, point) for seed in seeds for point in sorted(points, key=lambda point: point.order)]
    for number, (seed, point) in enumerate(turns):
        name = f"b{point.batch_size:03d}-{point.micro_batch_size}-{point.knobs}-s{seed}".replace(" ", "")
        kept = None if folder is None else folder / f"{name}.json"
        plan = Plan(
            **point.fields(),
            algorithm=algorithm,
            device=device.name,
            workload=workload.name,
            target=workload.target,
            cap_w=limit.limit_w,
            cap_window_s=limit.window_s,
            margin_w=limit.margin_w,
            supply=device.supply,
            sensor_window_s=device.sensor.window_s,
        )
        if kept is not None and kept.exists():
            found[point].append(_loaded(kept, plan))
            continue
        _rest(device, cool_c)
        record = training.train(
            device,
            workload,
            plan,
            seed=seed,
            checkpoint=None if folder is None else folder / f"{name}.safetensors",
            resume=True,
            max_temp_c=limit.max_temp_c,
            progress=_with_turn(progress, number, len(turns), f"{point}, seed {seed}"),
        )
        found[point].append(record if kept is None else _kept(record, kept))
    return found


def _loaded(path: Path, plan: Plan) -> TrainingRecord:
    """The record of a finished training. Raises: RecordError if it followed another plan."""
    record = TrainingRecord.load(path)
    for name in ("device", "workload", "target", "cap_w", "cap_window_s", "margin_w", "algorithm"):
        was, now = getattr(record.plan, name), getattr(plan, name)
        if was != now:
            raise RecordError(
                f"{path} is of another {name}", value=str(was), allowed=str(now), hint="give another -o FILE"
            )
    return record


def _kept(record: TrainingRecord, path: Path) -> TrainingRecord:
    """The record, saved; the checkpoint, which nothing needs any more, goes."""
    record.save(path)
    path.with_suffix(".safetensors").unlink(missing_ok=True)
    return record


def _rest(device: Device, cool_c: float | None) -> None:
    """Wait until the board is as cool as before; at most ``LONGEST_REST_S``, and not where no temperature is read."""
    until_s = device.now_s() + LONGEST_REST_S
    while cool_c is not None and device.now_s() < until_s:
        now_c = device.conditions().temperature_c
        if now_c is None or now_c <= cool_c + WARMER_C:
            return
        device.wait(LOOK_EVERY_S)


def _with_turn(progress: Progress | None, number: int, turns: int, what: str) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total, text: progress(number, turns, f"{what}: {text}")
