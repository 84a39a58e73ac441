"""Steps a second of a group of boards under one cap: equal shares of it, the group's settings, and the best split.

`python -m benchmarks groups`: groups of 2, 4 and 8 simulated boards that differ in power at equal clock, or in speed.
The group learns its balance from the times of a walk through its settings, each with a few steps on virtual time; all
rates are exact. Compared are

- equal: each board has an equal share of the cap, and its own fastest setting below it; the slowest sets the pace;
- group: the fastest of the group's settings whose sum is below the cap;
- best: of all combinations of the boards' settings, the fastest below the cap, with exact times and powers.

A simulated board that waits draws its power at rest, far less than in training at any clock: the best split then lets
one board be slow, and the others sprint and rest. Boards whose software waits actively draw more, so the last two are
also compared as if waiting drew what computing does ("spinning").
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.session_worlds import TASKS, work_of
from benchmarks.timing import keep
from wattune.devices.base import ExactStep
from wattune.devices.group import device_group
from wattune.devices.simulator.board_file import SimulatedBoard, builtin_board
from wattune.devices.simulator.simulated import SimulatedDevice
from wattune.errors import InputError
from wattune.point import BatchShape, Knobs
from wattune.records import StepWork

COUNTS = (2, 4, 8)
SPREADS = (0.08, 0.16)
"""Power of the most thirsty board over that of the thriftiest at equal clock, less one."""

SHARES = tuple(share / 40 for share in range(1, 41))
"""Caps, as shares of the way from the lowest sum of powers to the highest."""

TASK = next(task for task in TASKS if task.name == "resnet8")
STEPS, VISITS = 4, 4
"""Steps between two looks at the balance, and most looks at one setting."""

ALIKE = 1 + 1e-9


class Case(NamedTuple):
    """Boards of one group."""

    name: str
    boards: tuple[SimulatedBoard, ...]


class Member(NamedTuple):
    """Exact figures of one board: its steps by setting, and its power at rest there."""

    steps: Mapping[Knobs, ExactStep]
    rest_w: Mapping[Knobs, float]

    def mean_w(self, knobs: Knobs, step_s: float, *, spins: bool) -> float:
        """Mean power in a step of the group that takes ``step_s``."""
        own = self.steps[knobs]
        waiting_w = own.power_mean_w if spins else self.rest_w[knobs]
        return (own.power_mean_w * own.step_s + waiting_w * (step_s - own.step_s)) / step_s


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    if arguments:
        raise InputError("arguments of groups", value=" ".join(arguments), allowed="none")
    work = work_of(TASK, BatchShape(TASK.user, TASK.user))
    keep("groups", {"workload": TASK.name, "cases": [compared(case, work) for case in cases()]})


def cases() -> Iterator[Case]:
    """Groups of each size: of boards that differ in power, and of boards that differ in speed."""
    for count in COUNTS:
        for name in ("jetson-nano", "jetson-tx2-nx"):
            for spread in SPREADS:
                factors = [1 - spread / 2 + spread * rank / (count - 1) for rank in range(count)]
                boards = [thirstier(builtin_board(name), factor) for factor in factors]
                yield Case(f"{count} x {name}, power spread {spread:.0%}", tuple(boards))
        nano, tx2 = builtin_board("jetson-nano"), builtin_board("jetson-tx2-nx")
        half = count // 2
        yield Case(f"{half} x jetson-nano + {half} x one twice as fast", (nano, faster(nano)) * half)
        yield Case(f"{half} x jetson-nano + {half} x jetson-tx2-nx", (nano, tx2) * half)


def thirstier(board: SimulatedBoard, factor: float) -> SimulatedBoard:
    """The board with ``factor`` times the power at every clock."""
    scaled = {name: value * factor for name, value in board.power.model_dump().items() if "w" in name.split("_")}
    return board.model_copy(update={"power": board.power.model_copy(update=scaled)})


def faster(board: SimulatedBoard, factor: float = 2.0) -> SimulatedBoard:
    """The board with ``factor`` times the speed in everything, at the same power."""
    memory, host = board.memory, board.host
    rates = ("achieved_gbps", "optimizer_gbps", "bandwidth_gbps")
    times = ("s_per_operation", "s_per_optimizer_operation", "sample_factor")
    peaks = {name: gflops * factor for name, gflops in board.gpu.peak_gflops.items()}
    return board.model_copy(
        update={
            "gpu": board.gpu.model_copy(update={"peak_gflops": peaks}),
            "memory": memory.model_copy(update={name: getattr(memory, name) * factor for name in rates}),
            "host": host.model_copy(update={name: getattr(host, name) / factor for name in times}),
        }
    )


def compared(case: Case, work: StepWork) -> dict[str, Any]:
    """Ratios of steps a second over the caps that both can stay below, and how many equal shares cannot."""
    devices = [SimulatedDevice(board, seed=rank) for rank, board in enumerate(case.boards)]
    members = members_of(devices, work)
    settings = learned(devices, work)
    low_w = sum(min(step.power_mean_w for step in member.steps.values()) for member in members)
    high_w = sum(max(step.power_mean_w for step in member.steps.values()) for member in members)
    ratios: dict[str, list[float]] = {"of_equal": [], "of_equal_upper_half": [], "of_best": [], "of_best_spinning": []}
    lost = {"equal": 0, "group": 0}
    for share in SHARES:
        cap_w = low_w + share * (high_w - low_w)
        equal, group = equal_shares(members, cap_w), of_group(members, settings, cap_w, spins=False)
        lost["equal"] += equal is None
        lost["group"] += group is None
        if equal and group:
            ratios["of_equal"].append(group / equal)
            ratios["of_equal_upper_half"] += [group / equal] if share > 0.5 else []
        for name, spins in (("of_best", False), ("of_best_spinning", True)):
            own, most = of_group(members, settings, cap_w, spins=spins), best(members, cap_w, spins=spins)
            if own and most:
                ratios[name].append(own / most)
    figures = {name: summary(values) for name, values in ratios.items()}
    print(case.name, {name: tuple(round(value, 3) for value in own.values()) for name, own in figures.items()}, lost)
    return {"group": case.name, "caps": len(SHARES), "impossible": lost, **figures}


def members_of(devices: Sequence[SimulatedDevice], work: StepWork) -> list[Member]:
    """Exact figures of these boards."""
    return [
        Member(exact, {knobs: rest_w for knobs in exact if (rest_w := device._exact_rest_w(knobs)) is not None})
        for device, exact in ((device, device.exact_steps(work)) for device in devices)
    ]


def learned(devices: Sequence[SimulatedDevice], work: StepWork) -> list[tuple[Knobs, ...]]:
    """Settings of all members at each setting of the group, after a walk from its safest one upwards."""
    group = device_group(devices)
    with group.at(group.safest):
        for _ in range(STEPS):
            with group.step(work):
                pass
    group.choose_reference()
    for knobs in group.combinations():
        with group.at(knobs):
            for _ in range(VISITS):
                for _ in range(STEPS):
                    with group.step(work):
                        pass
                if not group.rebalance():
                    break
    return [group.member_settings(knobs) for knobs in group.combinations()]


def equal_shares(members: Sequence[Member], cap_w: float) -> float | None:
    """Steps a second if each board keeps an equal share of the cap; None if one cannot."""
    paces_s = []
    for member in members:
        below_s = [s.step_s for s in member.steps.values() if s.power_mean_w <= cap_w / len(members)]
        if not below_s:
            return None
        paces_s.append(min(below_s))
    return 1 / max(paces_s)


def of_group(
    members: Sequence[Member], settings: Sequence[tuple[Knobs, ...]], cap_w: float, *, spins: bool
) -> float | None:
    """Steps a second of the group's fastest setting below the cap; None without one."""
    rates = []
    for row in settings:
        step_s = max(member.steps[knobs].step_s for member, knobs in zip(members, row, strict=True))
        pairs = zip(members, row, strict=True)
        if sum(member.mean_w(knobs, step_s, spins=spins) for member, knobs in pairs) <= cap_w:
            rates.append(1 / step_s)
    return max(rates, default=None)


def best(members: Sequence[Member], cap_w: float, *, spins: bool) -> float | None:
    """Steps a second of the fastest combination below the cap; None without one.

    In a step of a given length one board takes just that long, and each other one draws the least of its settings that
    take no longer: this is the lowest sum of all combinations that take so long.
    """
    for step_s in sorted({step.step_s for member in members for step in member.steps.values()}):
        least_w, extra_w = 0.0, []
        for member in members:
            in_time = {
                knobs: member.mean_w(knobs, max(step_s, own.step_s), spins=spins)
                for knobs, own in member.steps.items()
                if own.step_s <= step_s * ALIKE
            }
            if not in_time:
                break
            least_w += min(in_time.values())
            exact = [watts for knobs, watts in in_time.items() if member.steps[knobs].step_s * ALIKE >= step_s]
            extra_w += [min(exact) - min(in_time.values())] if exact else []
        else:
            if least_w + min(extra_w) <= cap_w:
                return 1 / step_s
    return None


def summary(ratios: Sequence[float]) -> dict[str, float]:
    """The least, the median, the mean and the highest ratio."""
    return {
        "least": min(ratios),
        "median": statistics.median(ratios),
        "mean": statistics.mean(ratios),
        "highest": max(ratios),
    }


if __name__ == "__main__":
    main()
