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


GOALS = (
    Goal("mean regret on the target", 0.015, 0.01, _own("efficiency", "all", "mean")),
    Goal("share of cases under 2%", 0.80, 0.88, _own("efficiency", "all", "under_2_percent"), least=True),
    Goal("proxy runs, mean", 6, 4, _own("efficiency", "runs_mean"), share=False),
    Goal("proxy runs, maximum", 12, 12, _own("efficiency", "runs_max"), share=False),
    Goal("proxy samples saved", 0.80, 0.90, _own("efficiency", "samples_saved"), least=True),
    Goal("server time saved", 0.85, 0.95, _own("efficiency", "server_saved"), least=True),
    Goal("coverage of the 90% band, at least", 0.85, 0.88, _own("efficiency", "coverage"), least=True),
    Goal("coverage of the 90% band, at most", 0.98, 0.95, _own("efficiency", "coverage")),
    Goal("realized relative to stated regret", 1.5, 1.2, _own("efficiency", "realised_over_stated"), share=False),
    Goal("probes for 72 cells, mean", 12, 10, _own("profiling", "probes_mean"), share=False),
    Goal("probes, maximum", 16, 16, _own("profiling", "probes_max"), share=False),
    Goal("profiling regret against the optimum at 0.98 cap", 0.01, 0.005, _own("profiling", "all", "mean")),
    Goal(
        "the same against the best point whose readings stay under the cap",
        0.01,
        0.005,
        _own("profiling", "against the best by readings", "mean"),
    ),
    Goal("boards with a probe above the cap", 0.03, 0.0, _own("profiling", "boards_with_probe_over")),
    Goal("worst overshoot of a probe", 0.05, 0.0, _own("profiling", "worst_overshoot")),
    Goal("the same with --strict", 0.0, 0.0, _own("profiling", "boards_with_probe_over", way="ours, strict")),
    Goal("picks above the cap", 0.01, 0.0, _own("profiling", "picks_over")),
    Goal("one step of the estimator, ms", 20, 5, _own("efficiency", "step_ms", "mean"), share=False),
    Goal("one step of the search, ms", 20, 5, _own("profiling", "step_ms", "mean"), share=False),
)

PAIRED = (
    ("efficiency", "against paper 6 x 5"),
    ("pipeline", "against full grid + 6 x 5"),
)
"""Comparisons in which ours must not be significantly worse, one-sided at 95 %."""


def goal_results(figures: Figures) -> dict[str, Any]:
    """Every goal with its measured figure, and the paired tests."""
    return {
        "figures": [goal.row(figures) for goal in GOALS],
        "paired": {f"{part} {rival}": figures[part]["ours"][rival] for part, rival in PAIRED},
    }
