"""The plan: from a profile, an efficiency record and a cap to the point to train at."""

from __future__ import annotations

from datetime import datetime

from wattune.cap import PowerCap
from wattune.cap_source import CapSource
from wattune.errors import RecordError
from wattune.goal import TIME, Goal
from wattune.intensity import Intensity
from wattune.planning.over_time import check_intensity, plan_over_time
from wattune.planning.own_batch_size import pick_from
from wattune.planning.problem import pose, record, why_nothing
from wattune.records import Kind, Plan, ProfileKey, ProfileTable, SampleEfficiency


def plan(
    profile: ProfileTable,
    efficiency: SampleEfficiency | None = None,
    *,
    cap: PowerCap | CapSource,
    goal: Goal = TIME,
    intensity: Intensity | None = None,
    now: datetime | None = None,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """Choose batch size and clock together: the measured point that stays under the cap and is best for the goal.

    A point stays under the cap if its power plus the margin is at most the cap: the highest mean over the cap's window,
    with its error, or the highest reading. For a cap at the terminals
    of the supply, the profile's ``supply`` says how much of it is left to the module. ``target`` is that of the curve.
    The names of the workloads may differ, since the curve is that of a proxy.

    Under a cap that changes, batch size and micro-batch size stay, and ``caps`` of the plan has the setting under each
    of its caps. With ``intensity``, a forecast of carbon or price, ``schedule`` has the times to train at until the
    goal's deadline; see ``wattune.planning.over_time``. ``now``: the beginning, by which a forecast and caps at moments
    are aligned; None: both begin with their first value.

    ``batch_size``: choose for this one only, the baselines left out. Without ``efficiency`` it is needed, unless the
    profile has no other. ``memory_bytes``: nothing is chosen of which a step takes more.

    Raises: CapError if no measured point stays under the cap; InputError for a cap at a supply that is not known, a
    batch size that was not profiled, a goal that the records cannot tell about, or a forecast that does not have the
    present; NoFeasiblePoint if nothing fits in memory or meets the deadline, or no proxy run reached the target at any
    feasible point; RecordError if the records do not fit together.
    Source: arXiv 2502.18323, Algorithm 1.
    """
    source = cap if isinstance(cap, CapSource) else None
    if intensity is not None:
        check_intensity(intensity, goal)
    constant = cap.highest() if isinstance(cap, CapSource) else cap
    problem = pose(profile, efficiency, cap=constant, goal=goal, batch_size=batch_size, memory_bytes=memory_bytes)
    if source is not None or intensity is not None:
        return plan_over_time(problem, source, intensity, now)
    chosen = pick_from(problem.objective)
    if chosen is None:
        raise why_nothing(problem.table, problem.objective.limit)
    problem.objective.check(chosen.option)
    return record(problem, chosen)


def check_profile(profile: ProfileTable, key: ProfileKey, *, kind: Kind | None = None) -> None:
    """Refuse a table that was measured with another device, model, input shape, ...

    A table without a key, from another program, is compared by device and algorithm only. ``kind`` is that of the
    device, if there is one: a simulated profile is refused for a real board, and the other way round.

    Raises: RecordError naming every field that differs.
    """
    if profile.key is not None:
        differences = profile.key.differences(key)
    else:
        pairs = {"device": (profile.device, key.device), "algorithm": (profile.algorithm, key.algorithm)}
        differences = [f"{name} ({value}, not {own})" for name, (own, value) in pairs.items() if own != value]
    if differences := [*profile.provenance.kind_on(kind), *differences]:
        raise RecordError(
            "the profile does not match this device and workload; it differs in",
            value=", ".join(differences),
            hint="profile again",
        )
