"""A round of federated training: the operating point and the local steps of each client, so that all end together.

Two decisions, one after the other. The split: at the fastest points that their caps allow, the clients share the steps
of the round so that it ends soonest. The pace: each client then takes the point that needs the least energy for its
steps and still ends with the round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from wattune.cap import PowerCap
from wattune.errors import InputError, did_you_mean
from wattune.point import OperatingPoint
from wattune.records import ProfileTable
from wattune.search.observation import capped_powers

HALVINGS = 200
"""Most halvings of an interval of seconds: by then its ends are neighbouring floats."""


class LocalPoint(NamedTuple):
    """An operating point that a client can hold under its cap: seconds of a step, and its mean power in watts."""

    point: OperatingPoint
    step_s: float
    power_w: float


@dataclass(frozen=True)
class FleetClient:
    """A client of a fleet: its name, and the points that its cap allows (none: it takes no part).

    ``fixed_s``: seconds of a round beside its steps.
    """

    name: str
    points: tuple[LocalPoint, ...]
    fixed_s: float = 0.0

    @property
    def fastest(self) -> LocalPoint:
        """The fastest point."""
        return min(self.points, key=lambda one: one.step_s)

    def ends_s(self, point: LocalPoint, steps: int) -> float:
        """Seconds after which this many steps are done."""
        return self.fixed_s + steps * point.step_s

    def most_steps(self, seconds: float) -> int:
        """The most steps that it can do in this time."""
        return self._steps_at(self.fastest, seconds)

    def cheapest(self, steps: int, seconds: float) -> LocalPoint:
        """The point that needs the least energy for these steps in this time; the fastest if no point can do them."""
        able = [point for point in self.points if self._steps_at(point, seconds) >= steps]
        return min(able or [self.fastest], key=lambda point: (point.power_w * point.step_s, point.step_s))

    def _steps_at(self, point: LocalPoint, seconds: float) -> int:
        most = max(0, math.floor((seconds - self.fixed_s) / point.step_s))
        # A round that is as long as these steps take has room for them, whatever the division was rounded to.
        return most + (self.ends_s(point, most + 1) <= seconds)


class ClientRound(NamedTuple):
    """Part of a client in a round. ``seconds`` until it is done, and ``energy_j`` joules of its steps."""

    name: str
    point: OperatingPoint
    steps: int
    seconds: float
    energy_j: float


class RoundPlan(NamedTuple):
    """A round: its seconds, the part of each client, and why others take no part (name -> reason)."""

    seconds: float
    parts: tuple[ClientRound, ...]
    left_out: dict[str, str]

    @property
    def energy_j(self) -> float:
        """Joules of all steps."""
        return math.fsum(part.energy_j for part in self.parts)


def points_under(profile: ProfileTable, cap: PowerCap, batch_size: int) -> tuple[LocalPoint, ...]:
    """The measured points that stay under the cap, by ascending time of a step; empty if none does.

    ``batch_size``: of the recipe. Raises: InputError for a batch size that was not measured, and a cap at a supply that
    is not known.
    """
    limit = cap.at_sensor(profile.supply, profile.sensor_window_s)
    sizes = profile.batch_sizes
    if batch_size not in sizes:
        hint = did_you_mean(batch_size, sizes)
        raise InputError(
            "the profile has no batch size", value=batch_size, allowed=", ".join(map(str, sizes)), hint=hint
        )
    capped_w = capped_powers(profile, limit.window_s)
    points = []
    for cell in profile.measured:
        if cell.batch_size == batch_size and limit.allows(capped_w(cell)):
            assert cell.step_s is not None  # a measured cell has both
            assert cell.power_mean_w is not None
            points.append(LocalPoint(cell.point, cell.step_s, cell.power_mean_w))
    return tuple(sorted(points, key=lambda one: (one.step_s, one.power_w)))


def plan_round(clients: Sequence[FleetClient], *, steps: int) -> RoundPlan:
    """Plan a round of ``steps`` local steps a client on average.

    The sum of the steps is shared so that the round ends soonest, with a step or more for each client. A client that
    has no point under its cap takes no part. Raises: InputError if no client can take part.
    """
    if steps < 1:
        raise InputError("steps", value=steps, allowed="1 or more")
    able = [client for client in clients if client.points]
    left_out = {client.name: "no measured point stays under its cap" for client in clients if not client.points}
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError("no client can take part in the round", value=reasons or "no client")
    shares = _by_speed(able, steps * len(able))
    seconds = max(client.ends_s(client.fastest, share) for client, share in zip(able, shares, strict=True))
    parts = []
    for client, share in zip(able, shares, strict=True):
        one = client.cheapest(share, seconds)
        parts.append(
            ClientRound(client.name, one.point, share, client.ends_s(one, share), share * one.power_w * one.step_s)
        )
    return RoundPlan(seconds, tuple(parts), left_out)


def slowed(client: FleetClient, factor: float) -> FleetClient:
    """The client with steps that take ``factor`` times as long as its profile says, at the same power."""
    points = tuple(point._replace(step_s=factor * point.step_s) for point in client.points)
    return replace(client, points=points)


def _by_speed(clients: Sequence[FleetClient], wanted: int) -> list[int]:
    """Shares of ``wanted`` steps that end soonest, one step or more each."""

    def done(seconds: float) -> list[int]:
        return [max(1, client.most_steps(seconds)) for client in clients]

    low_s, high_s = 0.0, 1.0
    while sum(done(high_s)) < wanted:
        high_s *= 2
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        if not low_s < middle_s < high_s:
            break
        low_s, high_s = (low_s, middle_s) if sum(done(middle_s)) >= wanted else (middle_s, high_s)
    shares = done(high_s)
    for _ in range(sum(shares) - wanted):  # clients that end at the same instant can be a few steps too many
        last = max(
            (index for index, share in enumerate(shares) if share > 1),
            key=lambda index: clients[index].ends_s(clients[index].fastest, shares[index]),
        )
        shares[last] -= 1
    return shares
