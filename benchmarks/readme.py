"""Fills the figures of the README and the docs from results/, each between `<!-- NAME -->` and `<!-- /NAME -->`."""

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
    """``text`` with every marked part written anew from the results."""
    return MARK.sub(lambda match: match[1] + PARTS[match["name"]]() + match[3], text)


def comparison() -> str:
    """Every rule's pick on both boards."""
    lines = []
    for board in read("example")["boards"]:
        lines += [
            f"`{board['device']}`, cap {board['cap_w']:g} W, time and energy simulated, samples from real trainings:",
            "",
            *rows(board["rows"]),
        ]
        lines.append("")
    return "\n".join(lines)


def sweep() -> str:
    """What 20 caps say."""
    lines = []
    for board in read("example")["boards"]:
        picks = [row for row in board["sweep"] if row["feasible"]]
        largest = [row["over_largest_batch"] for row in picks if row["over_largest_batch"]]
        best = [row["over_best_batch"] for row in picks if row["over_best_batch"]]
        lines.append(
            f"- `{board['device']}`: of {board['caps']} caps, {len(picks)} can be kept at all; the pick takes "
            f"{board['different_points']} different points and is faster than both fixed-clock rules at "
            f"{board['beats_both']} of them (at {len(picks) - len(largest)} no clock is known at which the reference "
            f"workloads keep the cap, so there is nothing to compare with). It is {span(largest)} times as fast as the "
            f"largest batch at the fixed clock, {span(best)} times as fast as the best batch there; at most "
            f"{max(row['above_fastest'] for row in picks):.0%} slower than the fastest."
        )
    return "\n".join(lines) + "\n"


def profiling_cost() -> str:
    """What profiling costs against the example's short training."""
    lines = []
    for board in read("example")["boards"]:
        profile, training = board["profile"], board["training"]
        pays = profile["pays_after_trainings"]
        lines.append(
            f"- `{board['device']}`: profiling {profile['cells']} points takes {profile['time_s']:.0f} s of the "
            f"board's time, {profile['share_of_this_training']:.0f} times this training's {training['time_s']:.0f} s. "
            + (f"It has paid after {pays:.0f} such trainings." if pays else "It never pays for such trainings.")
        )
    return "\n".join(lines) + "\n"


def speed() -> str:
    """The tool's own speed."""
    startup, planning, profiling, metering = (read(n) for n in ("startup", "planning", "profiling", "metering"))
    machine, (low, high) = startup["machine"], metering["quartiles"]
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}; medians, "
        "fastest and slowest in brackets:\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| planning {planning['cells']} points | 1 ms | {ms(planning)} |\n"
        f"| simulated profile of ResNet-8, {profiling['cells']} points, without imports | 2 s "
        f"| {seconds(profiling)} |\n"
        f"| `wattune --help` | 0.5 s | {seconds(startup)} |\n"
        f"| the meter at 10 Hz beside a real training loop: processor time of its thread | under 1 % "
        f"| {metering['sampling_thread']:.2%} |\n"
        f"| the same, loop with the meter against loop without, {metering['pairs']} pairs | under 1 % "
        f"| {metering['overhead']:+.1%} (quartiles {low:+.1%} to {high:+.1%}: the machine's noise) |\n"
    )


def real_images() -> str:
    """The same on real photographs."""
    data = read("real_images")
    relative = ", ".join(f"{value:.2f} at {size}" for size, value in data["relative_samples"].items() if value)
    training = data["training"]
    lines = [
        f"Measured with 100 classes of Tiny ImageNet for pre-training and {data['images']:,} images of CIFAR-10, of "
        f"which classes 0-4 are the proxy and 5-9 the target; {data['seeds']} seeds. The proxy's relative samples by "
        f"batch size: {relative}. Profiling took {data['profiling_share']:.1f} times as long as the training of "
        f"{training['time_s']:.0f} s. Cap {data['cap_w']:g} W on `{data['device']}`:",
        "",
        *rows(data["rows"]),
    ]
    return "\n".join(lines) + "\n"


def boards() -> str:
    """What touching a board costs."""
    data = read("boards")
    machine, guard, memory, pinning = data["machine"], data["guard"], data["memory"], data["pinning"]
    files = [board for board in data["boards"] if not board["by_program"]]
    program = next(board for board in data["boards"] if board["by_program"])
    slowest = max(files, key=lambda board: board["device"]["median_s"])
    return (
        f"On {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}, with files that stand for a "
        "board's; medians, the worst in brackets. Not in these figures is what the kernel's driver takes to ask the "
        "chip.\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| a reading, on the files of {len(files)} boards: the slowest of them ({slowest['board']}) | 0.2 ms "
        f"| {worst_ms(slowest['device'])} |\n"
        f"| of all of them, the worst of {data['readings']} readings each | "
        f"| {max(board['device']['max_s'] for board in files) * 1e3:.2f} ms |\n"
        f"| a reading once a second, which looks at temperatures and counters too, slowest board | "
        f"| {worst_ms(max((board['conditions'] for board in files), key=lambda found: found['median_s']))} more |\n"
        f"| a reading by a program (Raspberry Pi 5, `vcgencmd` as a script) | | {worst_ms(program['device'])} |\n"
        f"| a reading from an agent, question and answer | | {worst_ms(data['agent']['read'])} |\n"
        f"| taking the board: lock, snapshot on the disk, limits, and a clock that follows 50 ms later | "
        f"| {worst_ms(pinning['first'])} |\n"
        f"| bringing it back | | {worst_ms(pinning['restore'])} |\n"
        f"| `wattune guard`: from power above the cap to the lower clock, {guard['from_power']['repeats']} rises, "
        f"a reading every {guard['sampling_s']:g} s | | {worst_ms(guard['from_power'], 0)} |\n"
        f"| the same from when the program begins to work; the board counts its use every 100 ms | "
        f"| {worst_ms(guard['from_program'], 0)} |\n"
        f"| memory from the 10th to the 60th minute of a training of one virtual hour, {memory['readings']:,} readings "
        f"| no growth | {memory['traced_growth_bytes'] / 1024:+.0f} KiB of Python's objects, "
        f"{memory['resident_growth_bytes'] / 1024:+.0f} KiB of the process |\n"
    )


def rows(found: list[dict[str, Any]]) -> list[str]:
    """A comparison as a table."""
    lines = [
        "| | batch size | clock | time to target | energy | times wattune's |",
        "|---|---|---|---|---|---|",
    ]
    for row in found:
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
    "recipe": "the recipe is kept",
    "curve": "a curve, measured to 3 %",
    "noise scale": "the gradient noise scale",
    "prior": "nothing but past workloads",
}


def percent(share: float) -> str:
    """A share of one, with one decimal."""
    return f"{100 * share:.1f} %"


def session() -> str:
    """How far from the best point a session trains, by what it knows, beside two other ways to begin."""
    data = read("session")
    lines = [
        f"{data['boards']} random simulated boards, {data['workloads']} workloads, {len(data['caps'])} caps each; "
        "every training would take an hour at its best point. Regret is what the point in force takes longer than the "
        "fastest point below the cap, if that were known exactly; the sensor's noise alone, which no reading may bring "
        f"above the cap, costs {percent(data['regret']['recipe']['guided']['noise_price'])} where the recipe is kept. "
        "Ways that train with readings above the cap may be faster than that point: their regret is below 0.",
        "",
        "| what is known of the samples | way | regret after 60 s | 5 min | 10 % | below 1 % by then "
        "| time probing | runs with a reading above the cap: probing | training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, ways in data["regret"].items():
        for way, found in ways.items():
            name = "wattune" if way == "guided" else way
            means = " | ".join(percent(found[f"in_force {moment}"]["mean"]) for moment in ("60 s", "5 min", "10 %"))
            lines.append(
                f"| {KNOWN[kind]} | {name} | {means} | {100 * found['in_force 10 %']['below 1 %']:.0f} % of runs "
                f"| {found['probing_s']:.0f} s | {found['runs_above_probing']} of {found['runs']} "
                f"| {found['runs_above_training']} |"
            )
    return "\n".join(lines) + "\n"


def session_overhead() -> str:
    """What a session takes for a step, by kind of loop, and what share of a step that is."""
    lines = [
        "| loop | processor time a step (median, 95 % band) | share of steps | step of which it is 1 % |",
        "|---|---|---|---|",
    ]
    for name, title in (("capped", "your own"), ("lightning", "Lightning"), ("transformers", "Transformers")):
        found = read("session_overhead")[name]
        extra = found["tiny"]["extra_s"]
        low, high = (1e3 * bound for bound in extra["band"])
        shares = ", ".join(f"{percent(one['overhead'])} of {1e3 * one['step_s']:.0f} ms" for one in steps_of(found))
        least = 1e3 * found["least_step_s"]
        lines.append(
            f"| {title} | {1e3 * extra['median']:.2f} ms ({low:.2f} to {high:.2f}) | {shares} | {least:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def steps_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of usual length, without the model that is there for the difference alone."""
    return [one for size, one in found.items() if size not in ("tiny", "least_step_s")]


def gpus() -> str:
    """What choosing gains on hardware, from Zeus' public traces."""
    data = read("decisions")["gpus"]
    gain, ours = data["gain"]["largest batch"], data["regret"]["ours"]
    groups = gain["by_group"]
    most = max(groups, key=groups.__getitem__)
    gpu, workload = most.upper().rsplit(" ", 1)
    flat = [name for name, times in groups.items() if times < 1.05]
    return (
        "On recorded trainings of real GPUs ([Zeus](https://github.com/ml-energy/zeus): V100 and A40, three workloads, "
        f"every power limit and target, {data['cases']} cases), the batch size that wattune picks from "
        f"{ours['runs_mean']:.0f} training runs on average reaches the target {gain['geometric_mean']:.1f} times as "
        f"fast as the largest one that reaches it (geometric mean; median {gain['median']:.2f}, best "
        f"{gain['best']:.1f}, worst {gain['worst']:.2f}). It all comes from {workload} ({groups[most]:.1f} times on "
        f"{gpu}); "
        f"on {len(flat)} of the {len(groups)} pairs of GPU and workload nothing is gained, and "
        f"{percent(gain['loses'])} of the cases lose. Its pick is {percent(ours['median'])} slower than the best one "
        f"in the median, {percent(ours['mean'])} on average.\n"
    )


def decisions() -> str:
    """The figures of the decisions, each beside its goal."""
    lines = ["| figure | measured | must reach | aim | |", "|---|---|---|---|---|"]
    for one in read("decisions")["goals"]["figures"]:
        shown = [percent(one[key]) if one["share"] else f"{one[key]:g}" for key in ("measured", "must", "aim")]
        lines.append(f"| {one['figure']} | {' | '.join(shown)} | {one['reached']} |")
    return "\n".join(lines) + "\n"


def beginning() -> str:
    """What the first tenth of a training is good for."""
    figures = read("decisions")["beginning"]
    lines = [
        "| batch size after the first tenth | regret on the target | less than kept (90 % interval) |",
        "|---|---|---|",
    ]
    for name, one in figures["regret"].items():
        less = one["against kept"]
        ends = f"{100 * less['low']:+.2f} to {100 * less['high']:+.2f}"
        apart = f"{100 * less['difference']:+.2f} % ({ends})" if one["changed"] else "-"
        lines.append(f"| {name} | {100 * one['mean']:.2f} % | {apart} |")
    progress, known = figures["progress"], figures["samples"]
    off = known["outside the band"]
    lines += [
        "",
        f"The progress is inside its 90 % band in {percent(progress['inside'])} of {progress['cases']} cases, the "
        f"noise scale in {percent(figures['noise']['inside'])}. ln(samples) is off by {known['all']['off']:.2f} as it "
        f"was predicted and {known['all']['anew']:.2f} as it is stated anew; where the progress is outside the band "
        f"({off['cases']} cases), by {off['off']:.2f} and {off['anew']:.2f}.",
    ]
    return "\n".join(lines) + "\n"


def asyncfgd(part: str) -> Callable[[], str]:
    """What one part of that benchmark says of its results."""

    def said() -> str:
        text: str = importlib.import_module(f"benchmarks.asyncfgd.{part}").markdown(read(f"asyncfgd_{part}"))
        return text

    return said


def asyncfgd_verdict() -> str:
    """Where forward gradients and AsyncFGD would be chosen."""
    from benchmarks.asyncfgd.feasibility import verdict

    found = read("asyncfgd_feasibility")
    return f"On `sim:{found['board']}`, models with limits of memory that were made up: {verdict(found)}\n"


def server_fleet() -> str:
    """A fleet of made-up devices against a real server."""
    from benchmarks.server.fleet import NAME, markdown

    return markdown(read(NAME))


def server_verdict() -> str:
    """What one server carries, in two sentences."""
    from benchmarks.server import overlap
    from benchmarks.server.fleet import NAME, verdict

    return verdict(read(NAME)) + overlap.verdict(read(overlap.NAME))


def server_overlap() -> str:
    """Profiling here while the server estimates."""
    from benchmarks.server import overlap

    return overlap.markdown(read(overlap.NAME))


CALIBRATION = ("cells", "checks", "constants", "fits", "power")


def calibration(part: str) -> Callable[[], str]:
    """What one part of the calibration of the simulated boards says of its results."""

    def said() -> str:
        from benchmarks.paper.calibration import NAME, markdown

        return markdown(part, read(NAME))

    return said


def paper() -> str:
    """The evaluation of arXiv 2502.18323."""
    from benchmarks.paper.sections import markdown, results

    return markdown(results())


def paper_verdict() -> str:
    """What came of it, in two sentences."""
    from benchmarks.paper.sections import results, verdict

    return verdict(results())


PARTS: dict[str, Callable[[], str]] = {
    **{f"asyncfgd_{part}": asyncfgd(part) for part in ("accuracy", "feasibility", "memory", "speed", "staleness")},
    "asyncfgd_verdict": asyncfgd_verdict,
    "beginning": beginning,
    "boards": boards,
    **{f"calibration_{part}": calibration(f"calibration_{part}") for part in CALIBRATION},
    "comparison": comparison,
    "decisions": decisions,
    "gpus": gpus,
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
    """Write them anew."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"{page.name} filled")


if __name__ == "__main__":
    main()
