"""The meeting of a job's ranks: what each was asked to do is compared before any device is opened."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from wattune.errors import InputError, WattuneError
from wattune.loop.ranks.agreement import JobRefused, Ranks, refused
from wattune.loop.ranks.channel import LEADER, LONGEST_SLEEP_S, RANK_TIMEOUT_S, Channel, RankLost, job_store
from wattune.version import __version__
from wattune_agent.snapshot import boot_id, started_at

if TYPE_CHECKING:
    from wattune.loop.request import Request

_meetings = itertools.count()
"""Meetings of this process, which come in the same order on all ranks."""


def processes() -> int:
    """Number of processes of this job: 1 without ``torchrun`` or its like."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1") or "1")


def own_rank() -> int:
    """This process's rank in its job: 0 without ``torchrun`` or its like."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0") or "0")


def meet(make: Callable[[], Request], device: object) -> tuple[Ranks, Request]:
    """Meet the other ranks, each with what ``make`` returns; every rank has to call this.

    ``device``: the one that this rank was given. Raises: JobRefused on all ranks, for the first rank whose ``make``
    raises or that was asked for something else.
    """
    rank = own_rank()
    if not (dist.is_available() and dist.is_initialized()):
        hint = "call torch.distributed.init_process_group() before wattune.capped"
        raise refused(rank, InputError("the job has several processes, but no process group", hint=hint))
    asked, failure = None, None
    try:
        asked = make()
    except WattuneError as error:
        failure = error
    own = {
        "version": __version__,
        "spec": None if asked is None else _spec(asked.sync.module, device),
        "same": None if asked is None else asked.same,
        "failure": None if failure is None else str(failure),
    }
    channel, facts = _gathered(own, RANK_TIMEOUT_S if asked is None else asked.rank_timeout_s)
    problem = _difference(facts)
    if asked is None or problem is not None:
        channel.close()
        raise refused(rank, problem or InputError(str(failure))) from failure
    return Ranks(facts, channel, asked.sync.module), asked


@contextmanager
def refusing() -> Iterator[None]:
    """Context before the meeting, in which invalid input ends a job of several processes with one line of rank 0.

    No rank leaves before all of them have heard of it, since others may still need what rank 0 serves. Raises:
    JobRefused; in a program of one process, the InputError itself.
    """
    try:
        yield
    except JobRefused:
        raise
    except InputError as error:
        if processes() == 1:
            raise
        problem: InputError | None = error
        if dist.is_available() and dist.is_initialized():
            with suppress(InputError):  # others that do not come have their own errors
                channel, facts = _gathered({"failure": str(error)}, RANK_TIMEOUT_S)
                problem = _difference(facts)
                channel.close()
        raise refused(own_rank(), problem or error) from error


def _difference(facts: Sequence[Mapping[str, Any]]) -> InputError | None:
    """The first rank's error, or the first argument in which a rank differs from rank 0."""
    for rank, fact in enumerate(facts):
        if fact["failure"] is not None:
            everyone = all(other["failure"] == fact["failure"] for other in facts)
            return InputError(fact["failure"] if everyone else f"rank {rank}: {fact['failure']}")
        if fact["version"] != facts[LEADER]["version"]:
            versions = f"{fact['version']}, not {facts[LEADER]['version']} as on rank 0"
            return InputError(f"rank {rank} has another wattune", value=versions, hint="install one version everywhere")
        for name, value in fact["same"].items():
            if value != facts[LEADER]["same"][name]:
                both = f"{value}, not {facts[LEADER]['same'][name]} as on rank 0"
                return InputError(f"rank {rank} has another {name}", value=both, allowed="the same on all ranks")
    return None


def _gathered(own: dict[str, Any], timeout_s: float) -> tuple[Channel, list[dict[str, Any]]]:
    """Exchange each rank's facts, over the channel of this meeting, which is returned as well.

    ``timeout_s``: seconds in which all ranks have to come. A job that ``torchrun`` has restarted has the store of its
    first attempt. Raises: JobRefused, with a line of each rank that has come, if one does not come.
    """
    rank, until_s = own_rank(), time.monotonic() + timeout_s
    facts: dict[int, dict[str, Any]] = {}
    try:
        store = job_store(f"wattune/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}")
        channel = Channel(store, rank, dist.get_world_size(), timeout_s)
    except RuntimeError as error:
        raise refused(LEADER, InputError(f"rank {LEADER} has ended, and the store of the job with it")) from error
    host, boot, pid = socket.gethostname(), boot_id(), os.getpid()
    process = {"host": host, "computer": f"{host} {boot}", "pid": pid, "started": started_at(pid)}
    channel.send(f"fact/{rank}", {**own, **process})
    try:
        while missing := [number for number in range(len(channel.peers)) if number not in facts]:
            for number in missing:
                if (fact := channel.received(f"fact/{number}")) is not None:
                    facts[number], peer = fact, channel.peers[number]
                    peer.name = f"rank {number} (process {fact['pid']} on {fact['host']})"
                    # Containers of one computer number their processes apart.
                    if fact["computer"] == process["computer"] and fact["started"] == started_at(fact["pid"]):
                        peer.process = None if fact["started"] is None else (fact["pid"], fact["started"])
            channel.check()
            if time.monotonic() > until_s:
                absent = f"rank {', '.join(map(str, missing))} has not called wattune.capped within {timeout_s:g} s"
                also = "" if own["failure"] is None else f", and rank {rank} failed: {own['failure']}"
                channel.lose(absent + also)
            time.sleep(LONGEST_SLEEP_S)
    except RankLost as error:
        channel.close()
        hint = "call it on all ranks of the job, or give a longer rank_timeout_s="
        raise refused(LEADER, InputError(str(error), hint=hint)) from error
    return channel, [facts[number] for number in range(len(facts))]


def _spec(model: nn.Module, device: object) -> str | None:
    """The device's name as rank 0 can open it, or None for a device that is open already."""
    if not isinstance(device, str):
        return None
    place = next(model.parameters()).device
    if device == "auto" and place.type == "cuda":
        return f"nvidia:GPU-{str(torch.cuda.get_device_properties(place).uuid).removeprefix('GPU-')}"
    return device
