"""Fill the figures of the README and the docs from results/, each between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import RESULTS

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "boards.md",
    ROOT / "docs" / "calibration.md",
    ROOT / "docs" / "own-loop.md",
    ROOT / "docs" / "results.md",
    ROOT / "docs" / "server.md",
    ROOT / "benchmarks" / "decisions" / "README.md",
    ROOT / "benchmarks" / "asyncfgd" / "README.md",
    ROOT / "benchmarks" / "paper" / "README.md",
    ROOT / "benchmarks" / "server" / "README.md",
)
MARK = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)


def read(name: str) -> dict[str, Any]:
    """The results of one benchmark."""
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def filled(text: str) -> str:
    """``text`` with every marked part filled from the results."""
    return MARK.sub(lambda match: match[1] + PARTS[match["name"]]() + match[3], text)


def headline() -> str:
    """Headline: the speed of wattune's pick relative to the simpler rules, on the simulated boards of the example."""
    rules = [
        row
        for board in read("example")["boards"]
        for row in board["rows"]
        if row["rule"] not in ("wattune", "fastest") and row["speed_up"]
    ]
    speed_ups = [row["speed_up"] for row in rules]
    return (
        f"In the built-in example, on two *simulated* Jetson boards, wattune reaches the target "
        f"**{span(speed_ups)} times as fast** as {count(len({row['rule'] for row in rules}))} simpler rules do, among "
        "them the usual approach: the largest batch that fits, at a clock low enough for any workload. Time and power "
        "are simulated; how many samples each batch size needs comes from real training runs. See [all "
        "figures](#results), and [when it does not help](#when-it-does-not-help).\n"
    )


def count(number: int) -> str:
    """A small number in words."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[number] if number < len(words) else f"{number}"


def comparison() -> str:
    """Every rule's pick on both boards."""
    lines = []
    for board in read("example")["boards"]:
        lines += [
            f"`{board['device']}`, cap {board['cap_w']:g} W; time and energy simulated, samples from real training "
            "runs:",
            "",
            *rows(board["rows"]),
        ]
        lines.append("")
    return "\n".join(lines)


def sweep() -> str:
    """The picks over 20 caps."""
    lines = []
    for board in read("example")["boards"]:
        picks = [row for row in board["sweep"] if row["feasible"]]
        largest = [row["over_largest_batch"] for row in picks if row["over_largest_batch"]]
        best = [row["over_best_batch"] for row in picks if row["over_best_batch"]]
        lines.append(
            f"- `{board['device']}`: {len(picks)} of {board['caps']} caps are feasible. wattune picks "
            f"{board['different_points']} different points and is faster than both fixed-clock rules under "
            f"{board['beats_both']} caps. (Under {len(picks) - len(largest)} there is nothing to compare with: no "
            "clock is known at which the reference workloads stay under the cap.) It is "
            f"{span(largest)} times as fast as the largest batch at the fixed clock, {span(best)} times as fast as the "
            "best batch at the fixed clock, and at most "
            f"{max(row['above_fastest'] for row in picks):.0%} slower than the fastest point."
        )
    return "\n".join(lines) + "\n"


def profiling_cost() -> str:
    """Cost of profiling beside the example's short training run."""
    lines = []
    for board in read("example")["boards"]:
        profile, training = board["profile"], board["training"]
        pays = profile["pays_after_trainings"]
        lines.append(
            f"- `{board['device']}`: profiling {profile['cells']} points takes {profile['time_s']:.0f} s of board "
            f"time, {profile['share_of_this_training']:.0f} times as long as this training run "
            f"({training['time_s']:.0f} s). "
            + (f"It pays for itself after {pays:.0f} runs like this." if pays else "It never pays for runs like this.")
        )
    return "\n".join(lines) + "\n"


def speed() -> str:
    """Speed of the tool itself."""
    startup, planning, profiling, metering = (read(n) for n in ("startup", "planning", "profiling", "metering"))
    machine, (low, high) = startup["machine"], metering["quartiles"]
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}: median (fastest to "
        "slowest).\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| planning {planning['cells']} points | 1 ms | {ms(planning)} |\n"
        f"| simulated profile of ResNet-8, {profiling['cells']} points, without imports | 2 s "
        f"| {seconds(profiling)} |\n"
        f"| `wattune --help` | 0.5 s | {seconds(startup)} |\n"
        f"| CPU time of the meter's thread, sampling at 10 Hz beside a real training loop | under 1% "
        f"| {metering['sampling_thread']:.2%} |\n"
        f"| slowdown of that loop by the meter, {metering['pairs']} pairs with and without | under 1% "
        f"| {metering['overhead']:+.1%} (quartiles {low:+.1%} to {high:+.1%}: the machine's noise) |\n"
    )


def real_images() -> str:
    """The comparison on real photographs."""
    data = read("real_images")
    relative = ", ".join(f"{value:.2f} at {size}" for size, value in data["relative_samples"].items() if value)
    training = data["training"]
    lines = [
        f"Pre-trained on 100 classes of Tiny ImageNet; {data['images']:,} images of CIFAR-10, classes 0-4 as the proxy "
        f"and 5-9 as the target; {data['seeds']} seeds. Relative samples to target by batch size, from the proxy: "
        f"{relative}. Profiling took {data['profiling_share']:.1f} times as long as the training run of "
        f"{training['time_s']:.0f} s. Cap {data['cap_w']:g} W on `{data['device']}`:",
        "",
        *rows(data["rows"]),
    ]
    return "\n".join(lines) + "\n"


def boards() -> str:
    """Overhead and response times on a board."""
    data = read("boards")
    machine, guard, memory, pinning = data["machine"], data["guard"], data["memory"], data["pinning"]
    files = [board for board in data["boards"] if not board["by_program"]]
    program = next(board for board in data["boards"] if board["by_program"])
    slowest = max(files, key=lambda board: board["device"]["median_s"])
    return (
        f"On {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}, with files in place of a "
        "board's: median (worst). The time that the kernel's driver needs to query the chip is not included.\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| one reading, slowest of {len(files)} boards ({slowest['board']}) | 0.2 ms "
        f"| {worst_ms(slowest['device'])} |\n"
        f"| one reading, worst of {data['readings']} on each of these boards | "
        f"| {max(board['device']['max_s'] for board in files) * 1e3:.2f} ms |\n"
        f"| extra time, once a second, to check temperatures and counters, slowest board | "
        f"| {worst_ms(max((board['conditions'] for board in files), key=lambda costs: costs['median_s']))} |\n"
        f"| one reading by a program (Raspberry Pi 5, `vcgencmd` as a script) | | {worst_ms(program['device'])} |\n"
        f"| one reading through an agent, round trip | | {worst_ms(data['agent']['read'])} |\n"
        f"| taking control: lock, snapshot on disk, limits, and a clock that settles after 50 ms | "
        f"| {worst_ms(pinning['first'])} |\n"
        f"| restoring the board | | {worst_ms(pinning['restore'])} |\n"
        f"| `wattune guard`: from power above the cap to the lower clock, {guard['from_power']['repeats']} rises, "
        f"a reading every {guard['sampling_s']:g} s | | {worst_ms(guard['from_power'], 0)} |\n"
        f"| the same, from the moment the program starts working, on a board that reports its load every 100 ms | "
        f"| {worst_ms(guard['from_program'], 0)} |\n"
        f"| memory growth from minute 10 to minute 60 of a training run of one virtual hour, {memory['readings']:,} "
        f"readings | none | {memory['traced_growth_bytes'] / 1024:+.0f} KiB of Python objects, "
        f"{memory['resident_growth_bytes'] / 1024:+.0f} KiB resident |\n"
    )


def agent_cost() -> str:
    """The agent's own cost with files that take as long to read as a real board's."""
    data = read("agent_cost")
    lines = [
        f"Ten readings a second, with {data['read_s'] * 1e3:g} ms for each file: what one register of an INA3221 takes "
        "on an AGX Orin, and more than a temperature does.",
        "",
        "| board | files read per second | share of one core | longest reading |",
        "|---|---|---|---|",
    ]
    for board in data["boards"]:
        lines.append(
            f"| {board['board']} | {board['reads_per_s']:.0f} | {board['share']:.1%} "
            f"| {board['longest_s'] * 1e3:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def rows(comparison_rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a comparison as a table."""
    lines = [
        "| | batch size | clock | time to target | energy | time relative to wattune |",
        "|---|---|---|---|---|---|",
    ]
    for row in comparison_rows:
        point = f"| {row['rule']} | {row['batch_size'] or '–'} | "
        if row["time_s"] is None:
            lines.append(f"{point}– | {row['why_not']} | | |")
            continue
        lines.append(
            f"{point}{row['clock_mhz']:g} MHz | {row['time_s']:.1f} ± {row['time_std_s']:.1f} s "
            f"| {row['energy_j']:.0f} ± {row['energy_std_j']:.0f} J | {row['speed_up']:.2f} |"
        )
    return lines


def span(values: list[float]) -> str:
    """Smallest to largest."""
    return f"{min(values):.2f} to {max(values):.2f}" if values else "unknown"


def ms(figures: dict[str, float]) -> str:
    """A median with its range, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.2f} ms ({figures['min_s'] * 1e3:.2f} to {figures['max_s'] * 1e3:.2f})"


def worst_ms(figures: dict[str, float], digits: int = 2) -> str:
    """A median with the worst, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.{digits}f} ms ({figures['max_s'] * 1e3:.{digits}f})"


def seconds(figures: dict[str, float]) -> str:
    """A median with its range, in seconds."""
    return f"{figures['median_s']:.2f} s ({figures['min_s']:.2f} to {figures['max_s']:.2f})"


KNOWN = {
    "recipe": "recipe kept",
    "curve": "sample estimates within 3%",
    "noise scale": "gradient noise scale",
    "prior": "past workloads only",
}


def percent(share: float) -> str:
    """A share of one, with one decimal."""
    return f"{100 * share:.1f}%"


def session() -> str:
    """Regret of a session, by what it knows of the samples to target, beside two other strategies."""
    data = read("session")
    lines = [
        f"{data['boards']} random simulated boards, {data['workloads']} workloads, {len(data['caps'])} caps each. "
        "Every training run would take an hour at its best point. Regret is how much longer the current point takes "
        "than the fastest point below the cap, if that were known exactly. "
        f"{percent(data['regret']['recipe']['guided']['noise_price'])} of it is the price of sensor noise alone if the "
        "recipe is kept, since no reading may exceed the cap. A strategy that trains with readings above the cap can "
        "be faster than that point; its regret is then negative.",
        "",
        "| known about samples to target | strategy | regret after 60 s | after 5 min | after 10% of the run "
        "| runs below 1% by then | time spent probing | runs with a reading above the cap while probing "
        "| while training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, ways in data["regret"].items():
        for way, figures in ways.items():
            name = "wattune" if way == "guided" else way
            means = " | ".join(percent(figures[f"in_force {moment}"]["mean"]) for moment in ("60 s", "5 min", "10 %"))
            lines.append(
                f"| {KNOWN[kind]} | {name} | {means} | {100 * figures['in_force 10 %']['below 1 %']:.0f}% "
                f"| {figures['probing_s']:.0f} s | {figures['runs_above_probing']} of {figures['runs']} "
                f"| {figures['runs_above_training']} |"
            )
    return "\n".join(lines) + "\n"


def session_overhead() -> str:
    """CPU time that a session adds to a step, by kind of loop, and its share of the step."""
    lines = [
        "| loop | CPU time per step (median, 95% band) | share of the step time | step time at which it is 1% |",
        "|---|---|---|---|",
    ]
    for name, title in (("capped", "your own loop"), ("lightning", "Lightning"), ("transformers", "Transformers")):
        figures = read("session_overhead")[name]
        extra = figures["tiny"]["extra_s"]
        low, high = (1e3 * bound for bound in extra["band"])
        shares = ", ".join(f"{percent(one['overhead'])} of {1e3 * one['step_s']:.0f} ms" for one in steps_of(figures))
        least = 1e3 * figures["least_step_s"]
        lines.append(
            f"| {title} | {1e3 * extra['median']:.2f} ms ({low:.2f} to {high:.2f}) | {shares} | {least:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def steps_of(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """The results for steps of usual length, without the tiny model that only measures the difference."""
    return [one for size, one in figures.items() if size not in ("tiny", "least_step_s")]


def gpus() -> str:
    """Gain from choosing the batch size on real GPUs, from Zeus' public traces."""
    data = read("decisions")["gpus"]
    gain, ours = data["gain"]["largest batch"], data["regret"]["ours"]
    groups = gain["by_group"]
    most = max(groups, key=groups.__getitem__)
    gpu, workload = most.upper().rsplit(" ", 1)
    flat = [name for name, times in groups.items() if times < 1.05]
    return (
        "On recorded training runs of real GPUs ([Zeus](https://github.com/ml-energy/zeus): V100 and A40, three "
        f"workloads, every power limit and target, {data['cases']} cases), the batch size that wattune picks from "
        f"{ours['runs_mean']:.0f} runs on average reaches the target {gain['geometric_mean']:.1f} times as fast as the "
        f"largest batch that reaches it (geometric mean; median {gain['median']:.2f}, best {gain['best']:.1f}, worst "
        f"{gain['worst']:.2f}). All of the gain comes from {workload} ({groups[most]:.1f} times on {gpu}): on "
        f"{len(flat)} of the {len(groups)} pairs of GPU and workload there is none, and {percent(gain['loses'])} of "
        f"the cases get slower. Compared with the best batch size, the pick is {percent(ours['median'])} slower in the "
        f"median and {percent(ours['mean'])} slower on average.\n"
    )


REACHED = {"aim": "aim met", "must": "requirement met", "missed": "missed"}
"""Outcome of a goal in the results -> the same in words."""


def decisions() -> str:
    """The figures of the decisions, each beside its goal."""
    lines = ["| figure | measured | required | aim | result |", "|---|---|---|---|---|"]
    for one in read("decisions")["goals"]["figures"]:
        shown = [percent(one[key]) if one["share"] else f"{one[key]:g}" for key in ("measured", "must", "aim")]
        lines.append(f"| {one['figure']} | {' | '.join(shown)} | {REACHED[one['reached']]} |")
    return "\n".join(lines) + "\n"


def beginning() -> str:
    """The recorded null result of the first-tenth comparison, which is no longer part of wattune."""
    figures = read("decisions")["beginning"]
    lines = [
        "| batch size after the first tenth | regret on the target | change (90% interval) |",
        "|---|---|---|",
    ]
    for name, one in figures["regret"].items():
        less = one["against kept"]
        ends = f"{100 * less['low']:+.2f} to {100 * less['high']:+.2f}"
        apart = f"{100 * less['difference']:+.2f}% ({ends})" if one["changed"] else "-"
        lines.append(f"| {name} | {100 * one['mean']:.2f}% | {apart} |")
    progress, estimates = figures["progress"], figures["samples"]
    off = estimates["outside the band"]
    lines += [
        "",
        f"The progress is inside its 90% band in {percent(progress['inside'])} of {progress['cases']} cases, the "
        f"noise scale in {percent(figures['noise']['inside'])}. ln(samples) is off by {estimates['all']['off']:.2f} in "
        f"the first prediction and by {estimates['all']['anew']:.2f} in the second; if the progress is outside the "
        f"band ({off['cases']} cases), by {off['off']:.2f} and {off['anew']:.2f}.",
    ]
    return "\n".join(lines) + "\n"


def asyncfgd(part: str) -> Callable[[], str]:
    """Function that returns the text of one part of that benchmark."""

    def text_of_part() -> str:
        text: str = importlib.import_module(f"benchmarks.asyncfgd.{part}").markdown(read(f"asyncfgd_{part}"))
        return text

    return text_of_part


def asyncfgd_verdict() -> str:
    """Sentences about the cases in which forward gradients and AsyncFGD would be chosen."""
    from benchmarks.asyncfgd.feasibility import verdict

    results = read("asyncfgd_feasibility")
    return f"Evaluated on `sim:{results['board']}` with small models and synthetic memory limits. {verdict(results)}\n"


def server_fleet() -> str:
    """A fleet of simulated clients against a real server."""
    from benchmarks.server.fleet import NAME, markdown

    return markdown(read(NAME))


def server_verdict() -> str:
    """Capacity of one server, in two sentences."""
    from benchmarks.server import overlap
    from benchmarks.server.fleet import NAME, verdict

    return verdict(read(NAME)) + overlap.verdict(read(overlap.NAME))


def server_overlap() -> str:
    """Profiling on the device while the server estimates."""
    from benchmarks.server import overlap

    return overlap.markdown(read(overlap.NAME))


CALIBRATION = ("cells", "checks", "constants", "fits", "power")


def calibration(part: str) -> Callable[[], str]:
    """Function that returns the text of one part of the calibration of the simulated boards."""

    def text_of_part() -> str:
        from benchmarks.paper.calibration import NAME, markdown

        return markdown(part, read(NAME))

    return text_of_part


def paper() -> str:
    """The evaluation of arXiv 2502.18323."""
    from benchmarks.paper.sections import markdown, results

    return markdown(results())


def paper_verdict() -> str:
    """Outcome of that evaluation, in two sentences."""
    from benchmarks.paper.sections import results, verdict

    return verdict(results())


PARTS: dict[str, Callable[[], str]] = {
    **{f"asyncfgd_{part}": asyncfgd(part) for part in ("accuracy", "feasibility", "memory", "speed", "staleness")},
    "asyncfgd_verdict": asyncfgd_verdict,
    "beginning": beginning,
    "boards": boards,
    "agent_cost": agent_cost,
    **{f"calibration_{part}": calibration(f"calibration_{part}") for part in CALIBRATION},
    "comparison": comparison,
    "decisions": decisions,
    "gpus": gpus,
    "headline": headline,
    "paper": paper,
    "paper_verdict": paper_verdict,
    "profiling_cost": profiling_cost,
    "real_images": real_images,
    "server_fleet": server_fleet,
    "server_overlap": server_overlap,
    "server_verdict": server_verdict,
    "session": session,
    "session_overhead": session_overhead,
    "speed": speed,
    "sweep": sweep,
}


def main() -> None:
    """Fill every page."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"{page.name} filled")


if __name__ == "__main__":
    main()
