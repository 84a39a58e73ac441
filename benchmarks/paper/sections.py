"""The results as Markdown for README.md: the replayed tables, and what the training runs say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.paper.families import WAYS
from benchmarks.paper.published import LIMITS, NANO
from benchmarks.paper.replay import HIGHER_CLOCK, METHODS, PRINTED
from benchmarks.tables.results import read
from benchmarks.tables.results import table as in_markdown
from benchmarks.timing import RESULTS

GOAL = 0.01
"""Largest mean excess of ours over the fastest."""

WORDS = {"P1": "P1", "P2": "P2", "none": "no limit"}
PARTS = ("replay", "measured")


def results() -> dict[str, dict[str, Any]]:
    """Results of all parts that have been measured."""
    files = {part: RESULTS / f"paper_{part}.json" for part in PARTS}
    return {part: read(file.stem) for part, file in files.items() if file.exists()}


def markdown(data: dict[str, dict[str, Any]]) -> str:
    """All measured parts as sections."""
    lines = list(_replay(data["replay"])) if "replay" in data else []
    if "measured" in data:
        lines += _measured(data["measured"])
    return "\n".join(lines)


def verdict(data: dict[str, dict[str, Any]]) -> str:
    """Verdict in two sentences, for the page of results."""
    summary = data["replay"]["summary"]
    text = (
        f"Replaying the paper's tables on the simulated boards gives a mean speed-up over the largest batch at a "
        f"conservative clock of {summary['mean_speed_up']['replayed']:.2f} (published: "
        f"{summary['mean_speed_up']['published']:.2f}) and a largest one of {summary['largest']['replayed']:.2f} "
        f"(published: {summary['largest']['published']:.2f}). {behind(summary)}"
    )
    if "measured" in data:
        text += (
            " With samples to target measured on small networks, and proxy and target from the same family, the pick "
            "takes longer than the fastest point by "
            + "; by ".join(
                f"{figures['mean']:.1%} on average with {way} ({figures['worst']:.0%} at worst)"
                for way, figures in data["measured"]["above_fastest_of_one_family"].items()
            )
            + "."
        )
    return text + "\n"


def behind(summary: dict[str, Any]) -> str:
    """How far the pick is behind the fastest point, here and as published."""
    ours, published = (summary["behind_the_fastest"][key] for key in PRINTED)
    return (
        f"The pick takes {ours['mean']:.1%} longer than the fastest point on average, {ours['worst']:.1%} at most "
        f"(published: {published['mean']:.1%}, {published['worst']:.1%})."
    )


# ----------------------------------------------------------------------------------------------------------- the replay


def _replay(data: dict[str, Any]) -> Iterator[str]:
    summary = data["summary"]
    largest, mean = summary["largest"], summary["mean_speed_up"]
    caps = "; ".join(
        f"{board} P1 {limits['P1']:g} W, P2 {limits['P2']:g} W" for board, limits in data["caps_w"].items()
    )
    margin = data["proxies"]["resnet18"]["margin"]
    yield from _section(
        "Tables 2 to 4, replayed",
        f"Limits of this simulation, chosen so that as many cells as possible end at the published point: {caps}. They "
        "are not the paper's limits, which no copy of it states.",
        f"The largest published speed-up over Baseline 1, {largest['published']:.2f} ({largest['where']}), is "
        f"{largest['replayed']:.2f} here ({largest['replayed'] / largest['published'] - 1:+.1%}); the mean of all "
        f"cells is {mean['replayed']:.2f} (published: {mean['published']:.2f}). {behind(summary)} If no limit binds "
        "and a large batch learns well, nothing is gained.",
        f"Without {'; '.join(summary['at_a_higher_clock'])}, where {HIGHER_CLOCK}, the mean is {mean['without']:.2f}. "
        "As many cells agree only while P1 of the TX2 NX is at least {:.2f} W and below {:.2f} W, and no proxy curve "
        "explains the published choices outside.".format(*data["window_w"]),
        f"In {summary['same_points']} sound cells the replay picks the published batch size and clock; its times are "
        f"off by {summary['time_errors']['rms']:.1%} there (RMS), {summary['time_errors']['most']:.1%} at most. "
        f"{len(summary['different_points'])} cells differ and are listed below with the reason.",
        f"A single proxy curve explains all published choices for ResNet18 on these boards, with {margin:.1%} to spare."
        if margin > 0
        else f"No proxy curve explains all published choices for ResNet18 on these boards; the best one misses by "
        f"{-margin:.1%}.",
    )
    for table in data["tables"]:
        yield from _cells(table)
    yield from _section("Energy", "Simulated, to the target; in brackets relative to ours. The paper prints no values.")
    limits = " | ".join(WORDS[limit] for limit in LIMITS)
    yield in_markdown(
        f"kJ: Baseline 1 / Baseline 2 / ours | {limits}",
        [(_name(table), *(_energies(table, limit) for limit in LIMITS)) for table in data["tables"]],
    )
    yield from _section(
        "Cells that differ",
        *(
            [
                "Those of the Nano belong to the exhaustive search. The samples to target at batch size 16 are known "
                "from the TX2 NX alone; by them, 16 would have been the fastest on the Nano, too, but the paper found "
                "8 and 32. No set of clocks resolves this."
            ]
            if all(one["method"] == "Fastest" for one in summary["different_points"] if one["where"].startswith(NANO))
            else []
        ),
    )
    yield in_markdown(
        "cell | method | published | replayed | time | why",
        [
            (
                one["where"],
                one["method"],
                _place(*one["published"]),
                _place(*one["replayed"]),
                "–" if one["time"] is None else f"{one['time']:+.1%}",
                one["why"],
            )
            for one in summary["different_points"]
        ],
    )
    parts = summary["ablation"]
    yield from _section("Clock only, batch size only, one after the other")
    yield in_markdown(
        "chosen | time relative to choosing both together (geometric mean of all cells)",
        [
            ("clock only, for the largest batch", f"{parts['clock only']:.2f}"),
            ("batch size only, at the conservative clock", f"{parts['batch only']:.2f}"),
            ("batch size with the fewest samples, then its clock", f"{parts['sequential']:.2f}"),
        ],
    )


def _place(batch_size: int | None, clock_mhz: float | None) -> str:
    return "–" if batch_size is None else f"{batch_size} at {clock_mhz:g} MHz"


def _name(table: dict[str, Any]) -> str:
    return ", ".join(table[key] for key in ("device", "model", "dataset"))


def _energies(table: dict[str, Any], limit: str) -> str:
    """Energy of both baselines and of ours under a limit."""
    joules = {row["method"]: row["energy_j"] for row in table["rows"] if row["limit"] == limit}
    ours = joules["Ours"]
    others = [f"{joules[name] / 1e3:.1f} ({joules[name] / ours:.2f})" for name in ("Baseline 1", "Baseline 2")]
    return " / ".join([*others, f"{ours / 1e3:.1f}"])


def _cells(table: dict[str, Any]) -> Iterator[str]:
    by = {(row["method"], row["limit"]): row for row in table["rows"]}
    rows = []
    for method in METHODS:
        texts = []
        for limit in LIMITS:
            row = by[method, limit]
            cell = row["published"]
            time = "–" if row["time_s"] is None else f"{row['time_s']:.0f}"
            doubt = ", doubtful" if cell["doubt"] else ""
            texts.append(f"{time} ({cell['mean_s']:.0f} ± {cell['std_s']:.0f}{doubt})")
        rows.append((method, *texts))
    head = f"{table['device']}, {table['model']}, {table['dataset']}: s (published)"
    yield in_markdown(f"{head} | {' | '.join(WORDS[limit] for limit in LIMITS)}", rows)


# --------------------------------------------------------------------------------------------------- the training runs


def _measured(data: dict[str, Any]) -> Iterator[str]:
    kin = data["above_fastest_of_one_family"]
    limits = ", ".join(f"{name} {watts:g} W" for name, watts in data["limits_w"].items() if watts is not None)
    yield from _section(
        "Measured: small networks, real training runs",
        f"Samples measured with seeds {', '.join(map(str, data['seeds']))}; time, energy and power simulated on the "
        f"{data['board']}, limits {limits}. The target of each data set lies 90% of the way from the first evaluation "
        f"to what all batch sizes reach. {_grids(data['families'])}",
        "With the paper's own estimator (means over seeds), and proxy and target from the same family, ours is slower "
        f"than the fastest on average by {'; by '.join(_above(way, one) for way, one in kin.items())}. Time above a "
        f"limit during training: {data['above_cap_s']:.1f} s.",
        "With the step times of the paper's model, each data set as the proxy of each (the counterpart of the paper's "
        "Figures 5, 6 and 8, whose values no copy states):",
    )
    for family in data["families"]:
        if WAYS[True] in family["ways"]:
            sure = _sure(family["off_diagonal"][WAYS[True]]) if "off_diagonal" in family else ""
            yield f"- {_slower(family['family'], family['ways'][WAYS[True]])}{sure}"
    yield ""


def _grids(families: Sequence[dict[str, Any]]) -> str:
    """How finely each family was evaluated, since that was changed for some of them."""
    fine = [one for one in families if "evaluate_every" in one]
    coarse = [one["family"] for one in families if one not in fine]
    texts = [f"Of {'; '.join(coarse)}: evaluated each 512 samples, and the mean of three reaches it."] if coarse else []
    if fine:
        names = "; ".join(f"{one['family']} (to {one['budget_samples']:,} samples)" for one in fine)
        texts.append(
            f"Of {names}: evaluated each {fine[0]['evaluate_every']} samples, at larger batch sizes after each step; "
            "the mean over 512 samples reaches it, interpolated."
        )
    return " ".join(texts) + (" Figures of all families mix both." if coarse and fine else "")


def _sure(figures: dict[str, Any]) -> str:
    return (
        f" On average by {figures['mean']:.1%} (90% interval by the target's seeds {figures['low']:.1%} to "
        f"{figures['high']:.1%}); in {figures['surely']} cells by more than these seeds leave open."
    )


def _above(way: str, figures: dict[str, Any]) -> str:
    goal = "met" if figures["mean"] <= GOAL else "missed"
    return (
        f"{figures['mean']:.1%} with {way} ({figures['cells']} cells, worst {figures['worst']:.1%}; "
        f"the goal of {GOAL:.0%} is {goal})"
    )


def _slower(family: str, limits: dict[str, Any]) -> str:
    pairs = [
        (one["above_fastest"], one["proxy"], one["target"], WORDS[limit])
        for limit, tables in limits.items()
        for one in tables["matrix"]
        if one["proxy"] != one["target"] and one["above_fastest"] is not None
    ]
    count = sum(f"{above:.1%}" != "0.0%" for above, *_ in pairs)
    if not count:
        return f"{family}: ours is the fastest in all {len(pairs)} cells off the diagonal."
    above, proxy, target, limit = max(pairs)
    return (
        f"{family}: ours is slower than the fastest in {count} of {len(pairs)} cells off the diagonal, by {above:.1%} "
        f"at most (proxy {proxy}; target {target}; {limit})."
    )


def _section(title: str, *texts: str) -> Iterator[str]:
    yield from (f"### {title}", "")
    for text in texts:
        yield from (text, "")
