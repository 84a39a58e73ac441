"""Tables and sentences about the results of the fleet benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AIMS = {"p99_s": 0.25, "bytes": 200e6, "mix_s": 1.6e-3}
ROUNDS, COST_ROUNDS = 5, 3
LOAD = 0.6
APART = "at different times"

NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def markdown(data: dict[str, Any]) -> str:
    """The tables of the README."""
    names = list(data["databases"])
    lines = [
        f"| CPU of the API process per call | {' | '.join(NAMES[name] for name in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    cells = [_cost(parts["mix"]) for parts in data["databases"].values()]
    lines.append(f"| average of the {_calls(data)} calls of a run | {' | '.join(cells)} |")
    heads = (
        "database",
        "clients",
        "begin",
        "calls/s",
        "of the highest rate",
        "calls",
        "median",
        "p99",
        "p99 by round",
        "slowest",
    )
    heads += ("wrong answers", "lost", "API peak memory", "API CPU, of a core", "torch loaded", "load average")
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in names:
        parts = data["databases"][name]
        groups = [(parts["paced"], APART), ([parts["at_once"]], "together")]
        lines += [_row(name, rounds, begin, parts["mix"]["calls_per_s"]) for rounds, begin in groups]
    machine = data["machine"]
    lines += [
        "",
        f"Measured on {machine['cores']} cores of {machine['cpu']}, with the clients and other work on the same cores.",
    ]
    return "\n".join(lines) + "\n"


def _cost(part: dict[str, Any]) -> str:
    rounds = part["cpu_s_per_call_by_round"]
    spread = f"{1000 * min(rounds):.2f} to {1000 * max(rounds):.2f}"
    return f"{1000 * min(rounds):.2f} ms ({spread} in {len(rounds)} rounds)"


def _row(name: str, rounds: list[dict[str, Any]], begin: str, highest_per_s: float) -> str:
    best = min(rounds, key=_p99_s)
    calls = best["json calls"]
    cells = [NAMES[name], f"{best['devices']:,}", begin, f"{best['calls_per_s']:.0f}"]
    cells += [f"{100 * best['calls_per_s'] / highest_per_s:.0f}%", f"{calls['n']:,}"]
    cells += [f"{1000 * calls[which]:.0f} ms" for which in ("median_s", "p99_s")]
    cells += [_range([_p99_s(one) for one in rounds]), f"{1000 * calls['max_s']:.0f} ms"]
    cells += [str(sum(one["wrong answers"] for one in rounds)), str(sum(sum(one["lost"].values()) for one in rounds))]
    cells += [f"{max(one['api_resident_peak_bytes'] for one in rounds) / 1e6:.0f} MB"]
    cells += [f"{100 * best['api_cpu_share']:.0f}%", "yes" if any(one["api_has_torch"] for one in rounds) else "no"]
    cells += [f"{best['load_average']:.0f}" if "load_average" in best else "not noted"]
    return f"| {' | '.join(cells)} |"


def _p99_s(part: dict[str, Any]) -> float:
    p99_s: float = part["json calls"]["p99_s"]
    return p99_s


def _calls(data: dict[str, Any]) -> int:
    """Number of calls of a device in a run, when this was measured."""
    mix = next(iter(data["databases"].values()))["mix"]
    return round(sum(one["n"] for one in mix["calls"].values()) / mix["devices"])


def _parts(data: dict[str, Any]) -> list[dict[str, Any]]:
    each = [part for parts in data["databases"].values() for part in parts.values()]
    return [one for part in each for one in (part if isinstance(part, list) else [part])]


def _range(seconds: list[float]) -> str:
    low, high = (f"{1000 * bound:.0f}" for bound in (min(seconds), max(seconds)))
    return f"{low} ms" if low == high else f"{low} to {high} ms"


def verdict(data: dict[str, Any]) -> str:
    """Sentences with the CPU time, the p99 latency, the memory, and their aims."""

    def each(text: Callable[[dict[str, Any]], str]) -> str:
        return ", ".join(f"{text(parts)} ({NAMES[name]})" for name, parts in data["databases"].items())

    def cpu(parts: dict[str, Any]) -> str:
        return f"{1000 * parts['mix']['api_cpu_s_per_call']:.2f} ms"

    def p99(parts: dict[str, Any]) -> str:
        return _range([min(map(_p99_s, parts["paced"]))])

    parts = _parts(data)
    lost_ones = sum(sum(one["lost"].values()) + one["wrong answers"] for one in parts)
    most = max(one["devices"] for one in parts)
    resident = max(one["api_resident_peak_bytes"] for one in parts)
    return (
        f"A device makes about {_calls(data)} calls in a run. One takes {each(cpu)} of CPU time on average "
        f"(aim: {1000 * AIMS['mix_s']:g} ms). At "
        f"{100 * LOAD:.0f}% of the highest rate that two shared cores sustain, clients included ({each(_per_s)}), the "
        f"p99 latency is {each(p99)} in the best of {ROUNDS} rounds (aim: {1000 * AIMS['p99_s']:g} ms), and "
        f"{each(lambda parts: _range([_p99_s(parts['at_once'])]))} while all devices begin together. "
        f"Of up to {most:,} simulated clients, {lost_ones or 'none'} lost anything. The API process uses at most "
        f"{resident / 1e6:.0f} MB (aim: {AIMS['bytes'] / 1e6:.0f} MB).\n"
    )


def _per_s(parts: dict[str, Any]) -> str:
    return f"{parts['mix']['calls_per_s']:.0f} calls per second"
