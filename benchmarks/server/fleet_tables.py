"""Table and sentences about the results of the fleet benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AIMS: dict[str, Any] = {"p99_ratio": 2.0, "bytes": 200e6, "mix_s": {"sqlite": 1.0e-3, "postgresql": 0.8e-3}}
COST_ROUNDS, LOAD = 3, 0.6
NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def markdown(data: dict[str, Any]) -> str:
    """The table of the README."""
    heads = ("database", f"CPU per call, of {_calls(data)}", "clients", "calls/s", "of the highest rate", "calls")
    heads += ("median", "p99", "p99 of a bare route", "wrong answers", "lost", "peak memory", "torch loaded")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [_row(name, parts["mix"], parts["paced"]) for name, parts in data["databases"].items()]
    machine = data["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, with the clients and other work on the same cores"
    return "\n".join([*lines, "", f"Measured on {where}."]) + "\n"


def _row(name: str, mix: dict[str, Any], paced: dict[str, Any]) -> str:
    rounds, calls = mix["cpu_s_per_call_by_round"], paced["json calls"]
    cells = [NAMES[name], f"{1000 * min(rounds):.2f} to {1000 * max(rounds):.2f} ms in {len(rounds)} rounds"]
    cells += [f"{paced['devices']:,}", f"{paced['calls_per_s']:.0f}"]
    cells += [f"{100 * paced['calls_per_s'] / mix['calls_per_s']:.0f}%", f"{calls['n']:,}"]
    bare_s = paced.get("bare_p99_s_by_round") or [paced["bare route"]["p99_s"]]
    cells += [f"{1000 * calls[key]:.0f} ms" for key in ("median_s", "p99_s")]
    cells += [" to ".join(f"{1000 * time_s:.0f} ms" for time_s in sorted({min(bare_s), max(bare_s)}))]
    cells += [str(paced["wrong answers"]), str(sum(paced["lost"].values()))]
    cells += [f"{paced['api_resident_peak_bytes'] / 1e6:.0f} MB", "yes" if paced["api_has_torch"] else "no"]
    return f"| {' | '.join(cells)} |"


def _calls(data: dict[str, Any]) -> int:
    """Number of calls of a device in a run, when this was measured."""
    mix = next(iter(data["databases"].values()))["mix"]
    return round(sum(one["n"] for one in mix["calls"].values()) / mix["devices"])


def verdict(data: dict[str, Any]) -> str:
    """Sentences with the CPU time, the p99 latency, the memory, and their aims."""

    def each(text: Callable[[dict[str, Any], dict[str, Any]], str]) -> str:
        found = data["databases"].items()
        return ", ".join(f"{text(parts['mix'], parts['paced'])} ({NAMES[name]})" for name, parts in found)

    parts = [part for both in data["databases"].values() for part in (both["mix"], both["paced"])]
    lost_ones = sum(sum(one["lost"].values()) + one["wrong answers"] for one in parts)
    most, resident = (max(one[key] for one in parts) for key in ("devices", "api_resident_peak_bytes"))
    cpu = each(lambda mix, paced: f"{1000 * mix['api_cpu_s_per_call']:.2f} ms")
    rate = each(lambda mix, paced: f"{mix['calls_per_s']:.0f} calls per second")
    p99 = each(lambda mix, paced: f"{1000 * paced['json calls']['p99_s']:.0f} ms")
    ratio = each(lambda mix, paced: f"{paced['json calls']['p99_s'] / paced['bare route']['p99_s']:.1f}")
    return (
        f"A device makes about {_calls(data)} calls in a run. One takes {cpu} of CPU time on average (aims: "
        f"{', '.join(f'{1000 * aim:g} ms' for aim in AIMS['mix_s'].values())}). At {100 * LOAD:.0f}% of the highest "
        f"rate that two shared cores sustain, clients included ({rate}), the p99 latency is {p99}. In proportion to a "
        f"bare Starlette route under the same load it is {ratio} (aim: {AIMS['p99_ratio']:g}). Of up to {most:,} "
        f"simulated clients, {lost_ones or 'none'} lost anything. The API process uses at most {resident / 1e6:.0f} MB "
        f"(aim: {AIMS['bytes'] / 1e6:.0f} MB).\n"
    )
