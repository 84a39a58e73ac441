"""Properties of a group, put together from those of its members."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from wattune.devices.base import Conditions, Device, Sensor
from wattune.errors import DeviceError, InputError
from wattune.records import BoardEvent, Supply


class PoolReading(float):
    """A reading of all members together, in watts; ``highest_w`` is that of the highest pool."""

    highest_w: float

    @classmethod
    def of(cls, watts: Sequence[float], pools: Sequence[int]) -> PoolReading:
        """The reading of members that draw ``watts``, each in its pool."""
        reading = cls(sum(watts))
        reading.highest_w = highest_pool(watts, pools)
        return reading


def highest_pool(watts: Sequence[float], pools: Sequence[int]) -> float:
    """The highest sum of a pool, of members that draw ``watts``."""
    return max(sum(watts[i] for i, other in enumerate(pools) if other == pool) for pool in set(pools))


def label(rank: int, device: Device) -> str:
    """The member in a sentence."""
    return f"rank {rank} ({device.name})"


@contextmanager
def named(rank: int, device: Device) -> Iterator[None]:
    """Name the member in errors that are raised inside."""
    try:
        yield
    except (DeviceError, InputError) as error:
        error.args = (f"{label(rank, device)}: {error}",)
        raise


def texts(words: Sequence[str]) -> str:
    """Each of these once."""
    return " + ".join(dict.fromkeys(words))


def combined_sensor(sensors: Sequence[Sensor]) -> Sensor:
    """Properties of the sum of these sensors' readings: independent errors add in quadrature, and the sum is as late
    as the latest."""
    return Sensor(
        rail=texts([sensor.rail for sensor in sensors]),
        resolution_w=math.hypot(*(sensor.resolution_w for sensor in sensors)),
        period_s=max(sensor.period_s for sensor in sensors),
        window_s=max(sensor.window_s for sensor in sensors),
        lag_s=max(sensor.lag_s for sensor in sensors),
        noise_w=math.hypot(*(sensor.noise_w for sensor in sensors)),
        covers=texts([sensor.covers for sensor in sensors if sensor.covers]),
    )


def guarded_sensor(sensors: Sequence[Sensor], pools: Sequence[int]) -> Sensor:
    """Properties of the reading of one pool, the noisiest."""
    pooled = [[s for s, other in zip(sensors, pools, strict=True) if other == pool] for pool in set(pools)]
    each = [combined_sensor(own) for own in pooled]
    return replace(
        combined_sensor(sensors),
        resolution_w=max(sensor.resolution_w for sensor in each),
        noise_w=max(sensor.noise_w for sensor in each),
    )


def combined_supply(members: Sequence[Device], pools: Sequence[int]) -> Supply | None:
    """Losses of a pool between its supply and its sensors, at worst; None if they are not known of every member."""
    supplies = [member.supply for member in members if member.supply is not None]
    if len(supplies) < len(members):
        return None
    return Supply(
        other_w=highest_pool([supply.other_w for supply in supplies], pools),
        efficiency=min(supply.efficiency for supply in supplies),
    )


def combined_conditions(members: Sequence[Device]) -> Conditions:
    """The hottest member's temperature, and what holds any of them back, each with its member."""
    each = [member.conditions() for member in members]

    def total(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    over_current = total([own.over_current for own in each])
    return Conditions(
        temperature_c=max((own.temperature_c for own in each if own.temperature_c is not None), default=None),
        throttled=tuple(
            f"{reason} of {label(i, members[i])}" for i, own in enumerate(each) for reason in own.throttled
        ),
        over_current=None if over_current is None else int(over_current),
        swapped_bytes=total([own.swapped_bytes for own in each]),
        notices=tuple(f"{notice} of {label(i, members[i])}" for i, own in enumerate(each) for notice in own.notices),
    )


def combined_events(members: Sequence[Device], now_s: float) -> tuple[BoardEvent, ...]:
    """The members' events, each with its member, in the group's time, in which it is ``now_s``."""
    events = []
    for rank, member in enumerate(members):
        for event in member.events():
            time_s = max(0.0, event.time_s + now_s - member.now_s())
            events.append(BoardEvent(time_s=time_s, kind=event.kind, text=f"{label(rank, member)}: {event.text}"))
    return tuple(sorted(events, key=lambda event: event.time_s))
