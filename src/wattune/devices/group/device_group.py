"""A group of devices as one device: the part that virtual and real time have in common."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices.base import Conditions, Device, Sensor
from wattune.devices.group import parts
from wattune.devices.group.balance import Balance
from wattune.errors import DeviceError, InputError
from wattune.point import Knobs
from wattune.records import BoardEvent, StepWork


class DeviceGroup(Device):
    """Devices that compute the same work in every step and wait for the slowest.

    A setting of the group is one of its widest member's, up to which all members may go; each has the lowest setting
    that makes it as fast as the slowest (``Balance``). Members of the same pool share one cap: a cap is compared with
    the highest sum of a pool, and energy is the sum over all members. ``pools``: the pool of each member.
    """

    def __init__(self, members: Sequence[Device], pools: Sequence[int]):
        self.group = self
        self.members = tuple(members)
        self.pools = tuple(pools)
        counts = Counter(member.name for member in members)
        self.name = " + ".join(f"{count} x {name}" for name, count in counts.items())
        self.mode = parts.texts([member.mode for member in members])
        kinds = {member.kind for member in members}
        self.kind = kinds.pop() if len(kinds) == 1 else "simulated"  # what nobody has measured decides
        self.spec = ", ".join(member.spec for member in members)
        self.trains_on = members[0].trains_on  # rank 0 runs in the process that has the group
        self.shares_memory = any(member.shares_memory for member in members)
        self.data_types = frozenset.intersection(*(member.data_types for member in members))
        sizes_bytes = [member.memory_bytes for member in members if member.memory_bytes is not None]
        self.memory_bytes = min(sizes_bytes, default=None)
        self.problems = tuple(dict.fromkeys(problem for member in members for problem in member.problems))
        self.supply = parts.combined_supply(members, pools)
        most_w = [member.highest_w for member in members if member.highest_w is not None]
        self.highest_w = parts.highest_pool(most_w, pools) if len(most_w) == len(members) else None
        sensors = [member.sensor for member in members]
        self.sensor = parts.combined_sensor(sensors)
        self._guarded_sensor = parts.guarded_sensor(sensors, pools)
        self.balance = Balance([member.knobs[0] for member in members]) if members[0].knobs else None
        self._widest = 0 if self.balance is None else self.balance.widest
        self.knobs = members[self._widest].knobs
        self._table = {} if self.balance is None else self.balance.table()
        self.compute_s: tuple[float, ...] = ()
        """Each member's own computing time in the last step, in seconds, without waiting for others."""
        self._changing = threading.RLock()
        self._set: Knobs | None = None  # inside ``at``
        self._changes = 0
        self._begun: tuple[Hashable, int] | None = None  # the work of the step under way, and ``_changes`` then

    # ---------------------------------------------------------------------------------------------------------- power

    def guarded_w(self, power_w: float) -> float:
        """The sum of the highest pool, of a result of ``power_w``; of any other number, that number."""
        return power_w.highest_w if isinstance(power_w, parts.PoolReading) else power_w

    @property
    def guarded_sensor(self) -> Sensor:
        """Properties of the reading of one pool."""
        return self._guarded_sensor

    def arm_guard(self, limit: SensorLimit) -> None:
        """Arm each member's guard; with the temperature alone if members share a cap. Raises: DeviceError."""
        if self._shares_caps:
            if limit.max_temp_c is None:
                return
            limit = replace(limit, limit_w=None)
        for rank, member in enumerate(self.members):
            with parts.named(rank, member):
                member.arm_guard(limit)

    @property
    def set_cap_w(self) -> float | None:
        """The lowest cap that another client of a member's guard set; None if members share a cap."""
        set_w = [] if self._shares_caps else [member.set_cap_w for member in self.members]
        return min((watts for watts in set_w if watts is not None), default=None)

    @property
    def _shares_caps(self) -> bool:
        return len(set(self.pools)) < len(self.members)

    # -------------------------------------------------------------------------------------------------------- balance

    def computed(self, seconds: Sequence[float]) -> None:
        """Learn each member's own computing time in the last step, in seconds, without waiting for others."""
        self.compute_s = tuple(seconds)
        begun, settings = self._begun, [member.current() for member in self.members]
        if self.balance is None or begun is None or begun[1] != self._changes:
            return  # of two settings
        values = [knobs.first for knobs in settings if knobs and knobs.first is not None]
        if len(values) == len(self.members):
            self.balance.observe(begun[0], values, seconds)

    def rebalance(self) -> bool:
        """Let the members follow the slowest by the times that were observed. Call it between two steps.

        Returns: True if members were set to other values, so that readings and times of before are of another setting.
        Raises: DeviceError.
        """
        if self.balance is None:
            return False
        with self._changing:
            before, self._table = self._table, self.balance.table(self._table)
            knobs = self._set
            if knobs is None or before[knobs[self.knobs[0].name]] == self._table[knobs[self.knobs[0].name]]:
                return False
            self._apply(knobs)
            return True

    def member_settings(self, knobs: Knobs) -> tuple[Knobs, ...]:
        """Settings of all members at a setting of the group."""
        if not self.knobs:
            return tuple(Knobs() for _ in self.members)
        values = self._table[knobs[self.knobs[0].name]]
        return tuple(Knobs({member.knobs[0].name: value}) for member, value in zip(self.members, values, strict=True))

    def _begin_step(self, work: StepWork) -> None:
        self._begun = (work.samples, work.micro_batch_size, work.flops), self._changes

    # ------------------------------------------------------------------------------------------------------- settings

    def current(self) -> Knobs | None:
        """The group's setting inside ``at``, otherwise the widest member's."""
        return self._set or self.members[self._widest].current()

    def clock_mhz(self) -> float | None:
        """The clock of the widest member."""
        return self.members[self._widest].clock_mhz()

    def _apply(self, knobs: Knobs) -> None:
        with self._changing:
            settings = self.member_settings(knobs)
            self._changes += 1
            # Those that fall first, so that at no time all of them draw more than before or afterwards.
            for rank in sorted(range(len(settings)), key=lambda rank: self._rises(rank, settings[rank])):
                with parts.named(rank, self.members[rank]):
                    self.members[rank]._apply(settings[rank])
            self._set = knobs

    def _rises(self, rank: int, knobs: Knobs) -> bool:
        before, knob = self.members[rank].current(), self.members[rank].knobs[0]
        if not before:
            return False
        return knob.by_power.index(knobs[knob.name]) > knob.by_power.index(before[knob.name])

    def _snapshot(self) -> object:
        return self._set, [member._snapshot() for member in self.members]

    def _restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, tuple)
        with self._changing:
            self._set, snapshots = snapshot
            self._changes += 1
            self._for_each(lambda member, own: member._restore(own), snapshots)

    # ------------------------------------------------------------------------------------------------------- the rest

    def conditions(self) -> Conditions:
        """The hottest temperature, and what holds back any of the members."""
        return parts.combined_conditions(self.members)

    def events(self) -> tuple[BoardEvent, ...]:
        """The members' events since the last call."""
        return parts.combined_events(self.members, self.now_s())

    def state_dict(self) -> dict[str, Any] | None:
        """State of all members and of their balance, as JSON values; None if a member has none."""
        states = [member.state_dict() for member in self.members]
        if any(state is None for state in states):
            return None
        table = [[value, list(values)] for value, values in self._table.items()]
        own = {} if self.balance is None else {"balance": self.balance.state_dict(), "table": table}
        return {"members": states, **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``. Raises: InputError if it belongs to another group."""
        states = state["members"]
        if len(states) != len(self.members) or ("balance" in state) != (self.balance is not None):
            raise InputError("the state belongs to another group than", value=self.name)
        table = {value: tuple(values) for value, values in state.get("table", ())}
        if table.keys() != self._table.keys():  # of other members, or as an earlier version chose the levels
            raise InputError("the state belongs to another group than", value=self.name)
        for rank, (member, own) in enumerate(zip(self.members, states, strict=True)):
            with parts.named(rank, member):
                member.load_state_dict(own)
        if self.balance is not None:
            self.balance.load_state_dict(state["balance"])
            self._table = table

    def close(self) -> None:
        """Release all members. Raises: DeviceError, after doing as much as possible."""
        self._for_each(lambda member, _: member.close(), self.members)

    def _for_each(self, call: Callable[[Device, Any], None], values: Sequence[Any]) -> None:
        """Call for each member with its value, although it fails for some. Raises: DeviceError, all of them as one."""
        failures: list[DeviceError] = []
        for rank, (member, value) in enumerate(zip(self.members, values, strict=True)):
            try:
                with parts.named(rank, member):
                    call(member, value)
            except DeviceError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise DeviceError("; ".join(map(str, failures)))
