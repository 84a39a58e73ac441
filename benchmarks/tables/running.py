"""Programs and loops that run under a cap, one device or several, budgets that move, and what the tool itself takes."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.server import fleet_tables
from benchmarks.tables.results import ms, percent, read, table


def script() -> str:
    """Regret and loss of the choice on a recorded board, with what the hook costs."""
    data = read("script")
    regret, loss = data["regret"], data["loss_binding"]
    rows = {
        "best measured setting over the fastest under the cap, after 1 / 2 / 5 min": [
            regret[at] for at in ("60", "120", "300")
        ],
        "the same under the lowest cap, after 2 / 5 min": [data["regret_lowest_cap"][at] for at in ("120", "300")],
        "all time over that at the fastest setting, search included, after 2 / 5 / 10 min": [
            loss[at] for at in ("120", "300", "600")
        ],
        "the same where the cap does not bind, after 5 min": [data["loss_not_binding"]["300"]],
        "setting of a second run over the fastest, after 20 s": [data["again_in_force"]],
    }
    lines = [
        *((name, " / ".join(percent(value) for value in values)) for name, values in rows.items()),
        ("speed over the fastest GPU clock with the others at their highest", f"{data['over_gpu_alone']:.2f}"),
        ("measured settings", f"{data['probes']:.0f}"),
        (
            "choices whose power is above the cap; by more than 1%",
            f"{data['picks_above']}; {data['picks_above_1_percent']}",
        ),
        (
            "seconds of 605 with the mean over a second more than 1% above the cap; most",
            f"{data['above_s']:.1f}; {data['above_s_most']:.1f}",
        ),
        (
            "the hook itself, without its call by torch: time a step; CPU a start of Python",
            f"{data['hook_us']:.1f} µs; {data['start_s']:.3f} s",
        ),
    ]
    return (
        "A recorded Jetson TX2 (864 settings) in virtual time: three workloads under eight caps from the power of the "
        "lowest GPU clock to the power of the highest, and one cap that does not bind, three seeds; "
        f"{data['cases']} of them were not used to choose a constant. Means:\n\n{table(' | ', lines)}"
    )


def program_flow() -> str:
    """The papers' flow around a program on two emulated boards, with what a kill leaves of it."""
    data = read("program_flow")
    rows = []
    for name, board in (("Jetson Nano", data["nano"]), ("Jetson TX2 NX", data["tx2-nx"])):
        runs = (
            f"batch size {run['batch_size']}, {run['time_s']:.0f} s to the target; {run['above_s']:.1f} s above the cap"
            for run in (board["wattune"], board["baseline_1"])
        )
        rows.append((f"{name}, {board['cap_w']} W", *runs, f"{board['restored']} of {board['killed']}"))
    return table(" | a run of wattune | Baseline 1 | restored after SIGKILL", rows)


def program_metrics() -> str:
    """How the picks from what a program prints change the time to the target."""
    data = read("program_metrics")
    rows = []
    for name in ("digits", "characters"):
        mean, most = data[name]["longer"], data[name]["longest"]
        ways = (f"{100 * mean[way]:+.1f}%, at most {100 * most[way]:+.1f}%" for way in ("fine", "epoch"))
        rows.append((name, data[name]["cases"], *ways))
    return table("time to the target | cases | a metric every 256 samples | one an epoch", rows)


def pythons() -> str:
    """Tests under the oldest and the newest releases, which their targets of the Makefile run; and an installation."""
    data = read("pythons")
    rows = [
        (run["target"], run["python"], run["torch"], f"{run['passed']:,}", str(run["failed"])) for run in data["runs"]
    ]
    ways = (f"`{way}` {one['seconds']:.0f} s and {one['mb']} MB" for way, one in data["install"].items())
    text = table("target | Python | torch | passed | failed", rows)
    return f"{text}\nWithout torch, from a warm cache: {', '.join(ways)}.\n"


def trainers() -> str:
    """What differs from the plain program in each library's loop, and what was tried meanwhile."""
    data = read("trainers")
    rows = []
    for row in data["programs"].values():
        ways = {}
        for way, tried in row["tried"].items():
            differs = ", ".join(row["differs"][way])
            ways[way] = f"{'other: ' + differs if differs else 'equal'}, {tried} settings"
        own = f"`{row['lines']}`: {ways['lines']}" if "lines" in ways else "–"
        rows.append((row["what"], f"{row['steps']}; {row['rounds_seen']}", ways["guard"], own))
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    board = "A simulated Jetson TX2 (three clocks) at 5 W, slowed down a hundred times; tiny random models"
    head = "program | optimizer steps; rounds that the guard saw | under `guard` | with wattune's lines"
    return f"{table(head, rows)}\n{board}; {versions}.\n"


def loops() -> str:
    """How far loops that search while they train are from the best setting, which nobody could know."""
    data = read("loops")
    above_s = max(row["above_cap_s"] for row in (*data["own"], *data["trainers"]))
    trainers = " and ".join(f"{over - 1:.0%} with {name}" for name, over in data["over_best"].items())
    seconds, regret = sorted(row["time_s"] for row in data["trainers"]), data["regret"]
    return (
        f"All clocks, on simulated boards and the recorded TX2: in an own loop the best setting that was measured is "
        f"{regret['60']:.1%} slower than the best one after a minute and {regret['300']:.1%} after five "
        f"({len(data['own'])} cases). Training runs of {seconds[0]:.0f} to {seconds[-1]:.0f} s, in which searches "
        f"may take 2%, take longer than at the best setting by {trainers}. At most {above_s:.1f} s of 300 s are above "
        "the cap by any amount.\n"
    )


def session_overhead() -> str:
    """CPU time that a session adds to a step of your own loop, and its share of a step."""
    data = read("session_overhead")
    low, high = (1e3 * bound for bound in data["band_s"])
    return (
        f"A session adds {1e3 * data['extra_s']:.2f} ms of CPU time to a step of your own loop (95% band {low:.2f} to "
        f"{high:.2f}), and the thread that reads the sensor takes {data['sampling_thread']:.2%} of one core. Together "
        f"they are 1% of a step of {1e3 * data['least_step_s']:.0f} ms.\n"
    )


# ------------------------------------------------------------------------------------------------------ several devices


def federated() -> str:
    """Time and energy until a fleet reaches the target accuracy, and wattune's gain over each other strategy."""
    data = read("federated")
    seeds = "one seed" if data["seeds"] == 1 else f"medians of {data['seeds']} seeds (and lowest and highest)"
    rows = []
    for row in data["time"]:
        gains = ["", ""]
        if row["policy"] != "wattune" and row["faster"] is not None:
            ends = [gain if data["seeds"] > 1 else gain[:1] for gain in (row["faster"], row["of_energy"])]
            gains = [" / ".join(f"{gain:.2f}" for gain in one) for one in ends]
        spent = f"{row['time_s']:.1f}", f"{row['energy_j']:.0f}"
        rows.append((row["policy"], f"{row['round_s']:.2f} s", f"{row['rounds']:g}", *spent, *gains))
    return (
        f"{data['clients']} *simulated* clients on {len(data['boards'])} kinds of boards until the test accuracy is "
        f"{data['target']:.0%}, {seeds}.\n\n"
    ) + table(
        "strategy | a round | rounds | seconds | joules | wattune is faster | wattune's energy over its own", rows
    )


def ranks() -> str:
    """Several devices under one budget: the division of the watts, and killed ranks."""
    data, killed = read("ranks_division"), read("ranks_killed")
    *smaller, largest = sorted({case["ranks"] for case in data["cases"]})
    sizes = f"{', '.join(map(str, smaller))} and {largest}"
    names = {
        "spread": f"one kind, power at equal clock {100 * data['spread']:.0f}% apart (standard deviation)",
        "mixed": "every second one twice as fast at the same power",
    }
    divisions = []
    for name, words in names.items():
        kind = data["summary"][name]
        over = f"{kind['over_equal_median']:.2f} ({kind['over_equal_lowest']:.2f} to {kind['over_equal_highest']:.2f})"
        of_best = f"{kind['of_best_mean']:.0%} ({kind['of_best_lowest']:.0%} to {kind['of_best_highest']:.0%})"
        above = f"{kind['above_cap_s']:.3g} of {kind['time_s']:.0f} s"
        divisions.append((words, kind["cases"], over, of_best, above))
    jobs = {"session": "sessions of 3 ranks", "script": "a script of 2 ranks under `wattune guard -- torchrun`"}
    kills = []
    for way, words in jobs.items():
        one = killed["summary"][way]
        restored = f"{one['restored']}, {one['restored_s_median']:.1f} ({one['restored_s_longest']:.1f})"
        ended = f"{one['ended_clearly']}, {one['ended_s_median']:.1f} ({one['ended_s_longest']:.1f})"
        kills.append((words, one["moments"], restored, ended))
    division = table(
        'boards | cases | `over="node"` over equal limits: median (lowest to highest) | of the best division: mean '
        "(lowest to highest) | time above the cap",
        divisions,
    )
    ends = table("job | kills | files restored: kills, seconds (longest) | others ended and named it: the same", kills)
    return (
        f"Real jobs of {sizes} processes train a small network over gloo on *simulated* boards (`{data['board']}`, "
        "slower and with more clocks), in a session each. Steps per second where the session settled, relative to a "
        "session with equal limits (cap / N for each board) and to the best division that there is, micro-batches "
        f"included:\n\n{division}\nOne rank was killed (SIGKILL), rank 0 or another, on boards that are folders with "
        f"the files of real ones:\n\n{ends}"
    )


def server_fleet() -> str:
    """A fleet of simulated clients against a real server."""
    return fleet_tables.markdown(read("server_fleet"))


def server_verdict() -> str:
    """Capacity of one server, in sentences."""
    return fleet_tables.verdict(read("server_fleet"))


# ---------------------------------------------------------------------------------------------------- moving budgets


def moving_caps() -> str:
    """Progress under caps that change, and the time above them."""
    data = read("moving_caps")
    days = [
        (
            f"{board['device']}, {kind}",
            f"{percent(row['of_clairvoyant'])} ({percent(row['of_clairvoyant_worst'])})",
            f"{row['over_constant']:.2f} ({row['over_constant_worst']:.2f})",
        )
        for board in data["boards"]
        for kind, row in board["of"].items()
    ]
    limiter, first = [], data["limiter"][0]
    for row in data["limiter"]:
        told, untold = row["announced"], row["unannounced"]
        both = f"{told['above_s']:.2g} s", f"{untold['above_s']:.1f} s, {untold['most_above_s']:.2f} s"
        limiter.append((row["device"], row["lowerings"], *both))
    head = "device, day | of the progress of the fastest point under each cap | times the best single point"
    return (
        f"{data['days']} generated days of each kind, each planned with its own caps: mean (worst day). "
        "*Simulated* boards train ResNet-8, with samples to target assumed to grow as 1 + b/30; the recorded GPU "
        "trains ShuffleNetV2 by the epochs that it needed.\n\n"
        f"{table(head, days)}"
        f"\nThe goals are 96% and 1.2 times. Simulated boards, through the limiter, with {first['caps']} caps each; "
        f"exact time with the mean over {first['announced']['window_s']:g} s above the cap:\n\n"
        f"{table('device | lowerings | announced | not announced: in all, longest', limiter)}"
    )


def carbon() -> str:
    """Carbon of times to train at, over the fastest point at once."""
    data = read("carbon")
    names = ("least energy, at once", "fastest, at its times", "least energy, at its times", "point and times together")
    rows = []
    for row in data["rows"]:
        above = percent(row["above perfect foresight"])
        rows.append((row["device"], f"{row['slack']:g}", *(f"{row[name]:.2f}" for name in names), above))
    return (
        f"A job of {data['job_h']:g} h, begun at {data['starts']} moments of a recorded month, on *simulated* boards: "
        "carbon relative to the fastest point at once, mean.\n\n"
    ) + table(f"device | deadline over the job | {' | '.join(names)} | above perfect foresight", rows)


# ------------------------------------------------------------------------------------------------------ the tool itself


def speed() -> str:
    """Speed of the tool itself."""
    startup, planning, search = read("startup"), read("planning"), read("search_speed")
    machine, over = startup["machine"], startup["over_imports"]
    ratios = [f"{statistics.median(one['over_before']):.2f}" for one in search["settings"].values()]
    decision = f"among {', '.join(search['settings'])} settings, over that of {search['before'][:7]}"
    rows = [
        (f"planning {planning['cells']} points", "1 ms", ms(planning)),
        (f"CPU time of a search's decision {decision}", "0.25", ", ".join(ratios)),
        (
            "CPU time of `wattune --help` over importing typer, rich and pydantic",
            "1.3",
            f"{over['median']:.2f} ({over['min']:.2f} to {over['max']:.2f})",
        ),
    ]
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}: median (fastest to "
        f"slowest).\n\n{table(' | aim | measured', rows)}"
    )


def growth() -> str:
    """CPU time of the work, its exponents from a hundredth and a tenth of the work on, and what stays bounded."""
    data = read("growth")
    week, day = data["week"], data["day"]
    report = next(row for row in data["rows"] if row["name"] == "a report of a training run")
    every_s = 3600 * week["hours"] / week["caps"]
    works = f"{week['caps']:,} caps, {week['evaluations']:,} evaluations"
    rows = [
        *((row["name"], f"{row['works'][-1]:,} {row['unit']}", *_costs(row)) for row in data["rows"]),
        (f"training under a new cap each {every_s:g} s", works, *_costs(week)),
        ("`wattune guard`, a new cap each 4 s", f"24 h, {day['readings']:,} readings", *_costs(day)),
    ]
    return table(" | work | CPU seconds | exponent; from a tenth on", rows) + (
        f"\nA report of 10,000 evaluations has {report['mb']:.2f} MB. Memory grows by {week['growth_mib']:.1f} MiB "
        f"from a tenth of the training to its end, and by {day['growth_mib']:.1f} MiB in a day of the guard. Its last "
        f"hour takes {day['last_hour_over_first']:.2f} times as long as its first.\n"
    )


def _costs(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['cpu_s'][-1]:.2g}", f"{row['exponent']:.2f}; {row['exponent_last']:.2f}"
