"""Data of the pages, read from the store: only the fields of a record that a page needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, defer

from wattune.errors import InputError, RecordError
from wattune.planning import learns_as
from wattune.records import Plan, ProfileTable, Record, SampleEfficiency, TrainingRecord
from wattune.records.served import DeviceStatus
from wattune.reporting.phrases import cap, seconds, watts
from wattune.revision import check_revision
from wattune_server.prometheus import SEEN_S
from wattune_server.store.schema import DeviceRow, JobRow, ProfileRow, TrainingRow

PAGE_ROWS = 100
"""Maximum number of rows of a page."""

CARDS = 6
"""Maximum number of devices that are shown as cards; more are rows of a table."""

OFFLINE_S = SEEN_S
"""An active device that has not reported for this long is shown as offline."""

FINAL_STEPS = ("done", "failed")
"""Steps after which a device reports nothing more."""

HIGHER_IS_BETTER = ("accuracy", "character_accuracy")
"""Metrics whose share of the target means progress. (Importing ``wattune.workloads`` would load torch.)"""


@dataclass(frozen=True)
class DeviceView:
    """A device: its last status, and the seconds since that report."""

    status: DeviceStatus
    silent_s: float

    @property
    def is_active(self) -> bool:
        """True if the device has not finished its run."""
        return self.status.step not in FINAL_STEPS

    @property
    def is_offline(self) -> bool:
        """True if the device is active but has stopped reporting."""
        return self.is_active and self.silent_s > OFFLINE_S

    @property
    def state(self) -> str:
        """One of ``STATES``."""
        if self.is_offline:
            return "offline"
        return self.status.step if self.status.step in FINAL_STEPS else "working"

    @property
    def is_above_cap(self) -> bool:
        """True if the last reading was above a cap at the same side."""
        power_w, cap_w = self.status.power_w, self.status.cap_w
        return power_w is not None and cap_w is not None and power_w > cap_w and self.status.cap_side == "module"

    @property
    def alert(self) -> str | None:
        """Reason to look at the device; None if there is none."""
        status = self.status
        if status.step == "failed":
            return f"failed: {status.says}" if status.says else "failed"
        if self.is_offline:
            return f"no report for {seconds(round(self.silent_s))}"
        if self.is_active and self.is_above_cap:
            return f"{watts(status.power_w)}, above its cap of {cap(status.cap_w)}"
        if self.is_active and status.throttled:
            return f"throttled by {', '.join(status.throttled)}"
        return None

    @property
    def share_of_target(self) -> float | None:
        """Metric as a share of its target, at most 100/95; None if that would not mean progress."""
        status = self.status
        if status.metric_name not in HIGHER_IS_BETTER or status.metric is None:
            return None
        if not status.target or status.target < 0:
            return None
        return min(100 / 95, max(0.0, status.metric / status.target))


@dataclass(frozen=True)
class Fleet:
    """Totals of all devices: their number, how many are active and online, and the power of the latter."""

    devices: int
    active: int
    power_w: float | None


STATES = ("failed", "offline", "working", "done")
"""States of a device, in the order of the page."""

ORDERS: dict[str, Callable[[DeviceView], Any]] = {
    "device": lambda device: device.status.device,
    "step": lambda device: (device.status.step, device.status.share),
    "power_w": lambda device: device.status.power_w,
    "cap_w": lambda device: device.status.cap_w,
    "temperature_c": lambda device: device.status.temperature_c,
    "silent_s": lambda device: device.silent_s,
}
"""Sort keys of devices."""


@dataclass(frozen=True)
class DeviceQuery:
    """Selection of devices, and their order. Raises: InputError.

    ``find``: a part of their names; ``state``: one of ``STATES``; ``sort``: a name of ``ORDERS``.
    """

    find: str = ""
    state: str = ""
    sort: str = "device"
    descending: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (("sort", self.sort, tuple(ORDERS)), ("state", self.state, ("", *STATES))):
            if value not in allowed:
                raise InputError(name, value=value, allowed=", ".join(filter(None, allowed)))

    @property
    def filters(self) -> dict[str, str]:
        """The filters that are set, as parameters of an address."""
        return {name: value for name, value in (("find", self.find), ("state", self.state)) if value}

    def conditions(self, now_s: float) -> list[ColumnElement[bool]]:
        """Conditions of the rows."""
        found = [DeviceRow.name.icontains(self.find, autoescape=True)] if self.find else []
        step = DeviceRow.status["step"].as_string()
        if self.state in FINAL_STEPS:
            found.append(step == self.state)
        elif self.state:
            is_offline = DeviceRow.seen_s < now_s - OFFLINE_S
            found += [step.not_in(FINAL_STEPS), is_offline if self.state == "offline" else ~is_offline]
        return found

    def ordered(self, views: list[DeviceView]) -> list[DeviceView]:
        """Sort by state, and then as asked; devices without the value come last."""
        key = ORDERS[self.sort]
        known = sorted((v for v in views if key(v) is not None), key=key, reverse=self.descending)
        return sorted([*known, *(v for v in views if key(v) is None)], key=lambda view: STATES.index(view.state))


def devices(session: Session, now_s: float, query: DeviceQuery = DeviceQuery()) -> tuple[list[DeviceView], int]:
    """List the devices of a selection that reported last, with their total number."""
    conditions = query.conditions(now_s)
    rows = select(DeviceRow).where(*conditions).order_by(DeviceRow.seen_s.desc()).limit(PAGE_ROWS)
    views = [_device_view(row, now_s) for row in session.scalars(rows)]
    total = session.scalar(select(func.count()).select_from(DeviceRow).where(*conditions)) or 0
    return query.ordered(views), total


def device(session: Session, name: str, now_s: float) -> DeviceView | None:
    """Read one device; None if it never reported, or was removed."""
    row = session.get(DeviceRow, name)
    return None if row is None else _device_view(row, now_s)


def fleet(session: Session, now_s: float) -> Fleet:
    """Compute the totals of all devices that ever reported."""
    step, power_w = DeviceRow.status["step"].as_string(), DeviceRow.status["power_w"].as_float()
    is_online = DeviceRow.seen_s >= now_s - OFFLINE_S
    powers_w = session.scalars(select(power_w).where(step.not_in(FINAL_STEPS), is_online)).all()
    reported_w = [value for value in powers_w if value is not None]
    # Summed here, because databases fail on overflow, and a device may report any number.
    total_w = sum(reported_w) if reported_w else None
    return Fleet(
        count(session, DeviceRow), len(powers_w), total_w if total_w is None or math.isfinite(total_w) else None
    )


def profiles(session: Session) -> Sequence[Any]:
    """List the newest profiles without their tables."""
    columns = (ProfileRow.id, ProfileRow.board, ProfileRow.workload, ProfileRow.algorithm)
    query = select(*columns, ProfileRow.kind, ProfileRow.publisher, ProfileRow.created_s)
    return session.execute(query.order_by(ProfileRow.created_s.desc(), ProfileRow.id.desc()).limit(PAGE_ROWS)).all()


def profile(session: Session, profile_id: str) -> tuple[ProfileTable, str, float] | None:
    """Read a profile, its publisher and its time of publication; None if there is none."""
    row = session.get(ProfileRow, profile_id)
    return None if row is None else (ProfileTable.parse(row.record), row.publisher, row.created_s)


def curve(session: Session, table: ProfileTable, job_id: str) -> SampleEfficiency | None:
    """Read the curve that a profile is planned with: that of ``job_id``, or with "" the newest that fits.

    A curve fits if it is of the profile's workload, has its batch sizes, and is of an algorithm that learns like its.
    """
    condition = JobRow.id == job_id if job_id else JobRow.model_name == table.workload
    query = select(JobRow.curve).where(condition, JobRow.curve.is_not(None)).order_by(JobRow.finished_s.desc())
    for record in session.scalars(query.limit(PAGE_ROWS)):
        curve = SampleEfficiency.parse(record)
        is_same = learns_as(curve.algorithm) == learns_as(table.algorithm)
        if job_id or (is_same and {p.batch_size for p in curve.points} >= set(table.batch_sizes)):
            return curve
    return None


def runs(session: Session, device: str, limit: int) -> tuple[Sequence[TrainingRow], int]:
    """List the newest runs of a device, or with "" of all, without their records; and count all of them."""
    conditions: list[ColumnElement[bool]] = [TrainingRow.device == device] if device else []
    newest = select(TrainingRow).where(*conditions).order_by(TrainingRow.created_s.desc(), TrainingRow.id).limit(limit)
    total = session.scalar(select(func.count()).select_from(TrainingRow).where(*conditions)) or 0
    return session.scalars(newest.options(defer(TrainingRow.record))).all(), total


def training(session: Session, run_id: str) -> tuple[str, str | None, float, TrainingRecord] | None:
    """Read device, model, time of upload and record of a training run; None if there is none."""
    row = session.get(TrainingRow, run_id)
    return None if row is None else (row.device, row.model_name, row.created_s, TrainingRecord.parse(row.record))


def outdated(*records: Record | None) -> str | None:
    """Reason why nothing can be trained by these records: their algorithm has another revision today; None if not."""
    for record in records:
        if isinstance(record, (ProfileTable, SampleEfficiency, Plan)):
            try:
                check_revision(record.algorithm, record.provenance.software)
            except RecordError as error:
                return f"{error}."
    return None


def count(session: Session, table: type[Any]) -> int:
    """Count the rows of a table."""
    return session.scalar(select(func.count()).select_from(table)) or 0


def _device_view(row: DeviceRow, now_s: float) -> DeviceView:
    return DeviceView(DeviceStatus.model_validate(row.status), max(0.0, now_s - row.seen_s))
