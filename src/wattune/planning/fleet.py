"""A round of federated training: the operating point and the local steps of each client, so that all end together.

Two decisions, one after the other. The split: at the fastest points that their caps allow, the clients share the steps
of the round so that it ends soonest. The pace: each client then takes the point that needs the least energy for its
steps and still ends with the round, which a deadline or a number of joules can make longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from wattune.cap import PowerCap
from wattune.errors import InputError, did_you_mean
from wattune.point import OperatingPoint
from wattune.records import ProfileTable
from wattune.search.observation import capped_powers

Split = Literal["speed", "even"]
"""Rule for the steps of a round: by speed, so that all clients end together, or the same number for each."""

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

    ``energy_j``: joules that it may still use (None: no limit); ``rest_w``: its power while it waits for the others,
    which is not charged to training (0: unknown); ``fixed_s``: seconds of a round beside its steps.
    """

    name: str
    points: tuple[LocalPoint, ...]
    energy_j: float | None = None
    rest_w: float = 0.0
    fixed_s: float = 0.0

    def price_j(self, point: LocalPoint) -> float:
        """Joules of a step above what the client would use at rest."""
        return max(0.0, point.power_w - self.rest_w) * point.step_s

    def ends_s(self, point: LocalPoint, steps: int) -> float:
        """Seconds after which this many steps are done."""
        return self.fixed_s + steps * point.step_s

    def most_steps(self, seconds: float) -> int:
        """The most steps that it can do in this time, with the energy that it has."""
        return max((self._steps_at(point, seconds) for point in self.points), default=0)

    def cheapest(self, steps: int, seconds: float) -> LocalPoint | None:
        """The point that needs the least energy for these steps in this time; None if no point can do them."""
        able = [point for point in self.points if self._steps_at(point, seconds) >= steps]
        return min(able, key=lambda point: (self.price_j(point), point.step_s), default=None)

    def _steps_at(self, point: LocalPoint, seconds: float) -> int:
        spare_s = seconds - self.fixed_s
        most = max(0, math.floor(spare_s / point.step_s))
        # A round that is as long as these steps take has room for them, whatever the division was rounded to.
        most += self.ends_s(point, most + 1) <= seconds
        if self.energy_j is None:
            return most
        return min(most, math.floor(self.energy_j / (point.power_w * point.step_s)))


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


def points_under(profile: ProfileTable, cap: PowerCap, batch_size: int | None = None) -> tuple[LocalPoint, ...]:
    """The measured points that stay under the cap, by ascending time of a step; empty if none does.

    ``batch_size``: that of the recipe; None for the only one of the profile. Raises: InputError for a batch size that
    was not measured, several without a choice, and a cap at a supply that is not known.
    """
    limit = cap.at_sensor(profile.supply, profile.sensor_window_s)
    sizes = profile.batch_sizes
    allowed = ", ".join(map(str, sizes))
    if batch_size is None and len(sizes) != 1:
        raise InputError("the batch size is missing", allowed=allowed)
    if batch_size is not None and batch_size not in sizes:
        hint = did_you_mean(batch_size, sizes)
        raise InputError("the profile has no batch size", value=batch_size, allowed=allowed, hint=hint)
    capped_w = capped_powers(profile, limit.window_s)
    points = []
    for cell in profile.measured:
        if cell.batch_size == (batch_size or sizes[0]) and limit.allows(capped_w(cell)):
            assert cell.step_s is not None  # a measured cell has both
            assert cell.power_mean_w is not None
            points.append(LocalPoint(cell.point, cell.step_s, cell.power_mean_w))
    return tuple(sorted(points, key=lambda one: (one.step_s, one.power_w)))


def plan_round(
    clients: Sequence[FleetClient],
    *,
    steps: int,
    split: Split = "speed",
    deadline_s: float | None = None,
    energy_j: float | None = None,
) -> RoundPlan:
    """Plan a round of ``steps`` local steps a client on average.

    ``split``: "speed" keeps the sum of the steps and shares it so that the round ends soonest, with a step or more for
    each client; "even" gives each client the same. ``deadline_s``: the round may take this long, and needs less energy
    for it. ``energy_j``: joules of all steps, for which the round takes as long as it has to.

    A client that has no point under its cap, or no energy left for a step, takes no part.

    Raises: InputError for a deadline that no split meets, naming the earliest; for an energy that no pace meets, naming
    the least; and if no client can take part.
    """
    if split not in get_args(Split):
        raise InputError("split", value=split, allowed=", ".join(get_args(Split)))
    if steps < 1:
        raise InputError("steps", value=steps, allowed="1 or more")
    if deadline_s is not None and energy_j is not None:
        raise InputError("the bounds of a round", value="deadline_s, energy_j", allowed="one of them")
    able, left_out = [], {}
    for client in clients:
        if not client.points:
            left_out[client.name] = "no measured point stays under its cap"
        elif _ever(client, 1) < 1:
            left_out[client.name] = "no energy left for a step"
        else:
            able.append(client)
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError("no client can take part in the round", value=reasons or "no client")
    shares = _even(able, steps) if split == "even" else _by_speed(able, steps)
    soonest_s = max(client.ends_s(_fastest(client, share), share) for client, share in zip(able, shares, strict=True))
    if deadline_s is not None and deadline_s < soonest_s:
        hint = "allow more time, or ask for fewer steps"
        raise InputError("deadline_s", value=deadline_s, allowed=f"{soonest_s:.4g} s or more", hint=hint)
    if energy_j is None:
        return _paced(able, shares, max(soonest_s, deadline_s or 0.0), left_out)
    return _within(able, shares, soonest_s, energy_j, left_out)


def slowed(client: FleetClient, factor: float) -> FleetClient:
    """The client with steps that take ``factor`` times as long as its profile says, at the same power."""
    points = tuple(point._replace(step_s=factor * point.step_s) for point in client.points)
    return replace(client, points=points)


def _even(clients: Sequence[FleetClient], steps: int) -> list[int]:
    """The same number of steps for each, or those that its energy suffices for."""
    return [min(steps, _ever(client, steps)) for client in clients]


def _by_speed(clients: Sequence[FleetClient], steps: int) -> list[int]:
    """Shares of ``steps`` a client that end soonest, one step or more each."""
    total = sum(_ever(client, steps * len(clients)) for client in clients)
    wanted = max(len(clients), min(steps * len(clients), total))  # less if their energy does not suffice

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
            key=lambda index: clients[index].ends_s(_fastest(clients[index], shares[index]), shares[index]),
        )
        shares[last] -= 1
    return shares


def _ever(client: FleetClient, steps: int) -> int:
    """The steps, of this many, that the client's energy suffices for."""
    if client.energy_j is None:
        return steps
    return min(steps, math.floor(client.energy_j / min(one.power_w * one.step_s for one in client.points)))


def _fastest(client: FleetClient, steps: int) -> LocalPoint:
    """The fastest point at which the client's energy suffices for these steps."""
    most_j = math.inf if client.energy_j is None else client.energy_j
    able = [one for one in client.points if one.power_w * one.step_s * steps <= most_j]
    return min(able or client.points, key=lambda one: one.step_s)


def _paced(
    clients: Sequence[FleetClient], shares: Sequence[int], seconds: float, left_out: dict[str, str]
) -> RoundPlan:
    """Each client at its cheapest point that ends in time."""
    parts = []
    for client, share in zip(clients, shares, strict=True):
        one = client.cheapest(share, seconds) or _fastest(client, share)
        parts.append(
            ClientRound(client.name, one.point, share, client.ends_s(one, share), share * one.power_w * one.step_s)
        )
    return RoundPlan(seconds, tuple(parts), left_out)


def _within(
    clients: Sequence[FleetClient],
    shares: Sequence[int],
    soonest_s: float,
    energy_j: float,
    left_out: dict[str, str],
) -> RoundPlan:
    """The shortest round whose steps need no more than ``energy_j``, among the instants at which a client could end."""
    ends = {client.ends_s(one, n) for client, n in zip(clients, shares, strict=True) for one in client.points}
    instants = sorted({soonest_s, *(end_s for end_s in ends if end_s > soonest_s)})
    least = math.inf
    for seconds in instants:
        # The budget counts all joules of the steps, and so does their price here.
        plan = _paced([replace(client, rest_w=0.0) for client in clients], shares, seconds, left_out)
        if plan.energy_j <= energy_j:
            return plan
        least = min(least, plan.energy_j)
    hint = "allow more energy, or ask for fewer steps"
    raise InputError("energy_j", value=energy_j, allowed=f"{least:.4g} J or more a round", hint=hint)
