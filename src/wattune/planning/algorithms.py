"""The third choice beside batch size and clock: the training algorithm.

Minimised is T(a, b, f) x N(a, b), device seconds per sample times samples to the target, over algorithms a, batch sizes
b and clocks f, with a peak power of at most the cap and a memory of at most the limit. N is absolute, so that
algorithms can be compared; it is told relative to that of backprop at its reference batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from wattune.errors import CapError, NoPoint, RecordError
from wattune.planning.gradients import learns_as
from wattune.planning.memory import needed, why_too_large
from wattune.planning.plan import plan
from wattune.records import AlgorithmChoice, CapSide, EfficiencyCurve, OperatingPoint, Plan, ProfileTable

REFERENCE = "backprop"
"""The algorithm whose samples all others are relative to."""


def plan_algorithms(
    profiles: Sequence[ProfileTable],
    curves: Sequence[EfficiencyCurve],
    *,
    cap_w: float | None,
    cap_side: CapSide = "module",
    margin_w: float = 0.0,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """The plan of the algorithm that reaches the target first, with the best of each other one in ``algorithms``.

    One profile for each algorithm, and for each kind of gradient the curve that says how many samples it needs:
    checkpointing leaves backprop's gradients as they are, so both go by one curve, that of either. All profiles are of
    one workload on one device, all curves of one workload and target. The rest is as in ``plan``, of which one is made
    for each profile. A tie goes to the profile that stands first.

    Raises: CapError or NoPoint where nothing can be chosen with any algorithm, saying why for the first;
    RecordError where the records do not belong together, a curve is missing or has no absolute samples; InputError.
    """
    pairs = _paired(profiles, curves)
    reference = next((curve for curve in curves if learns_as(curve.algorithm) == REFERENCE), None)
    if reference is None:
        raise RecordError(
            "no efficiency record is of backprop, which samples are counted relative to",
            value=", ".join(curve.algorithm for curve in curves),
            hint="give backprop's as well",
        )
    best = partial(
        plan, cap_w=cap_w, cap_side=cap_side, margin_w=margin_w, batch_size=batch_size, memory_bytes=memory_bytes
    )
    found = [_found(profile, curve, best) for profile, curve in pairs]
    chosen = min((one.plan for one in found if one.plan is not None), key=_seconds, default=None)
    if chosen is None:
        raise next(one.why_not for one in found if one.why_not is not None)
    entries = tuple(_entry(one, chosen, reference, memory_bytes) for one in found)
    cost = _cost(chosen, entries, reference)
    return chosen.model_copy(update={"algorithms": entries, "algorithm_cost": cost})


def with_algorithm(plan: Plan, asked: str) -> Plan:
    """The plan to train with the algorithm that is asked for: this one, or the best point of that among those that it
    was chosen from. A name without options stands for the only one of that name.

    Raises: RecordError where the plan says nothing of it, or that it has no point.
    """
    if asked == plan.algorithm:
        return plan
    named = [one for one in plan.algorithms if asked == one.algorithm]
    if not named and asked == _name(plan.algorithm):
        return plan
    named = named or [one for one in plan.algorithms if asked == _name(one.algorithm)]
    if len(named) != 1:
        known = dict.fromkeys([plan.algorithm, *(one.algorithm for one in plan.algorithms)])
        raise RecordError(
            "the plan was made for another training algorithm",
            value=asked,
            allowed=", ".join(known),
            hint=f"profile with --algorithm {asked} and plan again",
        )
    (choice,) = named
    if not choice.feasible or choice.batch_size is None:
        raise RecordError(f"the plan has no point for {choice.algorithm}", value=choice.why_not)
    point = OperatingPoint(
        **{name: getattr(choice, name) for name in OperatingPoint.model_fields if hasattr(choice, name)}
    )
    return plan.model_copy(
        update={
            **point.model_dump(),
            "algorithm": choice.algorithm,
            "key": plan.key and plan.key.model_copy(update={"algorithm": choice.algorithm}),
            "step_s": choice.step_s,
            "power_mean_w": choice.power_mean_w,
            "predicted_s": choice.predicted_s,
            "predicted_j": choice.predicted_j,
            "predicted_peak_w": choice.predicted_peak_w,
            "predicted_memory_bytes": choice.memory_bytes,
            "notes": (f"trained with {choice.algorithm}, not with the plan's {plan.algorithm}, as asked for",),
            **OF_ANOTHER,
        }
    )


OF_ANOTHER: Mapping[str, object] = {
    "relative_time": None,
    "p_best": None,
    "expected_loss": None,
    "p_over_cap": None,
    "candidates": (),
    "baselines": (),
    "gain_over_caps": (),
    "profile_cost": None,
    "run_by": None,
    "robustness": None,
    "first_tenth": None,
}
"""What of a plan is known of the chosen algorithm alone, and nothing about another."""


class _Found(NamedTuple):
    profile: ProfileTable
    curve: EfficiencyCurve
    plan: Plan | None
    why_not: CapError | NoPoint | None


def _found(
    profile: ProfileTable, curve: EfficiencyCurve, best: Callable[[ProfileTable, EfficiencyCurve], Plan]
) -> _Found:
    try:
        return _Found(profile, curve, best(profile, curve), None)
    except (CapError, NoPoint) as error:
        return _Found(profile, curve, None, error)


def _paired(
    profiles: Sequence[ProfileTable], curves: Sequence[EfficiencyCurve]
) -> list[tuple[ProfileTable, EfficiencyCurve]]:
    """Each profile with its curve."""
    _alike("profile", [(p.algorithm, _about(p)) for p in profiles])
    _alike("efficiency record", [(c.algorithm, {"workload": c.workload, "target": c.target}) for c in curves])
    if twice := _twice([profile.algorithm for profile in profiles]):
        raise RecordError("two profiles are of one training algorithm", value=twice, hint="give one of them")
    known: dict[str, EfficiencyCurve] = {}
    for curve in curves:
        kind = learns_as(curve.algorithm)
        if kind in known:
            said = f"{known[kind].algorithm}, {curve.algorithm}"
            raise RecordError("two efficiency records are of the same gradients", value=said, hint="give one of them")
        if curve.reference_samples is None:
            raise RecordError(
                "an efficiency record without absolute samples cannot be compared with another algorithm's",
                value=curve.algorithm,
                allowed=f"samples at its reference batch size {curve.reference_batch_size}",
            )
        known[kind] = curve
    for profile in profiles:
        if learns_as(profile.algorithm) not in known:
            raise RecordError(
                "no efficiency record is of the profile's training algorithm",
                value=profile.algorithm,
                allowed=", ".join(curve.algorithm for curve in curves),
                hint=f"wattune estimate --algorithm {learns_as(profile.algorithm)}",
            )
    return [(profile, known[learns_as(profile.algorithm)]) for profile in profiles]


def _about(profile: ProfileTable) -> dict[str, object]:
    """What a profile is of, but for the algorithm."""
    key = {} if profile.key is None else profile.key.model_dump()
    about = {"device": profile.device, "workload": profile.workload, "kind": profile.provenance.kind}
    return {**{name: value for name, value in key.items() if name != "algorithm"}, **about}


def _alike(what: str, found: Sequence[tuple[str, dict[str, object]]]) -> None:
    for algorithm, about in found[1:]:
        first = found[0][1]
        differences = [
            f"{name} ({about[name]}, not {first[name]})"
            for name in first
            if name in about and about[name] != first[name]
        ]
        if differences:
            raise RecordError(
                f"the {what}s are not of one and the same training: that of {algorithm} differs in",
                value=", ".join(differences),
            )


def _entry(found: _Found, chosen: Plan, reference: EfficiencyCurve, memory_bytes: float | None) -> AlgorithmChoice:
    profile, curve, made, error = found
    if made is None:
        least = min(needed(profile).values(), default=None)
        why = None if error is None else _said(error)
        if memory_bytes is not None and least is not None and least > memory_bytes:
            why = why_too_large(least, memory_bytes)
        return AlgorithmChoice(algorithm=profile.algorithm, feasible=False, memory_bytes=least, why_not=why)
    relative = curve.at(made.batch_size).relative_samples or 0.0
    times = _seconds(made) / _seconds(chosen)
    return AlgorithmChoice(
        algorithm=profile.algorithm,
        feasible=True,
        **{k: v for k, v in made.point.model_dump().items() if k in AlgorithmChoice.model_fields},
        memory_bytes=made.predicted_memory_bytes,
        relative_samples=relative * _samples(curve) / _samples(reference),
        step_s=made.step_s,
        power_mean_w=made.power_mean_w,
        predicted_s=made.predicted_s,
        predicted_j=made.predicted_j,
        predicted_peak_w=made.predicted_peak_w,
        times_chosen=times,
        why_not=None if made is chosen else f"{times:.2f} x slower" if times >= 1.01 else "less than 1 % slower",
    )


def _cost(chosen: Plan, entries: Sequence[AlgorithmChoice], reference: EfficiencyCurve) -> str | None:
    """What another gradient than backprop's costs, where it was chosen, and why nothing of backprop was."""
    if learns_as(chosen.algorithm) == REFERENCE:
        return None
    own = next(one for one in entries if one.algorithm == chosen.algorithm)
    others = [one for one in entries if learns_as(one.algorithm) == REFERENCE]
    cost = (
        f"{chosen.algorithm} needs {own.relative_samples:.3g} times the samples that backprop needs at batch size "
        f"{reference.reference_batch_size}"
    )
    kept = [one for one in others if one.feasible]
    if kept:
        best = min(kept, key=lambda one: one.times_chosen or 0.0)
        return f"{cost}, and is faster all the same: {best.algorithm} takes {best.times_chosen:.2f} times as long"
    if not others:
        return f"{cost}; no profile of backprop was given"
    reasons = "; ".join(f"{one.algorithm} {_predicate(one.why_not)}" for one in others)
    return f"{cost}; it was chosen since {reasons}"


def _predicate(why_not: str | None) -> str:
    # "needs ..." goes on with the name as a sentence; whatever else there is stands for itself.
    return why_not if why_not is not None and why_not.startswith("needs ") else f"has no point: {why_not}"


def _said(error: CapError | NoPoint) -> str:
    """The error as a remark: what, the value, the best there was."""
    return "; ".join(part for part in (f"{error.what}: {error.value}", error.allowed) if part)


def _seconds(made: Plan) -> float:
    assert made.predicted_s is not None  # its curve has absolute samples
    return made.predicted_s


def _samples(curve: EfficiencyCurve) -> float:
    assert curve.reference_samples is not None  # held by _paired
    return curve.reference_samples


def _name(algorithm: str) -> str:
    return algorithm.partition(":")[0]


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if list(names).count(name) > 1), None)
