"""The two papers: their figures beside those of wattune."""

from __future__ import annotations

import importlib
from functools import partial

from benchmarks.tables.results import read


def asyncfgd(name: str) -> str:
    """The table of one of the benchmarks of AsyncFGD."""
    module = "memory_probe" if name == "memory" else name
    markdown = importlib.import_module(f"benchmarks.asyncfgd.{module}").markdown
    return str(markdown(read(f"asyncfgd_{name}")))


asyncfgd_accuracy = partial(asyncfgd, "accuracy")
asyncfgd_engines = partial(asyncfgd, "engines")
asyncfgd_feasibility = partial(asyncfgd, "feasibility")
asyncfgd_memory = partial(asyncfgd, "memory")
asyncfgd_schedule = partial(asyncfgd, "schedule")


def asyncfgd_verdict() -> str:
    """Sentences about the cases in which forward gradients and AsyncFGD would be chosen."""
    from benchmarks.asyncfgd.feasibility import verdict

    results = read("asyncfgd_feasibility")
    return f"Evaluated with small models and synthetic memory limits. {verdict(results)}\n"


def paper() -> str:
    """The evaluation of arXiv 2502.18323."""
    from benchmarks.paper.sections import markdown, results

    return markdown(results())


def paper_verdict() -> str:
    """Outcome of that evaluation, in two sentences."""
    from benchmarks.paper.sections import results, verdict

    return verdict(results())
