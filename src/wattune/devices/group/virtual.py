"""A group of simulated or replayed boards, on virtual time."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from wattune.devices.base import GroundTruth
from wattune.devices.group.device_group import DeviceGroup
from wattune.devices.group.parts import PoolReading, highest_pool, named
from wattune.devices.virtual_time import NEVER, VirtualDevice, VirtualTime, next_multiple
from wattune.records import ExactFigures, StepWork


class GroupGroundTruth(GroundTruth):
    """Exact accounting of a group of simulated boards: energy of all of them, and the time for which the mean power of
    the highest pool was above the cap."""

    def __init__(self, group: VirtualGroup, truths: Sequence[GroundTruth], cap_w: float | None):
        self._group, self._truths = group, tuple(truths)
        self._cap_w = NEVER if cap_w is None else cap_w
        self._begin_s = self._seen_s = group.now_s()
        self._above_s = 0.0
        self._above = False
        self._look()

    def figures(self) -> ExactFigures:
        """Joules, seconds, and seconds during which the mean power of the highest pool was above the cap."""
        now_s = self._group.now_s()
        return ExactFigures(
            energy_j=sum(truth.figures().energy_j for truth in self._truths),
            above_cap_s=self._above_s + (now_s - self._seen_s if self._above else 0.0),
            time_s=now_s - self._begin_s,
        )

    def window_mean_w(self) -> float:
        """Exact mean power of the highest pool over the window at the last refresh of its sensors."""
        return highest_pool([truth.window_mean_w() for truth in self._truths], self._group.pools)

    def move_cap(self, cap_w: float | None) -> None:
        """Count the time in which the highest pool is above this cap from now on."""
        self._look()
        self._cap_w = NEVER if cap_w is None else cap_w
        self._look()

    def state_dict(self) -> dict[str, Any]:
        """State from which a later ground truth continues, as JSON values."""
        own = {"begin_s": self._begin_s, "seen_s": self._seen_s, "above_s": self._above_s, "above": self._above}
        return {**own, "members": [truth.state_dict() for truth in self._truths]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``, on a group that has loaded its own state of the same moment."""
        self._begin_s, self._seen_s = state["begin_s"], state["seen_s"]
        self._above_s, self._above = state["above_s"], state["above"]
        for truth, own in zip(self._truths, state["members"], strict=True):
            truth.load_state_dict(own)

    def _look(self) -> None:
        now_s = self._group.now_s()
        self._above_s += now_s - self._seen_s if self._above else 0.0
        self._seen_s, self._above = now_s, self.window_mean_w() > self._cap_w


class VirtualGroup(DeviceGroup, VirtualTime):
    """Boards that compute each step at the same time, each at its own power; one that is done waits at rest."""

    members: tuple[VirtualDevice, ...]

    def __init__(self, members: Sequence[VirtualDevice], pools: Sequence[int]):
        DeviceGroup.__init__(self, members, pools)
        VirtualTime.__init__(self)
        self._truths: weakref.WeakSet[GroupGroundTruth] = weakref.WeakSet()
        latest_s = max(member.now_s() for member in members)
        for member in members:
            member._rest_until(latest_s)

    @property
    def _lanes(self) -> Sequence[VirtualDevice]:
        return self.members

    def power_w(self) -> float:
        """Present readings of all members together. Raises: SensorError."""
        watts = []
        for rank, member in enumerate(self.members):
            with named(rank, member):
                watts.append(member.power_w())
        return PoolReading.of(watts, self.pools)

    # ---------------------------------------------------------------------------------------------------------- steps

    def _check(self, work: StepWork) -> None:
        for rank, member in enumerate(self.members):
            with named(rank, member):
                member._check(work)
        self._begin_step(work)

    def _end_step(self, work: StepWork, seconds: Sequence[float]) -> None:
        if all(own_s > 0 for own_s in seconds):
            self.computed(seconds)

    def _next_look_s(self) -> float:
        if not self._truths:
            return NEVER
        now_s = self.now_s()
        return min(next_multiple(now_s, period_s) for period_s in {m.sensor.period_s for m in self.members})

    def _look(self) -> None:
        for truth in self._truths:
            truth._look()

    # ---------------------------------------------------------------------------------------------------------- exact

    def ground_truth(self, cap_w: float | None, window_s: float | None = None) -> GroupGroundTruth | None:
        """Exact accounting from now on, of the highest pool against ``cap_w``; None unless all are simulated."""
        truths = [member.ground_truth(None, window_s) for member in self.members]
        known = [truth for truth in truths if truth is not None]
        if len(known) < len(truths):
            return None
        truth = GroupGroundTruth(self, known, cap_w)
        self._truths.add(truth)
        return truth
