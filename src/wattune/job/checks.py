"""Checks of a run before it has cost anything, and the fingerprint of what it depends on."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from wattune import planning, profiling
from wattune.cap import PowerCap
from wattune.cap_source import CapSource
from wattune.devices import Device
from wattune.errors import InputError, RecordError
from wattune.power.limiter import check_limit
from wattune.records import EfficiencyPoint, ProfileTable, SampleEfficiency
from wattune.revision import check_revision

if TYPE_CHECKING:
    from wattune.workloads import Workload


def check_workload(work: Workload, board: Device, *, needs_proxy: bool = True) -> None:
    """Try data, model, loss and metric, also of the proxy, and check that the board computes in the data type.

    Raises: WorkloadError, InputError.
    """
    if needs_proxy:
        work.check_proxy()
    for part in (work, work.proxy):
        if part is not None:
            part.check()
    if work.data_type not in board.data_types:
        raise InputError(
            f"{board.name} cannot compute in", value=work.data_type, allowed=", ".join(sorted(board.data_types))
        )


def algorithm_of(profile: ProfileTable | None, algorithm: str | None) -> str:
    """The training algorithm of a run: the one asked for, else that of the given profile, else backprop.

    Raises: InputError if the given profile is of another one; RecordError if its revision is another today;
    UnknownName.
    """
    if profile is not None:
        check_revision(profile.algorithm, profile.provenance.software)
    if algorithm is None:
        return "backprop" if profile is None else profile.algorithm
    from wattune.algorithms import canonical

    name = canonical(algorithm)
    if profile is not None and profile.algorithm != name:
        raise InputError("algorithm", value=name, allowed=f"{profile.algorithm}, that of the given profile")
    return name


def check_algorithm(what: str, algorithm: str, expected: str) -> None:
    """Refuse a finished record of another training algorithm. Raises: RecordError, UnknownName, InputError."""
    if algorithm == expected:
        return
    from wattune.algorithms import canonical

    if algorithm != canonical(expected):
        raise RecordError(
            f"the finished {what} is of another training algorithm",
            value=algorithm,
            allowed=canonical(expected),
            hint="give another -o FILE",
        )


def check_profile(table: ProfileTable, board: Device, work: Workload | None) -> None:
    """Refuse a profile of another device, model, ... Without a workload, the profile is that of a replayed table.

    Raises: RecordError.
    """
    key = profiling.profile_key(board, work, table.algorithm)
    planning.check_profile(table, key, kind=board.kind)


def check_run(board: Device, work: Workload, cap: PowerCap, profile: ProfileTable | None) -> None:
    """Check that cap and workload of a run go with its board and the given ``profile``, if there is one.

    Raises: InputError; RecordError for a profile of something else, or of batch sizes that will not be trained.
    """
    check_limit(board, cap.max_temp_c)
    cap.at_sensor((profile.supply if profile is not None else None) or board.supply, board.sensor.window_s)
    if profile is None:
        return
    check_profile(profile, board, work)
    foreign = sorted(set(profile.batch_sizes) - set(work.batch_sizes))
    if foreign or not profile.measured:
        raise RecordError(
            "the profile has batch sizes that the workload lacks" if foreign else "the profile has no measured cell",
            value=", ".join(map(str, foreign)) or None,
            allowed=", ".join(map(str, work.batch_sizes)),
            hint="profile again",
        )


def check_moving_cap(cap: CapSource, board: Device, *, has_profile: bool) -> None:
    """Check that nothing has to be profiled on a real board while its cap changes. Raises: InputError."""
    if has_profile or not board.executes_steps:
        return
    if not cap.is_announced or cap.elapsed_s(datetime.now(timezone.utc)) is not None:
        raise InputError(
            "a profile would not follow a cap that changes by the clock, a file or a callable",
            value=board.name,
            hint="profile before, at a time and under a cap that allow it, and give that profile",
        )


def check_cap(table: ProfileTable, cap: PowerCap) -> None:
    """Check that any point stays under the cap, before minutes are spent on the proxy, on which this does not depend.

    Raises: CapError, NoFeasiblePoint, RecordError.
    """
    sizes = table.batch_sizes or tuple(probe.batch_size for probe in table.aborted[:1])
    points = tuple(EfficiencyPoint(batch_size=size, relative_samples=1.0) for size in sizes)
    even = SampleEfficiency(
        workload=table.workload, algorithm=table.algorithm, reference_batch_size=sizes[-1], points=points
    )
    planning.plan(table, even, cap=cap)


def fingerprint(work: Workload) -> str:
    """Fingerprint of all that a run depends on: what is trained, its proxy, and the batch sizes."""
    proxy = "" if work.proxy is None else work.proxy.fingerprint()
    sizes = f"{work.batch_sizes} {work.micro_batch_sizes} {work.host_s_per_sample}"
    return hashlib.sha256(f"{work.fingerprint()} {proxy} {sizes}".encode()).hexdigest()[:16]
