"""Clocks for a program whose steps are only seen from outside, and for other libraries' loops."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import percent, read


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
        "A recorded Jetson TX2 (864 settings) in virtual time: three workloads under eight caps from the power of the "
        "lowest GPU clock to the power of the highest, and one cap that does not bind, three seeds; "
        f"{data['cases']} of them were not used to choose a constant. Means:",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {' / '.join(percent(value) for value in values)} |" for name, values in rows.items()),
        f"| speed over the fastest GPU clock with the others at their highest | {data['over_gpu_alone']:.2f} |",
        f"| measured settings | {data['probes']:.0f} |",
        f"| choices whose power is above the cap; by more than 1% | {data['picks_above']}; "
        f"{data['picks_above_1_percent']} |",
        f"| seconds of 605 with the mean over a second more than 1% above the cap; most | {data['above_s']:.1f}; "
        f"{data['above_s_most']:.1f} |",
        "| the hook itself, without its call by torch: time a step; CPU a start of Python "
        f"| {data['hook_us']:.1f} µs; {data['start_s']:.3f} s |",
    ]
    return "\n".join(lines) + "\n"


def program_flow() -> str:
    """The papers' flow around a program on two emulated boards, with what a kill leaves of it."""
    data = read("program_flow")
    lines = ["| | a run of wattune | Baseline 1 | restored after SIGKILL |", "|---|---|---|---|"]
    for name, board in (("Jetson Nano", data["nano"]), ("Jetson TX2 NX", data["tx2-nx"])):
        runs = (
            f"batch size {run['batch_size']}, {run['time_s']:.0f} s to the target; {run['above_s']:.1f} s above the cap"
            for run in (board["wattune"], board["baseline_1"])
        )
        lines.append(f"| {name}, {board['cap_w']} W | {' | '.join(runs)} | {board['restored']} of {board['killed']} |")
    return "\n".join(lines) + "\n"


def program_metrics() -> str:
    """How the picks from what a program prints change the time to the target."""
    data = read("program_metrics")
    lines = ["| time to the target | cases | a metric every 256 samples | one an epoch |", "|---|---|---|---|"]
    for name in ("digits", "characters"):
        mean, most = data[name]["longer"], data[name]["longest"]
        ways = (f"{100 * mean[way]:+.1f}%, at most {100 * most[way]:+.1f}%" for way in ("fine", "epoch"))
        lines.append(f"| {name} | {data[name]['cases']} | {' | '.join(ways)} |")
    return "\n".join(lines) + "\n"


def pythons() -> str:
    """Tests under the oldest and the newest releases, which their targets of the Makefile run; and an installation."""
    data = read("pythons")
    lines = ["| target | Python | torch | passed | failed |", "|---|---|---|---|---|"]
    for run in data["runs"]:
        lines.append(f"| {run['target']} | {run['python']} | {run['torch']} | {run['passed']:,} | {run['failed']} |")
    ways = (f"`{way}` {one['seconds']:.0f} s and {one['mb']} MB" for way, one in data["install"].items())
    return "\n".join([*lines, "", f"Without torch, from a warm cache: {', '.join(ways)}."]) + "\n"


def trainers() -> str:
    """What differs from the plain program in each library's loop, and what was tried meanwhile."""
    data = read("trainers")
    lines = [
        "| program | optimizer steps; rounds that the guard saw | under `guard` | with wattune's lines |",
        "|---|---|---|---|",
    ]
    for row in data["programs"].values():
        ways = {}
        for way, tried in row["tried"].items():
            differs = ", ".join(row["differs"][way])
            ways[way] = f"{'other: ' + differs if differs else 'equal'}, {tried} settings"
        own = f"`{row['lines']}`: {ways['lines']}" if "lines" in ways else "–"
        lines.append(f"| {row['what']} | {row['steps']}; {row['rounds_seen']} | {ways['guard']} | {own} |")
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    board = "A simulated Jetson TX2 (three clocks) at 5 W, slowed down a hundred times; tiny random models"
    return "\n".join([*lines, "", f"{board}; {versions}."]) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "script": script,
    "program_flow": program_flow,
    "program_metrics": program_metrics,
    "pythons": pythons,
    "trainers": trainers,
}
