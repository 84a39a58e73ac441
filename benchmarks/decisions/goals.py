"""Goals of the decisions, required and aimed at, compared with the measured figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A figure with two upper bounds, or lower bounds with ``least``; shown in percent if ``share``."""

    name: str
    must: float
    aim: float
    measured: Callable[[Figures], float]
    least: bool = False
    share: bool = True

    def row(self, figures: Figures) -> dict[str, Any]:
        """The figure, its bounds, and the bound that it reaches."""
        value = self.measured(figures)
        sign = -1 if self.least else 1
        word = "aim" if sign * value <= sign * self.aim else "must" if sign * value <= sign * self.must else "missed"
        return {
            "figure": self.name,
            "must": self.must,
            "aim": self.aim,
            "measured": round(value, 4),
            "reached": word,
            "share": self.share,
        }


def _own(part: str, *keys: str, way: str = "ours") -> Callable[[Figures], float]:
    def measured(figures: Figures) -> float:
        value: Any = figures[part][way]
        for key in keys:
            value = value[key]
        return float(value)

    return measured


def _gpus(*keys: str) -> Callable[[Figures], float]:
    def measured(figures: Figures) -> float:
        value: Any = figures["gpus"]
        for key in keys:
            value = value[key]
        return float(value)

    return measured


GOALS = (
    Goal("mean regret on the target", 0.015, 0.01, _own("efficiency", "all", "mean")),
    Goal("share of cases under 2%", 0.80, 0.88, _own("efficiency", "all", "under_2_percent"), least=True),
    Goal("proxy runs, mean", 6.5, 5.5, _own("efficiency", "runs_mean"), share=False),
    Goal("proxy runs, maximum", 12, 12, _own("efficiency", "runs_max"), share=False),
    Goal("proxy samples saved", 0.80, 0.90, _own("efficiency", "samples_saved"), least=True),
    Goal("server time saved", 0.85, 0.95, _own("efficiency", "server_saved"), least=True),
    Goal("coverage of the 90% band, at least", 0.85, 0.88, _own("efficiency", "coverage"), least=True),
    Goal("coverage of the 90% band, at most", 0.98, 0.95, _own("efficiency", "coverage")),
    Goal("realized relative to stated regret", 1.5, 1.2, _own("efficiency", "realised_over_stated"), share=False),
    Goal("probes for 72 cells, mean", 10, 9, _own("profiling", "probes_mean"), share=False),
    Goal("probes, maximum", 16, 16, _own("profiling", "probes_max"), share=False),
    Goal("profiling regret against the optimum at 0.98 cap", 0.005, 0.002, _own("profiling", "all", "mean")),
    Goal(
        "profiling regret against the optimum at the cap",
        0.035,
        0.02,
        _own("profiling", "against the optimum at the cap", "mean"),
    ),
    Goal(
        "boards with a probe above the cap by over 1%", 0.02, 0.01, _own("profiling", "boards_with_probe_surely_over")
    ),
    Goal("worst overshoot of a probe", 0.05, 0.03, _own("profiling", "worst_overshoot")),
    Goal("picks above the cap", 0.015, 0.005, _own("profiling", "picks_over")),
    Goal("worst overshoot of a pick", 0.01, 0.01, _own("profiling", "worst_pick_over")),
    Goal(
        "boards with any probe above the cap, with --strict",
        0.02,
        0.005,
        _own("profiling", "boards_with_probe_over", way="ours, strict"),
    ),
    Goal(
        "regret beyond Optuna GP's at equal probing time",
        0.01,
        0.0,
        _own("profiling", "against Optuna GP", "difference"),
    ),
    Goal(
        "boards over by 1%, relative to Optuna GP's",
        0.1,
        0.1,
        _own("profiling", "against Optuna GP", "boards_over_share"),
        share=False,
    ),
    Goal(
        "regret of the whole job beyond the full grid's with 6 x 5 runs",
        0.01,
        0.0,
        _own("pipeline", "against full grid + 6 x 5", "difference"),
    ),
    Goal("one step of the estimator, ms", 20, 5, _own("efficiency", "step_ms", "mean"), share=False),
    Goal("one step of the search, ms", 20, 5, _own("profiling", "step_ms", "mean"), share=False),
)

GPU_GOALS = (
    Goal(
        "regret, own batch size unknown, clean and resolved",
        0.025,
        0.018,
        _gpus("clean, resolved", "regret", "ours, no own batch size", "mean"),
    ),
    Goal("regret, clean and resolved", 0.034, 0.024, _gpus("clean, resolved", "regret", "ours", "mean")),
    Goal(
        "cases that lose to the default, clean and resolved",
        0.02,
        0.005,
        _gpus("clean, resolved", "gain", "default batch", "loses_surely"),
    ),
    Goal("cases that lose to the default, as recorded", 0.04, 0.015, _gpus("gain", "default batch", "loses_surely")),
    Goal(
        "gain over the default, by cases",
        1.30,
        1.35,
        _gpus("gain", "default batch", "geometric_mean"),
        least=True,
        share=False,
    ),
    Goal(
        "gain over the default, equal weight",
        1.48,
        1.54,
        _gpus("gain", "default batch", "equal_weight"),
        least=True,
        share=False,
    ),
    Goal("whole training runs, mean", 9.5, 8.5, _gpus("regret", "ours", "runs_mean"), share=False),
    Goal("coverage of the 90% band on GPUs, at least", 0.85, 0.88, _gpus("ours", "coverage"), least=True),
    Goal("realized relative to stated regret on GPUs", 1.5, 1.2, _gpus("ours", "realised_over_stated"), share=False),
)
"""Goals on the recorded traces, which are judged if those were given."""

PAIRED = (
    ("efficiency", "against paper 6 x 5"),
    ("pipeline", "against full grid + 6 x 5"),
)
"""Comparisons in which ours must not be significantly worse, one-sided at 95 %."""


def goal_results(figures: Figures) -> dict[str, Any]:
    """Every goal with its measured figure, and the paired tests."""
    return {
        "figures": [goal.row(figures) for goal in (*GOALS, *(GPU_GOALS if "gpus" in figures else ()))],
        "paired": {f"{part} {rival}": figures[part]["ours"][rival] for part, rival in PAIRED},
    }
