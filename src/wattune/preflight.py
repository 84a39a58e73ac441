"""What can be known to be wrong before a run has cost anything, and what a run depends on."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

from wattune import planning, profiling, training
from wattune.algorithms import canonical
from wattune.devices import Device
from wattune.errors import InputError, RecordError
from wattune.records import CapSide, EfficiencyCurve, EfficiencyPoint, ProfileTable
from wattune.workloads import Workload

MOST_SEEDS = 100
"""Trainings per batch size that a server takes."""


def check_source(
    workload: object,
    *,
    server: str | None,
    model: str | None,
    data: object,
    seeds: int | None,
    **others: object,
) -> None:
    """Whether it is said in one way what is to be trained: by a workload, or by a server and its model.

    ``others``: what goes with a server alone, too. Raises: InputError.
    """
    if server is None:
        given = {"model": model, "data": data, **others}
        if found := next((name for name, value in given.items() if value is not None), None):
            raise InputError(f"{found} without a server", hint="it goes with a model that comes from a server")
    elif workload is not None:
        raise InputError("a workload and a server", value=str(workload), allowed="one of the two")
    elif model is None or data is None:
        missing = "model" if model is None else "data"
        raise InputError(f"{missing} is missing", hint="a run with a server needs its model and data of your own")
    elif seeds is not None and not 1 <= seeds <= MOST_SEEDS:
        raise InputError("seeds", value=seeds, allowed=f"1 to {MOST_SEEDS} with a server")


def check_workload(work: Workload, board: Device, *, needs_proxy: bool = True) -> None:
    """Try data, model, loss and metric, the proxy's too, and whether the board can compute in the data type.

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


def check_choices(
    board: Device,
    known: ProfileTable | None,
    *,
    strategy: str | None,
    cap_w: float | None,
    cap_side: CapSide,
    margin_w: float,
    max_temp_c: float | None,
) -> None:
    """Whether the arguments of a run go together, and with the board. Raises: InputError."""
    if known is not None and strategy is not None:
        raise InputError("strategy", value=strategy, allowed="none where a profile is given")
    training.check_limit(board, max_temp_c)
    supply = (known.supply if known is not None else None) or board.supply
    cap_w = planning.module_cap(cap_w, cap_side, supply)
    if cap_w is not None and cap_w <= margin_w:
        raise InputError("margin_w", value=margin_w, allowed=f"less than the cap of {cap_w:g} W")


def algorithm_of(known: ProfileTable | None, asked: str | None) -> str:
    """The training algorithm of a run: the one that is asked for, else that of a profile from before, else backprop.

    Raises: InputError where the profile is of another one; UnknownName.
    """
    if asked is None:
        return "backprop" if known is None else known.algorithm
    wanted = canonical(asked)
    if known is not None and known.algorithm != wanted:
        raise InputError("algorithm", value=wanted, allowed=f"{known.algorithm}, that of the profile that is given")
    return wanted


def check_known(known: ProfileTable, board: Device, work: Workload, *, command: str) -> None:
    """Whether a profile from before is of this device and workload, and of batch sizes that will be trained.

    ``command`` is the one that measures five cells of it again. Raises: RecordError.
    """
    key = profiling.profile_key(board, work, known.algorithm)
    planning.check_profile(known, key, kind=board.kind, command=command)
    foreign = sorted(set(known.batch_sizes) - set(work.batch_sizes))
    if foreign or not known.measured:
        raise RecordError(
            "the profile has batch sizes that the workload lacks" if foreign else "the profile has no measured cell",
            value=", ".join(map(str, foreign)) or None,
            allowed=", ".join(map(str, work.batch_sizes)),
            hint="profile again",
        )


def check_command(board: Device, profile: object, workload: object) -> str:
    """The command that measures five cells of a profile again on this board; profile and workload by their files."""
    file = str(profile) if isinstance(profile, (str, Path)) else "PROFILE"
    toml = [str(workload)] if str(workload).endswith(".toml") else []
    return shlex.join(["wattune", "profile", *toml, "--check", file, "--device", board.spec or "DEVICE"])


def check_cap(table: ProfileTable, *, cap_w: float | None, cap_side: CapSide, margin_w: float) -> None:
    """Whether any point keeps the cap, which does not depend on the proxy, before minutes are spent on that.

    Raises: CapError, RecordError.
    """
    sizes = table.batch_sizes or tuple(probe.batch_size for probe in table.aborted[:1])
    points = tuple(EfficiencyPoint(batch_size=size, relative_samples=1.0) for size in sizes)
    even = EfficiencyCurve(
        workload=table.workload, algorithm=table.algorithm, reference_batch_size=sizes[-1], points=points
    )
    planning.plan(table, even, cap_w=cap_w, cap_side=cap_side, margin_w=margin_w)


def fingerprint(work: Workload) -> str:
    """Of all that a run depends on: what is trained, what its proxy is, and at which batch sizes."""
    proxy = "" if work.proxy is None else work.proxy.fingerprint()
    sizes = f"{work.batch_sizes} {work.micro_batch_sizes} {work.host_s_per_sample}"
    return hashlib.sha256(f"{work.fingerprint()} {proxy} {sizes}".encode()).hexdigest()[:16]
