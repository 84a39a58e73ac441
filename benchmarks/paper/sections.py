"""The results as sections of text, tables and figures; as Markdown for README.md, as HTML for the page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.published import LIMITS
from benchmarks.paper.replay import METHODS
from benchmarks.timing import RESULTS

GOAL = 0.01
"""How far above the fastest ours may be on average."""

WORDS = {"P1": "P1", "P2": "P2", "none": "no limit"}
PARTS = ("replay", "pair", "measured")


@dataclass(frozen=True)
class Grid:
    """A table: heads, and rows of as many texts."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A title, paragraphs and lists ("- ..." lines), tables, and names of figures without ".png"."""

    title: str
    texts: tuple[str, ...]
    tables: tuple[Grid, ...] = ()
    figures: tuple[str, ...] = ()


def results() -> dict[str, dict[str, Any]]:
    """The parts that have been measured."""
    files = {part: RESULTS / f"paper_{part}.json" for part in PARTS}
    return {part: json.loads(file.read_text(encoding="utf-8")) for part, file in files.items() if file.exists()}


def sections(data: dict[str, dict[str, Any]]) -> list[Section]:
    """All sections of what has been measured."""
    found: list[Section] = []
    if "replay" in data:
        found += _replay(data["replay"])
    if "pair" in data:
        found.append(_pair(data["pair"]))
    if "measured" in data:
        found += _measured(data["measured"])
    return found


def verdict(data: dict[str, dict[str, Any]]) -> str:
    """The two sentences of the project's README."""
    summary = data["replay"]["summary"]
    said = (
        f"The paper's largest speed-up, {summary['largest']['published']:.2f} over the largest batch at a "
        f"conservative clock, is {summary['largest']['replayed']:.2f} when its tables are replayed on the simulated "
        f"boards; the mean of all cells is {summary['mean_speed_up']['replayed']:.2f} (published "
        f"{summary['mean_speed_up']['published']:.2f})."
    )
    if "measured" in data:
        said += (
            " With samples measured on small networks, the pick takes longer than the fastest one, on average where "
            "proxy and target are of one family: "
            + "; ".join(
                f"{found['mean']:.1%} with {way} ({found['worst']:.0%} at worst)"
                for way, found in data["measured"]["above_fastest_of_one_family"].items()
            )
            + "."
        )
    return said + "\n"


# ----------------------------------------------------------------------------------------------------------- the replay


def _replay(data: dict[str, Any]) -> list[Section]:
    summary = data["summary"]
    largest, mean = summary["largest"], summary["mean_speed_up"]
    caps = "; ".join(
        f"{board} P1 {limits['P1']:g} W, P2 {limits['P2']:g} W" for board, limits in data["caps_w"].items()
    )
    slower = summary["slower_than_a_baseline"]
    margin = data["proxies"]["resnet18"]["margin"]
    texts = (
        f"Limits of this simulation, which are not the paper's (those are in none of its copies), chosen as those "
        f"with which the most cells stand at the published point: {caps}.",
        f"The largest published speed-up over Baseline 1, {largest['published']:.2f} ({largest['where']}), is "
        f"{largest['replayed']:.2f} here ({largest['replayed'] / largest['published'] - 1:+.1%}); the mean of all "
        f"cells is {mean['replayed']:.2f} (published {mean['published']:.2f}). Where no limit binds and a large "
        "batch learns well, nothing is gained.",
        f"In {summary['same_points']} sound cells the replay stands at the published batch size and clock; there its "
        f"times are off by {summary['time_errors']['rms']:.1%} (rms), {summary['time_errors']['most']:.1%} at most. "
        f"{len(summary['different_points'])} cells stand elsewhere, listed below with the reason.",
        f"One curve of the proxy gives all published choices of ResNet18 on these boards, with {margin:.1%} to spare."
        if margin > 0
        else f"No curve of the proxy gives all published choices of ResNet18 on these boards: {-margin:.1%} miss.",
        "Sanity check (true by construction where the proxy's curve is near the target's): ours is "
        + ("slower than Baseline 1 nowhere." if not slower else f"slower than Baseline 1 at {'; '.join(slower)}."),
    )
    tables = [_cells(table) for table in data["tables"]]
    differing = Grid(
        ("cell", "method", "published", "replayed", "time", "why"),
        tuple(
            (
                one["where"],
                one["method"],
                _place(*one["published"]),
                _place(*one["replayed"]),
                "–" if one["time"] is None else f"{one['time']:+.1%}",
                one["why"],
            )
            for one in summary["different_points"]
        ),
    )
    parts = summary["ablation"]
    ablation = Grid(
        ("what is chosen", "time over that of both together (geometric mean of all cells)"),
        (
            ("the clock only, for the largest batch", f"{parts['clock only']:.2f}"),
            ("the batch size only, at the conservative clock", f"{parts['batch only']:.2f}"),
            ("the batch size of the fewest samples, then its clock", f"{parts['sequential']:.2f}"),
        ),
    )
    return [
        Section("Tables 2 to 4, replayed", texts, tuple(tables), ("times",)),
        Section(
            "Cells that stand elsewhere",
            (
                "All are the exhaustive search's. The samples of batch size 16 are from the TX2 NX alone; by them "
                "16 would have been the fastest on the Nano, where the paper found 8 and 32. No clock mends that "
                "(docs/calibration.md).",
            )
            if all(one["method"] == "Fastest" for one in summary["different_points"])
            else (),
            (differing,),
        ),
        Section("Clock only, batch only, one after the other", (), (ablation,)),
        Section(
            "Figures 1, 2 and 4 on the simulated Nano",
            (
                "Figure 1: every batch size and clock of ResNet18, seconds for 12,500 samples against peak power. "
                "Figure 2: two batch sizes under three limits, per sample and to the target. Figure 4: energy. Time "
                "and power are simulated; the numbers of the paper's own figures are in none of its copies.",
            ),
            (),
            ("figure1", "figure2", "figure4"),
        ),
    ]


def _place(batch_size: int | None, clock_mhz: float | None) -> str:
    return "–" if batch_size is None else f"{batch_size} at {clock_mhz:g} MHz"


def _cells(table: dict[str, Any]) -> Grid:
    by = {(row["method"], row["limit"]): row for row in table["rows"]}
    heads = [f"{table['device']}, {table['model']}, {table['dataset']}: s (published)"]
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
    return Grid((*heads, *(WORDS[limit] for limit in LIMITS)), tuple(rows))


# ------------------------------------------------------------------------------------------------------ the trainings


def _pair(data: dict[str, Any]) -> Section:
    rows = tuple(
        (row["rule"], str(row["batch_size"] or "–"), "–", row["why_not"], "", "")
        if row["time_s"] is None
        else (
            row["rule"],
            str(row["batch_size"]),
            f"{row['clock_mhz']:g} MHz",
            f"{row['time_s']:.1f} ± {row['time_std_s']:.1f} s",
            f"{row['energy_j']:.0f} J",
            f"{row['speed_up']:.2f}",
        )
        for row in data["rows"]
    )
    return Section(
        "One small pair, trained on the spot",
        (
            f"The built-in example ({data['workload']}) under {data['cap_w']:g} W on the simulated {data['board']}: "
            f"samples from real trainings with seeds {', '.join(map(str, data['seeds']))}, time and energy simulated.",
        ),
        (Grid(("", "batch size", "clock", "time to target", "energy", "times wattune's"), rows),),
    )


def _measured(data: dict[str, Any]) -> list[Section]:
    kin = data["above_fastest_of_one_family"]
    limits = ", ".join(f"{name} {watts:g} W" for name, watts in data["limits_w"].items() if watts is not None)
    found = [
        Section(
            "Measured: small networks, real trainings",
            (
                f"Samples measured with seeds {', '.join(map(str, data['seeds']))}; time, energy and power those of "
                f"the simulated {data['board']}, limits {limits}. The target of each data set lies 90 % of the way "
                "from the first evaluation to what all batch sizes reach; a mean of three evaluations has to reach it.",
                "With the paper's own estimator (means over seeds), ours is above the fastest, on average where proxy "
                f"and target are of one family: {'; '.join(_above(way, one) for way, one in kin.items())}. "
                f"Above a limit in training: {data['above_cap_s']:.1f} s.",
            ),
        )
    ]
    for family in data["families"]:
        for way, limits_of in family["ways"].items():
            found.append(_family(family, way, limits_of))
    return found


def _above(way: str, found: dict[str, Any]) -> str:
    goal = "met" if found["mean"] <= GOAL else "missed"
    return (
        f"{found['mean']:.1%} with {way} ({found['cells']} cells, worst {found['worst']:.1%}; the goal of {GOAL:.0%} "
        f"is {goal})"
    )


def _family(family: dict[str, Any], way: str, limits: dict[str, Any]) -> Section:
    names = list(family["targets"])
    times = []
    for name in names[1:]:
        rows = []
        for method in METHODS:
            texts = [
                _time(next(one for one in found["matrix"] if (one["proxy"], one["target"]) == (names[0], name)), method)
                for found in limits.values()
            ]
            rows.append((method, *texts))
        times.append(Grid((f"{name}, proxy {names[0]}", *(WORDS[limit] for limit in limits)), tuple(rows)))
    matrix = []
    for proxy in names:
        texts = []
        for target in names:
            cells = [
                one["above_fastest"]
                for found in limits.values()
                for one in found["matrix"]
                if (one["proxy"], one["target"]) == (proxy, target)
            ]
            texts.append(" / ".join("–" if cell is None else f"{cell:.1%}" for cell in cells))
        matrix.append((proxy, *texts))
    heads = (f"ours above the fastest ({' / '.join(WORDS[limit] for limit in limits)}): proxy \\ target", *names)
    title = f"{family['family']} with {way}"
    return Section(title, (), (*times, Grid(heads, tuple(matrix))))


def _time(table: dict[str, Any], method: str) -> str:
    row = table["rows"][method]
    if row is None:
        return "–"
    return f"{row['time_s']:.0f} ± {row['std_s']:.0f} s ({row['batch_size']} at {row['clock_mhz']:g})"


# ------------------------------------------------------------------------------------------------------------ Markdown


def markdown(data: dict[str, dict[str, Any]]) -> str:
    """For README.md; figures stand in docs/paper."""
    lines: list[str] = []
    for section in sections(data):
        lines += [f"### {section.title}", ""]
        for text in section.texts:
            lines += [text, ""]
        for grid in section.tables:
            lines += [_line(grid.heads), "|" + "---|" * len(grid.heads), *map(_line, grid.rows), ""]
        lines += [f"![{name}](../../docs/paper/{name}.png)\n" for name in section.figures]
    return "\n".join(lines)


def _line(texts: tuple[str, ...]) -> str:
    return f"| {' | '.join(texts)} |"
