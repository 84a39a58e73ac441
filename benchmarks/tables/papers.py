"""The two papers: their figures beside those of wattune."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import read


def asyncfgd_feasibility() -> str:
    """Cases in which each training algorithm fits, and which one is chosen."""
    from benchmarks.asyncfgd.feasibility import markdown

    return markdown(read("asyncfgd_feasibility"))


def asyncfgd_verdict() -> str:
    """Sentences about the cases in which forward gradients and AsyncFGD would be chosen."""
    from benchmarks.asyncfgd.feasibility import verdict

    results = read("asyncfgd_feasibility")
    return f"Evaluated on `sim:{results['board']}` with small models and synthetic memory limits. {verdict(results)}\n"


def asyncfgd_engines() -> str:
    """Accuracies around engines without a backward pass."""
    from benchmarks.asyncfgd.engines import markdown

    return markdown(read("asyncfgd_engines"))


def paper() -> str:
    """The evaluation of arXiv 2502.18323."""
    from benchmarks.paper.sections import markdown, results

    return markdown(results())


def paper_verdict() -> str:
    """Outcome of that evaluation, in two sentences."""
    from benchmarks.paper.sections import results, verdict

    return verdict(results())


PARTS: dict[str, Callable[[], str]] = {
    "asyncfgd_engines": asyncfgd_engines,
    "asyncfgd_feasibility": asyncfgd_feasibility,
    "asyncfgd_verdict": asyncfgd_verdict,
    "paper": paper,
    "paper_verdict": paper_verdict,
}
