"""Peak memory of a step against depth and batch size, a fresh process for each: `python -m benchmarks asyncfgd memory`.

A stack of convolutions of 8 channels on 32x32 images; see `memory_probe`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.asyncfgd.memory_probe import measure
from benchmarks.timing import RESULTS, machine
from wattune.files import write_json

RESULT = RESULTS / "asyncfgd_memory.json"

ALGORITHMS = {
    "backprop": "backprop",
    "backprop, checkpointed": "backprop:checkpoint=auto",
    "forward gradient": "forward-gradient",
    "forward gradient, activities": "forward-gradient:perturb=activities",
    "forward gradient, differences": "forward-gradient:perturb=differences",
    "AsyncFGD, 2 modules": "async-fgd:modules=2",
    "AsyncFGD, 4 modules": "async-fgd:modules=4",
    "AsyncFGD, 2 modules, threads": "async-fgd:backend=threads,modules=2",
    "AsyncFGD, 4 modules, threads": "async-fgd:backend=threads,modules=4",
    "AsyncFGD, 4 modules, activities": "async-fgd:modules=4,perturb=activities",
    "AsyncFGD, 4 modules, activities, 4 directions": "async-fgd:directions=4,modules=4,perturb=activities",
}
"""Name in the table -> spec."""

DEPTHS = (4, 16, 64)


def main() -> None:
    """Measure, and store the results."""
    rows: list[dict[str, Any]] = []
    for name, spec in ALGORITHMS.items():
        for depth in DEPTHS:
            figures = measure(spec, depth=depth)
            rows.append({"name": name, **{k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}})
            print(rows[-1], flush=True)
    write_json(RESULT, {"benchmark": "asyncfgd memory", "machine": machine(), "rows": rows})


def markdown(results: dict[str, Any]) -> str:
    """Measured megabytes by depth, and the modelled ones of a simulated board."""
    by_place = {(row["name"], row["depth"]): row for row in results["rows"]}
    deepest = max(DEPTHS)
    backprop, checkpointed = (by_place[name, deepest]["peak_mb"] for name in list(ALGORITHMS)[:2])
    lines = [
        f"| algorithm | {' | '.join(f'{depth} layers' for depth in DEPTHS)} | relative to backprop at {deepest} "
        f"| to checkpointed backprop at {deepest} | modelled at {deepest} |",
        f"|---|{'---|' * len(DEPTHS)}---|---|---|",
    ]
    for name in ALGORITHMS:
        peaks = [by_place[name, depth]["peak_mb"] for depth in DEPTHS]
        shown = " | ".join(f"{peak:.1f} MB" for peak in peaks)
        modelled = by_place[name, deepest]["modelled_mb"]
        lines.append(
            f"| {name} | {shown} | {peaks[-1] / backprop:.2f} | {peaks[-1] / checkpointed:.2f} | {modelled:.1f} MB |"
        )
    return "\n".join(lines) + "\n"
