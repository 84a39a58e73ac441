"""The meeting of a job's ranks: what each was asked to do is compared before any device is opened."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from wattune.cap import Over
from wattune.errors import DeviceError, InputError, WattuneError
from wattune.online.ranks.channel import JOIN_WITHIN_S, LEADER, Channel, RankLost
from wattune.online.ranks.gradient_sync import GradientSync
from wattune.version import __version__


class HasArguments(Protocol):
    """The arguments of a session, see ``Request``."""

    @property
    def same(self) -> Mapping[str, Any]:
        """Arguments that have to be the same on all ranks."""
        ...

    @property
    def sync(self) -> GradientSync:
        """The model."""
        ...


Asked = TypeVar("Asked", bound=HasArguments)


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
        self.hosts = [fact["host"] for fact in facts]
        self.specs = [fact["spec"] for fact in facts]
        self.channel = channel

    def leave(self, error: BaseException | None) -> RankLost | None:
        """End this rank's session, which ``error`` ended. Returns: the loss of another rank, if that was the cause."""
        channel = self.channel
        is_own = isinstance(error, WattuneError) or (
            isinstance(error, KeyboardInterrupt) and not channel.has_interrupted
        )
        if error is not None and not is_own:
            channel.wait_lost()  # a collective fails before the cause is known here
        channel.close(None if error is None else (str(error).strip() or type(error).__name__).splitlines()[0])
        if error is None or channel.lost is None or isinstance(error, RankLost):
            return None
        # a device of the lost rank does not answer either
        return RankLost(channel.lost) if not is_own or isinstance(error, DeviceError) else None

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context in which the leader prepares the session, while the others wait. Raises: JobRefused on all ranks."""
        try:
            yield
        except WattuneError as error:
            self.channel.send({"refused": str(error)})
            self.channel.close()
            raise refused(self.rank, error) from error

    def cannot_begin(self, error: BaseException) -> JobRefused | None:
        """Tell the other ranks that this one's session cannot begin. Returns: the error to raise, if it is another."""
        if not (self.is_leader and isinstance(error, WattuneError)):
            self.channel.close(str(error).strip() or type(error).__name__)
            return None
        self.channel.send({"stop": str(error), "is_input": True})  # in place of the first step
        self.channel.close()
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
        """True for a rank that opens its device itself, since it is on another computer than rank 0."""
        spec, is_elsewhere = self.spec(rank), self.hosts[rank] != self.hosts[LEADER]
        return is_elsewhere and not _is_made_up(spec) and self.holders[rank] == rank

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


def meet(make: Callable[[], Asked], device: object) -> tuple[Ranks, Asked]:
    """Meet the other ranks, each with what ``make`` returns; every rank has to call this.

    ``device``: the one that this rank was given. Raises: JobRefused on all ranks, for the first rank whose ``make``
    raises or that was asked for something else.
    """
    rank = own_rank()
    if not (dist.is_available() and dist.is_initialized()):
        hint = "call torch.distributed.init_process_group() before wattune.capped"
        raise refused(rank, InputError("the job has several processes, but no process group", hint=hint))
    asked, failure, server, address = None, None, None, None
    try:
        asked = make()
    except WattuneError as error:
        failure = error
    if rank == LEADER:
        server, address = Channel.listen(_own_address())
    own = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
        "spec": None if asked is None else _spec(asked.sync.module, device),
        "same": None if asked is None else asked.same,
        "failure": None if failure is None else str(failure),
        "address": address,
    }
    try:
        facts = _gathered(own)
    except InputError as error:
        raise refused(rank, error) from error
    problem = _difference(facts)
    if asked is None or problem is not None:
        if server is not None:
            server.close()
        raise refused(rank, problem or InputError(str(failure))) from failure
    names = [f"rank {number} (process {fact['pid']} on {fact['host']})" for number, fact in enumerate(facts)]
    channel = Channel(rank, names)
    place = facts[LEADER]["address"]
    if server is not None:
        channel.accept(server, place["token"])
    else:
        channel.connect(place)
    return Ranks(rank, facts, channel), asked


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
                problem = _difference(_gathered({"failure": str(error)}))
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


def _gathered(own: dict[str, Any]) -> list[dict[str, Any]]:
    """Each rank's value. Raises: InputError if a rank does not come."""
    facts: list[Any] = [None] * dist.get_world_size()
    try:
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=JOIN_WITHIN_S))
        try:
            dist.all_gather_object(facts, own, group=group)
        finally:
            dist.destroy_process_group(group)
    except RuntimeError as error:
        raise InputError(
            f"not every rank called wattune.capped within {JOIN_WITHIN_S:g} s",
            value=str(error).strip().splitlines()[0],
            hint="call it on all ranks of the job",
        ) from error
    return facts


def _is_made_up(spec: str) -> bool:
    """True for a simulated or replayed device, of which each rank has one of its own."""
    return spec.startswith(("sim:", "replay:", "recorded:")) or spec.endswith(".toml")


def _own_address() -> str:
    """The name of this computer for the other ranks: that of the job's master, which rank 0 is on, as a rule."""
    master, port = os.environ.get("MASTER_ADDR", "localhost"), os.environ.get("MASTER_PORT", "")
    if not port.isdigit():
        return master
    try:
        with socket.create_connection((master, int(port)), timeout=JOIN_WITHIN_S) as store:
            own, there = store.getsockname()[0], store.getpeername()[0]
    except OSError:
        return master
    return str(master if own == there else own)


def _spec(model: nn.Module, device: object) -> str | None:
    """The device's name as rank 0 can open it, or None for a device that is open already."""
    if not isinstance(device, str):
        return None
    place = next(model.parameters()).device
    if device == "auto" and place.type == "cuda":
        return f"nvidia:GPU-{str(torch.cuda.get_device_properties(place).uuid).removeprefix('GPU-')}"
    return device
