"""Figures as PNG files in docs/paper, drawn from the results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # works without a display

import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.paper.families import WAYS
from benchmarks.paper.published import LIMITS, NANO, RESNET18
from benchmarks.paper.replay import METHODS
from benchmarks.paper.sections import WORDS, matrix, percent, proxies_name

FOLDER = Path(__file__).parent.parent.parent / "docs" / "paper"
COLOURS = ("#8c8c8c", "#c2a14d", "#1f6f8b", "#444444")
"""Colours of the methods, in their order; distinguishable in grey, too."""

RAMP = "viridis"
SHADES = LinearSegmentedColormap.from_list("shades", ("white", COLOURS[2]))


def draw(data: dict[str, dict[str, Any]]) -> None:
    """Draw the figures of all parts that have been measured."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    if "replay" in data:
        for figure in (epochs, two_batches, energy, times):
            figure(data["replay"])
    for part in ("measured", "full_size"):
        if part in data:
            proxies(data[part])


def _save(name: str) -> None:
    plt.savefig(FOLDER / f"{name}.png", dpi=130, bbox_inches="tight", metadata={"Software": None})
    plt.close()


def _table(replay: dict[str, Any], dataset: str) -> dict[str, Any]:
    table: dict[str, Any] = next(
        one for one in replay["tables"] if (one["device"], one["model"], one["dataset"]) == (NANO, RESNET18, dataset)
    )
    return table


def epochs(replay: dict[str, Any]) -> None:
    """Figure 1: time for a quarter of CIFAR-10 against peak power, and the choices under P1."""
    cap_w = replay["caps_w"][NANO]["P1"]
    sizes = sorted({one["batch_size"] for one in replay["epochs"]})
    plt.figure(figsize=(6.4, 3.8))
    for size, colour in zip(sizes, plt.get_cmap(RAMP)([i / len(sizes) for i in range(len(sizes))]), strict=True):
        points = [one for one in replay["epochs"] if one["batch_size"] == size]
        x, y = [one["power_peak_w"] for one in points], [one["time_s"] / 60 for one in points]
        plt.plot(x, y, "o-", ms=3, lw=1, color=colour, label=f"batch size {size}")
    plt.axvline(cap_w, color="#b03030", lw=1, ls="--")
    plt.text(cap_w, plt.ylim()[1], f"  P1 of this simulation, {cap_w:g} W", color="#b03030", va="top")
    for row in _table(replay, "SVHN")["rows"]:
        if row["limit"] == "P1" and row["method"] in ("Baseline 1", "Ours"):
            point = next(
                one
                for one in replay["epochs"]
                if (one["batch_size"], one["clock_mhz"]) == (row["batch_size"], row["clock_mhz"])
            )
            place = point["power_peak_w"], point["time_s"] / 60
            plt.plot(*place, "s" if row["method"] == "Ours" else "D", ms=9, mfc="none", mec="black")
            baseline = row["method"] == "Baseline 1"
            plt.annotate(
                f"{row['method']}: batch size {row['batch_size']} at {row['clock_mhz']:g} MHz",
                place,
                (0.04, 0.06) if baseline else (0.45, 0.55),
                textcoords="axes fraction",
                arrowprops={"arrowstyle": "-", "lw": 0.6},
            )
    plt.yscale("log")
    plt.xlabel("peak power (W), simulated")
    plt.ylabel("minutes for 12,500 samples, simulated")
    plt.legend(frameon=False, loc="upper right")
    plt.title("ResNet18 on the simulated Jetson Nano", loc="left")
    _save("figure1")


def two_batches(replay: dict[str, Any]) -> None:
    """Figure 2: a small and a large batch under three limits, per sample and to the target."""
    table, sizes = _table(replay, "SVHN"), (8, 128)
    _, axes = plt.subplots(1, 2, figsize=(6.8, 3.0))
    for index, size in enumerate(sizes):
        for axis, scale in ((axes[0], 1e3), (axes[1], table["samples"][str(size)] / 3600)):
            heights = [scale * _sample_s(replay, size, replay["caps_w"][NANO][limit]) for limit in LIMITS]
            places = [i + 0.4 * index for i in range(len(LIMITS))]
            bars = axis.bar(places, heights, 0.38, color=COLOURS[2 - 2 * index], label=f"batch size {size}")
            axis.bar_label(bars, fmt="%.1f", fontsize=8)
    for axis, label in ((axes[0], "ms for a sample"), (axes[1], "hours to the target")):
        axis.set_xticks([i + 0.2 for i in range(len(LIMITS))], [WORDS[limit] for limit in LIMITS])
        axis.set_ylabel(label)
    axes[0].legend(frameon=False)
    plt.suptitle("ResNet18, SVHN, each at its fastest clock (replayed)", x=0.02, ha="left", fontsize=10)
    plt.tight_layout()
    _save("figure2")


def _sample_s(replay: dict[str, Any], size: int, cap_w: float | None) -> float:
    return min(
        float(one["time_s"]) / replay["epoch_samples"]
        for one in replay["epochs"]
        if one["batch_size"] == size and (cap_w is None or one["power_peak_w"] <= cap_w)
    )


def energy(replay: dict[str, Any]) -> None:
    """Figure 4: energy to the target by method and limit."""
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), sharey=True)
    for axis, dataset in zip(axes, ("SVHN", "CINIC"), strict=True):
        by = {(row["method"], row["limit"]): row for row in _table(replay, dataset)["rows"]}
        for index, method in enumerate(METHODS):
            heights = [by[method, limit]["energy_j"] / 1e3 for limit in LIMITS]
            places = [i + 0.2 * index for i in range(len(LIMITS))]
            axis.bar(places, heights, 0.19, color=COLOURS[index], label=method)
        axis.set_xticks([i + 0.3 for i in range(len(LIMITS))], [WORDS[limit] for limit in LIMITS])
        axis.set_title(f"ResNet18, {dataset}", loc="left")
    axes[0].set_ylabel("energy to the target (kJ), replayed")
    axes[1].legend(frameon=False)
    plt.tight_layout()
    _save("figure4")


def times(replay: dict[str, Any]) -> None:
    """Replayed against published times of all cells."""
    plt.figure(figsize=(4.4, 4.0))
    for method, colour, marker in zip(METHODS, COLOURS, "sDo^", strict=True):
        rows = [
            row
            for table in replay["tables"]
            for row in table["rows"]
            if row["method"] == method and row["time_s"] and not row["published"]["doubt"]
        ]
        x, y = [row["published"]["mean_s"] for row in rows], [row["time_s"] for row in rows]
        plt.plot(x, y, marker, ms=5, mfc="none", color=colour, label=method)
    ends = plt.xlim()
    plt.plot(ends, ends, lw=0.8, color="#b03030")
    plt.gca().set(xscale="log", yscale="log")
    for axis in (plt.gca().xaxis, plt.gca().yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:.0f}")
        axis.set_minor_formatter(NullFormatter())
    plt.xlabel("published (s)")
    plt.ylabel("replayed (s)")
    plt.legend(frameon=False)
    _save("times")


def proxies(measured: dict[str, Any]) -> None:
    """Figures 5, 6 and 8: each data set as the proxy of each, by limit; one picture for each of the paper's models."""
    of = [(family, family["ways"][WAYS[True]]) for family in measured["families"] if WAYS[True] in family["ways"]]
    all_cells = [one["above_fastest"] for _, way in of for limit in way.values() for one in limit["matrix"]]
    most = max(cell for cell in all_cells if cell is not None)
    for family, limits in of:
        names = list(family["targets"])
        height = 0.5 + 0.3 * len(names)
        _, axes = plt.subplots(len(limits), 1, figsize=(5.6, len(limits) * height + 0.9), sharex=True)
        for axis, (limit, tables) in zip(axes, limits.items(), strict=True):
            cells = matrix(names, tables)
            shares = [[math.nan if cell is None else cell for cell in row] for row in cells]
            axis.imshow(shares, cmap=SHADES, vmin=0, vmax=most, aspect="auto")
            for y, row in enumerate(cells):
                for x, cell in enumerate(row):
                    dark = cell is not None and cell > 0.85 * most  # where white has more contrast than black
                    axis.text(x, y, percent(cell), ha="center", va="center", color="white" if dark else "black")
            axis.set_yticks(range(len(names)), names)
            axis.set_title(WORDS[limit], loc="left", fontsize=9)
            axis.tick_params(length=0)
        axes[len(limits) // 2].set_ylabel("proxy")
        axes[-1].set_xticks(range(len(names)), names, rotation=25, ha="right", rotation_mode="anchor")
        axes[-1].set_xlabel("target")
        plt.suptitle(f"{family['family']}: ours slower than the fastest by", x=0.02, ha="left", fontsize=10)
        plt.tight_layout()
        _save(proxies_name(family))
