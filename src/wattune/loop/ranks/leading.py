"""The leader's part in a session of several ranks: it says which step comes next, and all take the same one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wattune.devices import Device
from wattune.devices.group import open_group
from wattune.errors import InputError, SafetyStop
from wattune.loop.loop_run import NextStep
from wattune.loop.ranks.channel import LEADER
from wattune.loop.ranks.compute_timer import ComputeTimer
from wattune.loop.ranks.meeting import Ranks, refused
from wattune.loop.ranks.remote_board import RemoteBoard

if TYPE_CHECKING:
    from wattune.loop.request import Request

AGREE_EVERY_S = 0.5
"""Seconds of training after which the ranks hear again which steps come next, unless a point is being measured."""

MOST_STEPS = 256
"""Most steps from one such message to the next."""


class Leading:
    """Decisions of one rank for all, applied at the same step.

    Between two agreements the ranks take steps of one row without a word, while clocks may change at any time. A
    ``stop`` is raised at the next agreement, on all ranks: until then the device is at its safest setting.

    ``device``: the devices of all ranks as one, or the device that is open already. If it is a group, its members
    follow each other's computing times. Raises: InputError, DeviceError, UnknownName.
    """

    def __init__(self, ranks: Ranks, asked: Request):
        self.channel = ranks.channel
        self.stop: SafetyStop | InputError | None = None
        self.on_rebalance: Callable[[], None] = lambda: None
        """Called after members of the group were set to other values."""
        self.device, self._members = open_devices(ranks, asked)
        self._computed_s: dict[int, float] = {}
        self.timer = ComputeTimer(asked.sync.module, ranks.channel.passed)
        self._agreed: NextStep
        self._left = 0

    def end(self) -> None:
        """End a step."""
        self.channel.stepped()
        if (seconds := self.timer.end()) is not None:
            self._computed_s[LEADER] = seconds

    def next_step(self, wanted: Callable[[], NextStep], step_s: float) -> NextStep:
        """The step that all ranks take next; ``step_s``: seconds that one takes, 0 if that is not known.

        Raises: SafetyStop, JobRefused, RankLost, DeviceError.
        """
        self.channel.reach(1)
        self._left -= 1
        if self._left > 0:
            return self._agreed
        self.channel.check()
        if self.stop is not None:
            stop = refused(LEADER, self.stop) if isinstance(self.stop, InputError) else self.stop
            self.channel.tell_all(stop=(type(stop), str(stop)))
            raise stop
        self._rebalance()
        step = wanted()
        is_settled = not step.probing and step.wanted == step.current and step_s > 0
        self._left = max(1, min(MOST_STEPS, int(AGREE_EVERY_S / step_s))) if is_settled else 1
        self._agreed = step
        self.channel.tell_all(step=step, times=self._left)
        return step

    def _rebalance(self) -> None:
        for rank in range(1, len(self._members)):
            while (own_s := self.channel.received(f"computed_s/{rank}")) is not None:
                self._computed_s[rank] = own_s
        group = self.device.group
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


def open_devices(ranks: Ranks, asked: Request) -> tuple[Device, list[int]]:
    """The devices of all ranks as one, and each rank's place among them; ranks of one computer may share a device.

    Each rank opens a real one itself (``ServedBoard``). Raises: InputError, DeviceError, UnknownName.
    """
    if not asked.closes:
        return asked.given.device, list(range(ranks.size))
    pools, held = ranks.pools(asked.given.over), sorted(set(ranks.holders))
    devices: list[str | Device] = [
        RemoteBoard(ranks.channel, rank) if ranks.serves_itself(rank) else ranks.spec(rank) for rank in held
    ]
    members = [held.index(holder) for holder in ranks.holders]
    return open_group(devices, pools=[pools[holder] for holder in held], seed=asked.given.seed), members
