"""A contribution as text: one row per workload, and the sections of an issue that shares it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattune.records import Contribution, ProfileCell
from wattune.reporting import phrases

SECTIONS = ("Board", "Power mode", "Software", "Checks", "Results", "Record")
"""Headings of the prepared text, which are the labels of the issue form."""

JETPACK = {"32": "4", "35": "5", "36": "6", "38": "7", "39": "7"}
"""L4T release -> JetPack. Source: developer.nvidia.com/embedded/jetpack-archive."""


@dataclass(frozen=True)
class WorkloadRow:
    """One workload at one batch size, over the settings of a board.

    ``speed_up``: step time at the lowest setting over that at the highest. ``thrifty``: the setting with the least
    energy per step; there, a step takes ``saved`` less energy and ``slower`` more time than at the highest setting, as
    shares.
    """

    workload: str
    batch_size: int
    settings: int
    lowest: str
    highest: str
    lowest_w: float
    highest_w: float
    speed_up: float
    thrifty: str
    saved: float
    slower: float

    def cells(self) -> tuple[str, ...]:
        """The row as texts, as ``HEAD`` names them."""
        return (
            self.workload,
            str(self.batch_size),
            f"{self.settings}: {self.lowest} to {self.highest}",
            f"{phrases.watts(self.lowest_w)} to {phrases.watts(self.highest_w)}",
            f"{self.speed_up:.1f}",
            self.thrifty,
            f"{self.saved:.0%}",
            f"{self.slower:.0%}",
        )


HEAD = (
    "workload",
    "batch size",
    "settings",
    "mean power",
    "times as fast at the highest",
    "least energy per step at",
    "energy saved there",
    "slower there",
)


def workload_row(workload: str, cells: Sequence[ProfileCell]) -> WorkloadRow | None:
    """The row of the largest batch size with cells at several settings; None if there is none."""
    for size in sorted({cell.batch_size for cell in cells}, reverse=True):
        steps = [
            (cell.knobs, cell.step_s, cell.power_mean_w)
            for cell in sorted(cells, key=lambda cell: cell.knobs.order)
            if cell.batch_size == size and cell.step_s is not None and cell.power_mean_w is not None
        ]
        if len(steps) < 2:
            continue
        (low, low_s, low_w), (high, high_s, high_w) = steps[0], steps[-1]
        thrifty, thrifty_s, thrifty_w = min(steps, key=lambda step: step[1] * step[2])
        return WorkloadRow(
            workload,
            size,
            len(steps),
            str(low),
            str(high),
            low_w,
            high_w,
            speed_up=low_s / high_s,
            thrifty=str(thrifty),
            saved=1 - thrifty_s * thrifty_w / (high_s * high_w),
            slower=thrifty_s / high_s - 1,
        )
    return None


def workload_rows(contribution: Contribution) -> list[WorkloadRow]:
    """One row for each workload that was measured at several settings."""
    rows = (workload_row(part.workload, part.cells) for part in contribution.workloads)
    return [row for row in rows if row is not None]


def software(contribution: Contribution) -> str:
    """Versions of all that the figures depend on, in one line."""
    board = contribution.board
    jetpack = JETPACK.get((board.l4t or "").partition(".")[0])
    parts = [
        f"L4T {board.l4t}" + (f" (JetPack {jetpack})" if jetpack else "") if board.l4t else "",
        f"kernel {board.kernel}" if board.kernel else "",
        f"driver {board.driver}" if board.driver else "",
        f"torch {board.torch}",
        f"CUDA {board.cuda}" if board.cuda else "",
        contribution.provenance.software or "",
    ]
    return ", ".join(filter(None, parts))


def short_mode(mode: str) -> str:
    """The name of a power mode, without what else a board reports beside it."""
    return mode.partition(",")[0]


def checks(contribution: Contribution) -> list[str]:
    """Sentences about what was checked: completeness, drift, throttling, events."""
    cells = [cell for part in contribution.workloads for cell in part.cells]
    lines = [f"{contribution.points} of {contribution.planned} points in {phrases.seconds(contribution.time_s)}"]
    if not contribution.is_complete:
        lines[0] += f"; stopped at the limit of {contribution.limit_s / 60:g} minutes"
    lines += [
        f"{part.workload}: batch size {cell.batch_size} does not fit in memory"
        for part in contribution.workloads
        for cell in part.cells
        if cell.out_of_memory
    ]
    lines.append(_drift(contribution))
    lines.append(f"{contribution.throttled_cells} points throttled or with an over-current event, after repeats")
    temperatures_c = [cell.temperature_c for cell in cells if cell.temperature_c is not None]
    lines.append(f"highest temperature {max(temperatures_c):.1f} °C" if temperatures_c else "no temperature")
    if any(cell.swapped_bytes for cell in cells):
        lines.append("memory was swapped")
    if contribution.events:
        lines.append(f"events: {', '.join(contribution.events)}")
    return lines


def _drift(contribution: Contribution) -> str:
    repeats = [repeat for part in contribution.workloads for repeat in part.repeats]
    if not repeats:
        return "NOT CHECKED FOR DRIFT: no point was measured again"
    largest = max(abs(change) for repeat in repeats for change in (repeat.time, repeat.power))
    head = "" if contribution.is_steady else "NOT STEADY: "
    return (
        f"{head}{len(repeats)} points measured again at the end: up to {largest:.1%} off in time or mean power "
        f"({contribution.within:.0%} allowed)"
    )


def markdown_table(rows: Sequence[WorkloadRow]) -> str:
    """The rows as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def issue_text(contribution: Contribution, file_name: str) -> str:
    """The prepared text of an issue, with a heading for each of ``SECTIONS``."""
    board = contribution.board
    kind = contribution.provenance.kind or phrases.UNKNOWN
    rows = workload_rows(contribution)
    contents = (
        f"{board.name} ({kind})",
        board.mode,
        software(contribution),
        "\n".join(f"- {line}" for line in checks(contribution)),
        markdown_table(rows) if rows else "No workload was measured at two settings.",
        f"Drop the file `{file_name}` here.",
    )
    return "\n\n".join(f"### {head}\n\n{text}" for head, text in zip(SECTIONS, contents, strict=True)) + "\n"
