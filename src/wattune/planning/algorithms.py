"""The third choice beside batch size and clock: the training algorithm.

It minimises T(a, b, f) x N(a, b), device seconds per sample times samples to target, over algorithms a, batch sizes b
and clocks f, with a peak power of at most the cap and a memory of at most the limit; or what another goal counts. N is
absolute, so that algorithms can be compared; it is reported relative to that of backprop at its reference batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from wattune.errors import CapError, NoFeasiblePoint, RecordError
from wattune.goal import TIME, Goal
from wattune.planning.candidates import needed, why_too_large
from wattune.planning.objective import MORE
from wattune.planning.plan import plan
from wattune.planning.table import learns_as
from wattune.records import AlgorithmChoice, Plan, ProfileTable, SampleEfficiency

REFERENCE = "backprop"
"""The algorithm that the samples of all others are relative to."""


def plan_algorithms(
    profiles: Sequence[ProfileTable],
    curves: Sequence[SampleEfficiency],
    *,
    goal: Goal = TIME,
    memory_bytes: float | None = None,
    **arguments: Any,
) -> Plan:
    """The plan of the algorithm that is best for the goal, with the best point of each other one in ``algorithms``.

    By default it reaches the target first. A slowdown is relative to the fastest point of all algorithms.

    Takes one profile for each algorithm, and one curve for each kind of gradient: checkpointing does not change
    backprop's gradients, so both share a curve. All profiles are of one workload on one device, all curves of one
    workload and target. The rest is as in ``plan``, which is called for each profile. A tie goes to the first profile.

    Raises: CapError or NoFeasiblePoint if nothing can be chosen with any algorithm, with the reason for the first;
    RecordError if the records do not belong together, a curve is missing or has no absolute samples; InputError.
    """
    pairs = _paired(profiles, curves)
    reference = next((curve for curve in curves if learns_as(curve.algorithm) == REFERENCE), None)
    if reference is None:
        raise RecordError(
            "there is no efficiency record of backprop, which samples are counted relative to",
            value=", ".join(curve.algorithm for curve in curves),
            hint="give the record of backprop as well",
        )
    best = partial(plan, memory_bytes=memory_bytes, **arguments)
    bounded = goal
    if goal.max_slowdown is not None:
        times_s = [_seconds(one.plan) for one in (_attempt(*pair, best) for pair in pairs) if one.plan is not None]
        if times_s:
            until_s = (1 + goal.max_slowdown) * min(times_s) * (1 + 1e-9)  # products of the same figures may differ
            bounded = replace(goal, max_slowdown=None, deadline_s=until_s)
    attempts = [_attempt(*pair, partial(best, goal=bounded)) for pair in pairs]
    chosen = min((one.plan for one in attempts if one.plan is not None), key=partial(_order, goal=goal), default=None)
    if chosen is None:
        raise next(one.why_not for one in attempts if one.why_not is not None)
    entries = tuple(_entry(one, chosen, reference, memory_bytes, goal) for one in attempts)
    cost = _cost(chosen, entries, reference, goal)
    return chosen.model_copy(update={"goal": goal, "algorithms": entries, "algorithm_cost": cost})


class _Attempt(NamedTuple):
    profile: ProfileTable
    curve: SampleEfficiency
    plan: Plan | None
    why_not: CapError | NoFeasiblePoint | None


def _attempt(
    profile: ProfileTable, curve: SampleEfficiency, best: Callable[[ProfileTable, SampleEfficiency], Plan]
) -> _Attempt:
    try:
        result = best(profile, curve)
    except (CapError, NoFeasiblePoint) as error:
        return _Attempt(profile, curve, None, error)
    if result.predicted_s is None:  # its curve has absolute samples
        why_not = NoFeasiblePoint("the caps end in a pause before the target", value=profile.algorithm)
        return _Attempt(profile, curve, None, why_not)
    return _Attempt(profile, curve, result, None)


def _paired(
    profiles: Sequence[ProfileTable], curves: Sequence[SampleEfficiency]
) -> list[tuple[ProfileTable, SampleEfficiency]]:
    """Each profile with its curve."""
    _alike("profile", [(p.algorithm, _about(p)) for p in profiles])
    _alike("efficiency record", [(c.algorithm, {"workload": c.workload, "target": c.target}) for c in curves])
    names = [profile.algorithm for profile in profiles]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RecordError("two profiles are of one training algorithm", value=twice, hint="give one of them")
    by_kind: dict[str, SampleEfficiency] = {}
    for curve in curves:
        kind = learns_as(curve.algorithm)
        if kind in by_kind:
            both = f"{by_kind[kind].algorithm}, {curve.algorithm}"
            raise RecordError("two efficiency records are of the same gradients", value=both, hint="give one of them")
        if curve.reference_samples is None:
            raise RecordError(
                "an efficiency record without absolute samples cannot be compared with another algorithm's",
                value=curve.algorithm,
                allowed=f"samples at its reference batch size {curve.reference_batch_size}",
            )
        by_kind[kind] = curve
    for profile in profiles:
        if learns_as(profile.algorithm) not in by_kind:
            raise RecordError(
                "there is no efficiency record of the profile's training algorithm",
                value=profile.algorithm,
                allowed=", ".join(curve.algorithm for curve in curves),
                hint=f"wattune estimate --algorithm {learns_as(profile.algorithm)}",
            )
    return [(profile, by_kind[learns_as(profile.algorithm)]) for profile in profiles]


def _about(profile: ProfileTable) -> dict[str, object]:
    """The subject of a profile, except for its algorithm."""
    key = {} if profile.key is None else profile.key.model_dump()
    about = {"device": profile.device, "workload": profile.workload, "kind": profile.provenance.kind}
    return {**{name: value for name, value in key.items() if name != "algorithm"}, **about}


def _alike(what: str, subjects: Sequence[tuple[str, dict[str, object]]]) -> None:
    for algorithm, about in subjects[1:]:
        first = subjects[0][1]
        differences = [
            f"{name} ({about[name]}, not {first[name]})"
            for name in first
            if name in about and about[name] != first[name]
        ]
        if differences:
            raise RecordError(
                f"the {what}s do not belong together: that of {algorithm} differs in",
                value=", ".join(differences),
            )


def _order(result: Plan, goal: Goal) -> tuple[float, float]:
    """The sort key of a plan for the goal, the best first: what its energy budget does not reach comes last."""
    return -(result.reached_share or 1.0), _value(result, goal)


def _value(result: Plan, goal: Goal) -> float:
    """The quantity that the goal makes least; the time, under an energy budget; by a forecast, carbon or price."""
    seconds, joules, times = _seconds(result), result.predicted_j or 0.0, result.schedule
    if times is None:
        return seconds * float(goal.price(joules / seconds, result.rest_w))
    if goal.aim == "energy-above-rest":
        return times.predicted * (result.predicted_above_rest_j or 0.0) / joules
    return times.predicted + (times.predicted_waiting or 0.0)


def _entry(
    attempt: _Attempt, best: Plan, reference: SampleEfficiency, memory_bytes: float | None, goal: Goal
) -> AlgorithmChoice:
    profile, curve, result, error = attempt
    if result is None:
        least = min(needed(profile).values(), default=None)
        why = None
        if error is not None:
            why = "; ".join(part for part in (f"{error.what}: {error.value}", error.allowed) if part)
        if memory_bytes is not None and least is not None and least > memory_bytes:
            why = why_too_large(least, memory_bytes)
        return AlgorithmChoice(algorithm=profile.algorithm, feasible=False, memory_bytes=least, why_not=why)
    relative = curve.at(result.batch_size).relative_samples or 0.0
    times = _seconds(result) / _seconds(best)
    ratio, more = (_value(result, goal) / _value(best, goal)) ** goal.exponent, MORE[goal.aim]
    if result.schedule is not None:
        more = "more carbon" if result.schedule.unit == "gco2_per_kwh" else MORE["cost"]
    why = f"{ratio:.2f} x {more}" if ratio >= 1.01 else f"less than 1 % {more}"
    if (result.reached_share or 1.0) < (best.reached_share or 1.0):
        why = "takes more than the energy"
    return AlgorithmChoice(
        algorithm=profile.algorithm,
        feasible=True,
        **result.point.fields(),
        memory_bytes=result.predicted_memory_bytes,
        relative_samples=relative * _samples(curve) / _samples(reference),
        step_s=result.step_s,
        power_mean_w=result.power_mean_w,
        predicted_s=result.predicted_s,
        predicted_j=result.predicted_j,
        predicted_peak_w=result.predicted_peak_w,
        times_chosen=times,
        why_not=None if result is best else why,
    )


def _cost(plan: Plan, entries: Sequence[AlgorithmChoice], reference: SampleEfficiency, goal: Goal) -> str | None:
    """The cost of a gradient other than backprop's, if one was chosen, and the reason why backprop was not."""
    if learns_as(plan.algorithm) == REFERENCE:
        return None
    own = next(one for one in entries if one.algorithm == plan.algorithm)
    others = [one for one in entries if learns_as(one.algorithm) == REFERENCE]
    cost = (
        f"{plan.algorithm} needs {own.relative_samples:.3g} times the samples that backprop needs at batch size "
        f"{reference.reference_batch_size}"
    )
    feasible = [one for one in others if one.feasible]
    if feasible:
        best = min(feasible, key=lambda one: one.times_chosen or 0.0)
        if not goal.is_time:
            return f"{cost}, and is better for the goal all the same: {best.algorithm}: {best.why_not}"
        return f"{cost}, and is faster all the same: {best.algorithm} takes {best.times_chosen:.2f} times as long"
    if not others:
        return f"{cost}; no profile of backprop was given"
    # "needs ..." completes a sentence that begins with the name; other reasons are sentences of their own.
    reasons = "; ".join(
        f"{one.algorithm} {'' if str(one.why_not).startswith('needs ') else 'has no point: '}{one.why_not}"
        for one in others
    )
    return f"{cost}; it was chosen since {reasons}"


def _seconds(result: Plan) -> float:
    assert result.predicted_s is not None  # its curve has absolute samples
    return result.predicted_s


def _samples(curve: SampleEfficiency) -> float:
    assert curve.reference_samples is not None  # held by _paired
    return curve.reference_samples
