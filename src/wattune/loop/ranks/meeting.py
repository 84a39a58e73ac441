"""The meeting of a job's ranks: what each was asked to do is compared before any device is opened."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from wattune.cap import Over
from wattune.errors import DeviceError, InputError, WattuneError
from wattune.loop.ranks.channel import LEADER, RANK_TIMEOUT_S, Channel, Peer, RankLost, job_store
from wattune.loop.ranks.gradient_sync import GradientSync
from wattune.version import __version__

if TYPE_CHECKING:
    from wattune.loop.request import Request

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Names the running system of this computer, which tells two computers of one name apart."""

_meetings = itertools.count()
"""Meetings of this process, which come in the same order on all ranks."""


Even = Literal["stop"]
"""Loaders of unequal lengths stop all ranks where the first loader ends."""


class JobRefused(InputError, SystemExit):
    """Invalid input of a job of several processes. Rank 0 prints it, and an uncaught one ends each rank quietly."""

    code: str | int | None = 2


class Ranks:
    """The processes of a data-parallel job, after they have met.

    ``hosts`` and ``specs``: each rank's computer, and the device that it was given.
    """

    def __init__(self, rank: int, facts: Sequence[Mapping[str, Any]], channel: Channel):
        self.rank = rank
        self.size = len(facts)
        self.hosts = [fact["computer"] for fact in facts]
        self.specs = [fact["spec"] for fact in facts]
        self.channel = channel

    def leave(self, error: BaseException | None) -> RankLost | None:
        """End this rank's session, which ``error`` ended. Returns: the loss of another rank, if that was the cause."""
        channel = self.channel
        is_own = isinstance(error, WattuneError) or (
            isinstance(error, KeyboardInterrupt) and not channel.has_interrupted
        )
        is_overdue = error is not None and channel.is_overdue
        if is_overdue or (error is not None and not is_own):
            is_collective = any(word in str(error) for word in ("gloo", "NCCL"))  # fails before the cause is known
            channel.wait_lost(longer=isinstance(error, RuntimeError) and is_collective)
        channel.close(None if error is None else (str(error).strip() or type(error).__name__).splitlines()[0])
        if error is None or channel.lost is None or isinstance(error, RankLost):
            return None
        # a device of the lost rank does not answer either
        is_cause = is_overdue or not is_own or isinstance(error, DeviceError)
        return RankLost(channel.lost) if is_cause else None

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context in which the leader prepares the session, while the others wait. Raises: JobRefused on all ranks."""
        try:
            yield
        except WattuneError as error:
            raise self._refuse(error) from error
        self.channel.tell_all(ready=True)

    def _refuse(self, error: WattuneError) -> JobRefused:
        """End the job before its first step, as its leader. Returns: the error to raise."""
        self.channel.tell_all(stop=(JobRefused, str(error)))
        self.channel.close()
        return refused(self.rank, error)

    def come_to(self, place: str, *, is_last: bool = False) -> None:
        """Wait until all ranks have come to a place, after as many steps. Raises: RankLost, JobRefused, SafetyStop.

        ``is_last``: rank 0 may have asked for the row of a step that is never made.
        """
        self.channel.reach(1)
        own = f"{place} after {self.channel.place.steps} steps"
        if self.is_leader:
            self.channel.tell_all(at=own)
            for rank in range(1, self.size):
                self._compare(rank, self.channel.receive(f"at/{rank}", rank), own)
            return
        self.channel.send(f"at/{self.rank}", {"at": own})
        message = self.channel.receive("all")
        while is_last and "step" in message:
            message = self.channel.receive("all")
        self._compare(LEADER, message, own)

    def is_end_of_pass(self, sync: GradientSync, even: Even | None, has_batch: bool, batches: int) -> bool:
        """Agree on the end of a pass whose length no rank knows. Raises: JobRefused if some have more, unless
        ``even`` says to stop all of them."""
        self.channel.reach(2)
        ended = sync.ended(has_batch)
        if not ended or even == "stop" or len(ended) == self.size:
            return bool(ended)
        more = next(rank for rank in range(self.size) if rank not in ended)
        problem = f"rank {ended[0]}'s loader ended after {batches} batches, rank {more} has more"
        hint = 'give all ranks the same number, or wattune.capped(even="stop") to end all ranks there'
        raise refused(self.rank, InputError(problem, hint=hint))

    def _compare(self, rank: int, message: Mapping[str, Any], own: str) -> None:
        raise_stop(message)
        if message.get("at") != own:
            there, names = message.get("at", "another step"), self.channel.names
            self.channel.lose(f"{names[self.rank]} has come to {own}, and {names[rank]} to {there}")
            self.channel.check()  # the first loss counts

    def cannot_begin(self, error: BaseException) -> JobRefused | None:
        """Tell the other ranks that this one's session cannot begin. Returns: the error to raise, if it is another."""
        if not isinstance(error, WattuneError):
            self.channel.close(str(error).strip() or type(error).__name__)
            return None
        if self.is_leader:
            return self._refuse(error)
        with suppress(RankLost):  # rank 0 most likely has the same error, and is to say it
            self.channel.receive("all")
        self.channel.close(str(error))
        return refused(self.rank, error)

    @property
    def is_leader(self) -> bool:
        """True for the rank that chooses for all."""
        return self.rank == LEADER

    def spec(self, rank: int) -> str:
        """The name of a rank's device. Raises: InputError if it was given one that is open."""
        spec: str | None = self.specs[rank]
        if spec is None:
            raise InputError(f"rank {rank} has a device that is open", allowed="the name of one, on every rank")
        return spec

    @property
    def holders(self) -> list[int]:
        """For each rank the first one with the same device: ranks of one computer may share a real device."""
        places = [
            (self.hosts[rank], self.spec(rank), rank if _is_made_up(self.spec(rank)) else 0)
            for rank in range(self.size)
        ]
        return [places.index(place) for place in places]

    def serves_itself(self, rank: int) -> bool:
        """True for a rank beside rank 0 that opens, guards and restores a real device.

        A device that rank 0 was given open stands for those of all ranks.
        """
        if rank == LEADER or self.specs[LEADER] is None:
            return False
        return self.holders[rank] == rank and not _is_made_up(self.spec(rank))

    def pools(self, over: Over) -> list[int]:
        """The budget that each rank's device is under."""
        if over == "device":
            return list(range(self.size))
        return [0] * self.size if over == "job" else [self.hosts.index(host) for host in self.hosts]


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
    host, (boot, pid_space) = socket.gethostname(), _running_system()
    own = {
        "host": host,
        "computer": f"{host} {boot}",
        "pid_space": pid_space,
        "pid": os.getpid(),
        "version": __version__,
        "spec": None if asked is None else _spec(asked.sync.module, device),
        "same": None if asked is None else asked.same,
        "failure": None if failure is None else str(failure),
    }
    facts, store = _gathered(own, RANK_TIMEOUT_S if asked is None else asked.rank_timeout_s)
    problem = _difference(facts)
    if asked is None or problem is not None:
        raise refused(rank, problem or InputError(str(failure))) from failure
    here = own["computer"], pid_space
    peers = [
        Peer(
            f"rank {number} (process {fact['pid']} on {fact['host']})",
            fact["pid"] if pid_space and (fact["computer"], fact["pid_space"]) == here else None,
        )
        for number, fact in enumerate(facts)
    ]
    return Ranks(rank, facts, Channel(store, rank, peers, asked.rank_timeout_s)), asked


def raise_stop(message: Mapping[str, Any]) -> None:
    """Raise what ends the job, if the leader's message says so. Raises: JobRefused, SafetyStop."""
    if "stop" in message:
        kind, text = message["stop"]
        raise kind(text)


def refused(rank: int, problem: WattuneError) -> JobRefused:
    """The error to raise on this rank; rank 0 prints it for all."""
    if rank == LEADER:
        print(f"error: {problem}", file=sys.stderr, flush=True)
    return JobRefused(str(problem))


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
                problem = _difference(_gathered({"failure": str(error)}, RANK_TIMEOUT_S)[0])
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


def _gathered(own: dict[str, Any], timeout_s: float) -> tuple[list[dict[str, Any]], Any]:
    """Each rank's value, and the keys of this meeting in the job's store.

    ``timeout_s``: seconds in which all ranks have to come.

    A job that ``torchrun`` has restarted has the store of its first attempt. Raises: JobRefused, with a line of each
    rank that has come, if one does not come.
    """
    size, rank = dist.get_world_size(), own_rank()
    missing, until_s = list(range(size)), time.monotonic() + timeout_s
    try:
        store = job_store(f"wattune/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_meetings)}")
        store.set(f"fact/{rank}", pickle.dumps(own))
        while missing := [number for number in missing if not store.check([f"fact/{number}"])]:
            if time.monotonic() > until_s:
                absent = f"rank {', '.join(map(str, missing))} has not called wattune.capped within {timeout_s:g} s"
                also = "" if own["failure"] is None else f", and rank {rank} failed: {own['failure']}"
                store.set("absent", absent + also)
            if store.check(["absent"]):
                raise TimeoutError(store.get("absent").decode())
            time.sleep(0.02)
        facts = [pickle.loads(store.get(f"fact/{number}")) for number in range(size)]
        read, until_s = store.add("read", 1), time.monotonic() + RANK_TIMEOUT_S
        while rank == LEADER and read < size and time.monotonic() < until_s:  # the store may end with this process
            time.sleep(0.005)
            read = store.add("read", 0)
        return facts, store
    except (RuntimeError, TimeoutError) as error:
        what = f"rank {LEADER} has ended, and the store of the job with it"
        if isinstance(error, TimeoutError):
            what = str(error)
            time.sleep(1.0 if rank == LEADER else 0.0)  # for the others to read it
        hint = "call it on all ranks of the job, or give a longer rank_timeout_s="
        raise refused(LEADER, InputError(what, hint=hint)) from error


def _running_system() -> tuple[str, str]:
    """This computer's running system, and the part of it in which a process has one number; empty if not known."""
    boot = ""
    with suppress(OSError):
        boot = BOOT_ID.read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    return boot, ""


def _is_made_up(spec: str) -> bool:
    """True for a simulated or replayed device, of which each rank has one of its own."""
    return spec.startswith(("sim:", "replay:")) or spec.endswith(".toml")


def _spec(model: nn.Module, device: object) -> str | None:
    """The device's name as rank 0 can open it, or None for a device that is open already."""
    if not isinstance(device, str):
        return None
    place = next(model.parameters()).device
    if device == "auto" and place.type == "cuda":
        return f"nvidia:GPU-{str(torch.cuda.get_device_properties(place).uuid).removeprefix('GPU-')}"
    return device
