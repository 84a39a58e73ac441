"""The cap of a session: constant, or one that changes, with what is known about points under it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattune.cap import PowerCap
from wattune.cap_source import AnyCap, CapSource, cap_of
from wattune.devices import Device
from wattune.errors import InputError, RecordError
from wattune.goal import Goal
from wattune.loop.setting_ladder import KnownSetting
from wattune.planning import plan
from wattune.point import BatchShape, Knobs
from wattune.records import ProfileTable, SessionRecord

if TYPE_CHECKING:
    from wattune.loop.request import Request


def constant_cap(cap_w: AnyCap, where: str) -> PowerCap:
    """A cap that does not change, as ``where`` needs it. Raises: InputError."""
    cap = cap_of(cap_w)
    if isinstance(cap, CapSource):
        raise InputError(
            f"a cap that changes in {where}",
            value=str(cap),
            allowed="a constant cap",
            hint="wattune.capped follows a cap that changes",
        )
    return cap


def reference_cap(cap: CapSource, goal: Goal) -> PowerCap:
    """The highest of the caps; no cap if nothing is known about them but that nothing may run at present.

    Raises: InputError for caps that are all zero, or another goal than time.
    """
    if not goal.is_time:
        raise InputError("a goal with a cap that changes", value=goal.aim, allowed="time")
    return cap.highest() if cap.is_announced or any(cap.shares) else cap.form


def opened_profile(profile: ProfileTable | str | Path | None) -> ProfileTable | None:
    """A profile, from its file or from that of an earlier session.

    Raises: RecordError for a file that cannot be read, or a session that measured nothing.
    """
    if profile is None or isinstance(profile, ProfileTable):
        return profile
    if not isinstance(profile, (str, Path)):
        raise InputError("profile", value=type(profile).__name__, allowed="a profile, or the path of one")
    try:
        return ProfileTable.load(profile)
    except RecordError as error:
        try:
            table = SessionRecord.load(profile).table
        except RecordError:
            raise error from None
    if table is None:
        raise RecordError(f"the session of {profile} measured no point", hint="give a profile")
    return table


def planned_settings(asked: Request, device: Device) -> tuple[BatchShape, dict[Knobs, KnownSetting]]:
    """The shape with the most progress over all caps that change, and what the profile knows of its settings.

    Without a curve the batch size is the user's own, without a profile nothing is known. Raises: InputError for a
    profile of another device or without the batch size, and as ``plan``.
    """
    cap, profile, curve, sizes, own = asked.moving, asked.table, asked.curve, asked.sizes, asked.start
    if cap is None or profile is None:
        return own, {}
    if profile.device != device.name:
        raise InputError("the profile is of another device", value=profile.device, allowed=device.name)
    part = profile.model_copy(update={"cells": tuple(cell for cell in profile.cells if cell.batch_size in sizes)})
    if not part.measured:
        have = ", ".join(map(str, sorted({cell.batch_size for cell in profile.cells})))
        allowed = ", ".join(map(str, sizes))
        raise InputError("the profile has no batch size that the session may use", value=have, allowed=allowed)
    batch_size = None if curve is not None and len(sizes) > 1 else own.batch
    result = plan(part, curve, cap=cap, batch_size=batch_size)
    step_s, relative_time = result.step_s, result.relative_time
    assert step_s is not None  # of a measured cell, with a curve or an own batch size
    assert relative_time is not None
    known: dict[Knobs, KnownSetting] = {}
    for one in result.candidates:
        power_w: Any = one.predicted_window_w or one.predicted_peak_w
        if one.shape == result.shape and one.relative_time is not None and power_w is not None:
            known[one.knobs] = KnownSetting(step_s * one.relative_time / relative_time, power_w)
    return result.shape, known
