"""The two papers: their figures beside those of wattune."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

from benchmarks.tables.results import read


def asyncfgd(name: str) -> str:
    """The table of one of the benchmarks of AsyncFGD."""
    markdown = importlib.import_module(f"benchmarks.asyncfgd.{name}").markdown
    return str(markdown(read(f"asyncfgd_{name}")))


def asyncfgd_verdict() -> str:
    """Sentences about the cases in which forward gradients and AsyncFGD would be chosen."""
    from benchmarks.asyncfgd.feasibility import verdict

    results = read("asyncfgd_feasibility")
    return f"Evaluated on `sim:{results['board']}` with small models and synthetic memory limits. {verdict(results)}\n"


def paper() -> str:
    """The evaluation of arXiv 2502.18323."""
    from benchmarks.paper.sections import markdown, results

    return markdown(results())


def paper_verdict() -> str:
    """Outcome of that evaluation, in two sentences."""
    from benchmarks.paper.sections import results, verdict

    return verdict(results())


PARTS: dict[str, Callable[[], str]] = {
    **{
        f"asyncfgd_{name}": partial(asyncfgd, name)
        for name in ("accuracy", "engines", "feasibility", "memory", "schedule")
    },
    "asyncfgd_verdict": asyncfgd_verdict,
    "paper": paper,
    "paper_verdict": paper_verdict,
}
