"""Agreement of a job's ranks: the same steps, which rank 0 chooses, and the same places of their loops."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from wattune.cap import Over
from wattune.devices import Device
from wattune.devices.group import open_group
from wattune.errors import InputError, SafetyStop, WattuneError
from wattune.loop.loop_run import NextStep
from wattune.loop.ranks.channel import LEADER, Channel, RankLost
from wattune.loop.ranks.compute_timer import ComputeTimer
from wattune.loop.ranks.remote_board import RemoteBoard

if TYPE_CHECKING:
    from torch import nn

    from wattune.loop.ranks.gradient_sync import GradientSync
    from wattune.loop.request import Request

AGREE_EVERY_S = 0.5
"""Seconds of training after which the ranks hear again which steps come next, unless a point is being measured."""

MOST_STEPS = 256
"""Most steps from one such message to the next."""

Even = Literal["stop"]
"""Loaders of unequal lengths stop all ranks where the first loader ends."""


class JobRefused(InputError, SystemExit):
    """Invalid input of a job of several processes. Rank 0 prints it, and an uncaught one ends each rank quietly."""

    code: str | int | None = 2


def refused(rank: int, problem: WattuneError) -> JobRefused:
    """The error to raise on this rank; rank 0 prints it for all."""
    if rank == LEADER:
        print(f"error: {problem}", file=sys.stderr, flush=True)
    return JobRefused(str(problem))


class Ranks:
    """The processes of a data-parallel job, after they have met. Rank 0, the leader, chooses for all.

    Between two agreements the ranks take steps of one row without a word, while clocks may change at any time.
    ``facts``: each rank's computer, and the ``spec`` of its device; ``model``: this rank's, without what averages.
    """

    def __init__(self, facts: Sequence[Mapping[str, Any]], channel: Channel, model: nn.Module):
        self.rank, self.size = channel.rank, len(facts)
        self.is_leader = self.rank == LEADER
        """True for the rank that chooses for all."""
        self.channel = channel
        self.timer = ComputeTimer(model, channel.passed)
        self.stop: SafetyStop | InputError | None = None
        """Error that the leader raises at the next agreement, on all ranks: until then its device is at the safest
        setting."""
        self.on_rebalance: Callable[[], None] = lambda: None
        """Called after members of the group were set to other values."""
        self._hosts = [fact["computer"] for fact in facts]
        self._specs = [fact["spec"] for fact in facts]
        self._device: Device
        self._members: list[int] = []  # each rank's place in a group
        self._computed_s: dict[int, float] = {}
        self._agreed: NextStep
        self._left = 0

    # ---------------------------------------------------------------------------------------------------------- steps

    def next_step(self, wanted: Callable[[], NextStep] | None = None, step_s: float = 0.0) -> NextStep:
        """The step that all ranks take next.

        Of the leader: ``wanted`` chooses, and ``step_s`` is the time that a step takes, 0 if that is not known. Raises:
        SafetyStop, JobRefused, RankLost, DeviceError.
        """
        self.channel.reach(1)
        self._left -= 1
        if self._left > 0:
            return self._agreed
        if wanted is None:
            message = self.told()
            if "step" not in message:
                self._compare(LEADER, message, "another step")
            self._agreed, self._left = message["step"], message["times"]
            return self._agreed
        self.channel.check()
        if self.stop is not None:
            stop = refused(LEADER, self.stop) if isinstance(self.stop, InputError) else self.stop
            self.channel.send("all", {"stop": (type(stop), str(stop))})
            raise stop
        self._rebalance()
        self._agreed = step = wanted()
        is_settled = not step.probing and step.wanted == step.current and step_s > 0
        self._left = max(1, min(MOST_STEPS, int(AGREE_EVERY_S / step_s))) if is_settled else 1
        self.channel.send("all", {"step": step, "times": self._left})
        return step

    def end_step(self) -> None:
        """End a step; the leader hears how long this rank has computed."""
        self.channel.stepped()
        if (seconds := self.timer.end()) is not None and self.is_leader:
            self._computed_s[LEADER] = seconds
        elif seconds is not None and self._left <= 1:
            self.channel.send(f"computed_s/{self.rank}", seconds)  # before the next agreement

    def _rebalance(self) -> None:
        """Let the devices of a group follow each other's computing times."""
        for rank in range(1, len(self._members)):
            while (own_s := self.channel.received(f"computed_s/{rank}")) is not None:
                self._computed_s[rank] = own_s
        group = self._device.group
        if group is None:
            return
        # A simulated group knows the times itself.
        if len(group.members) > 1 and group.executes_steps and len(self._computed_s) == len(self._members):
            slowest_s = [0.0] * len(group.members)
            for rank, member in enumerate(self._members):
                slowest_s[member] = max(slowest_s[member], self._computed_s[rank])
            self._computed_s.clear()
            group.computed(slowest_s)
        if group.compute_s and group.rebalance():
            self.on_rebalance()

    def told(self) -> dict[str, Any]:
        """The leader's next message. Raises: SafetyStop, JobRefused if it ends the job; RankLost."""
        message: dict[str, Any] = self.channel.receive("all")
        if "stop" in message:
            kind, text = message["stop"]
            raise kind(text)
        return message

    # --------------------------------------------------------------------------------------------------------- places

    def come_to(self, place: str, *, is_last: bool = False) -> None:
        """Wait until all ranks have come to a place, after as many steps. Raises: RankLost, JobRefused, SafetyStop.

        ``is_last``: rank 0 may have asked for the row of a step that is never made.
        """
        self.channel.reach(1)
        own = f"{place} after {self.channel.place.steps} steps"
        if self.is_leader:
            self.channel.send("all", {"at": own})
            for rank in range(1, self.size):
                self._compare(rank, self.channel.receive(f"at/{rank}", rank), own)
            return
        self.channel.send(f"at/{self.rank}", {"at": own})
        message = self.told()
        while is_last and "step" in message:
            message = self.told()
        self._compare(LEADER, message, own)

    def _compare(self, rank: int, message: Mapping[str, Any], own: str) -> None:
        if (there := message.get("at", "another step")) != own:
            peers = self.channel.peers
            self.channel.lose(f"{peers[self.rank].name} has come to {own}, and {peers[rank].name} to {there}")
            self.channel.check()  # the first loss counts

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

    # ------------------------------------------------------------------------------------------------------ the begin

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context in which the leader prepares the session, while the others wait. Raises: JobRefused on all."""
        try:
            yield
        except WattuneError as error:
            raise self._refuse(error) from error
        self.channel.send("all", {"ready": True})

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

    def _refuse(self, error: WattuneError) -> JobRefused:
        """End the job before its first step, as its leader. Returns: the error to raise."""
        self.channel.send("all", {"stop": (JobRefused, str(error))})
        self.channel.close()
        return refused(self.rank, error)

    # --------------------------------------------------------------------------------------------------------- devices

    def open_devices(self, asked: Request) -> Device:
        """The devices of all ranks as one; ranks of one computer may share a device.

        Each rank opens a real one itself (``ServedBoard``). Raises: InputError, DeviceError, UnknownName.
        """
        if asked.closes:
            pools, held = self.pools(asked.given.over), sorted(set(self.holders))
            devices: list[str | Device] = [
                RemoteBoard(self.channel, rank) if self.serves_itself(rank) else self.spec(rank) for rank in held
            ]
            self._members = [held.index(holder) for holder in self.holders]
            self._device = open_group(devices, pools=[pools[holder] for holder in held], seed=asked.given.seed)
        else:
            self._members, self._device = list(range(self.size)), asked.given.device
        return self._device

    def spec(self, rank: int) -> str:
        """The name of a rank's device. Raises: InputError if it was given one that is open."""
        spec: str | None = self._specs[rank]
        if spec is None:
            raise InputError(f"rank {rank} has a device that is open", allowed="the name of one, on every rank")
        return spec

    @property
    def holders(self) -> list[int]:
        """For each rank the first one with the same device: ranks of one computer may share a real device."""
        specs = [self.spec(rank) for rank in range(self.size)]
        places = [(self._hosts[rank], spec, rank if _is_made_up(spec) else 0) for rank, spec in enumerate(specs)]
        return [places.index(place) for place in places]

    def serves_itself(self, rank: int) -> bool:
        """True for a rank beside rank 0 that opens, guards and restores a real device.

        A device that rank 0 was given open stands for those of all ranks.
        """
        if rank == LEADER or self._specs[LEADER] is None:
            return False
        return self.holders[rank] == rank and not _is_made_up(self.spec(rank))

    def pools(self, over: Over) -> list[int]:
        """The budget that each rank's device is under."""
        if over == "device":
            return list(range(self.size))
        return [0] * self.size if over == "job" else [self._hosts.index(host) for host in self._hosts]


def _is_made_up(spec: str) -> bool:
    """True for a simulated or replayed device, of which each rank has one of its own."""
    return spec.startswith(("sim:", "replay:")) or spec.endswith(".toml")
