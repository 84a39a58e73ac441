"""Boards: what reading and guarding them costs, recorded ones, and how the simulated ones were calibrated."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.tables.results import percent, read, table


def boards() -> str:
    """Overhead and response times on a board, and the share of a core that its readings take."""
    data = read("boards")
    machine, pinning, cost = data["machine"], data["pinning"], data["cost"]
    files = data["boards"]
    slowest = max(files, key=lambda board: board["device"]["median_s"])
    conditions = max((board["conditions"] for board in files), key=lambda costs: costs["median_s"])
    longest_s = max(board["device"]["max_s"] for board in files)
    rows = [
        (f"one reading, slowest of {len(files)} boards ({slowest['board']})", "0.2 ms", worst_ms(slowest["device"])),
        (f"one reading, worst of {data['readings']} on each of these boards", "", f"{longest_s * 1e3:.2f} ms"),
        ("extra time, once a second, to check temperatures and counters, slowest board", "", worst_ms(conditions)),
        ("one reading through an agent, round trip", "", f"{data['agent']['read']['median_s'] * 1e3:.2f} ms"),
        (
            "taking control: lock, snapshot on disk, limits, and a clock that settles after 50 ms",
            "",
            f"{pinning['first']['median_s'] * 1e3:.0f} ms",
        ),
        ("restoring the board", "", f"{pinning['restore']['median_s'] * 1e3:.0f} ms"),
    ]
    shares = [
        (one["board"], f"{one['reads_per_s']:.0f}", f"{one['share']:.1%}", f"{one['longest_s'] * 1e3:.0f} ms")
        for one in cost["boards"]
    ]
    return (
        f"On {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}, with files in place of a "
        "board's, beside other work: readings in CPU time, median (worst), the rest as medians by the clock. "
        "The time that the kernel's driver needs to query the chip is not included.\n\n"
        f"{table(' | aim | measured', rows)}"
        f"\nTen readings a second, with {cost['read_s'] * 1e3:g} ms for each file: what one register of an INA3221 "
        "takes on an AGX Orin, and more than a temperature does.\n\n"
        f"{table('board | files read per second | share of one core | longest reading', shares)}"
    )


def worst_ms(figures: dict[str, float]) -> str:
    """A median with the worst, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.2f} ms ({figures['max_s'] * 1e3:.2f})"


def guard() -> str:
    """The guard's rule beside others, and what only a run of it shows."""
    data = read("guard")
    rules = []
    for name, rule in {**data["rules"], "the former rule": data["former"]}.items():
        above, work, changes = (rule["all"][key] for key in ("above_percent", "work", "changes"))
        rules.append((name, f"{above:.2f}% of the time", f"{work:.3f}", f"{changes:.0f}"))
    day, cpu, rows, kills = data["day"], data["cpu"], data["training"], data["kills"]
    gains, above_s = [row["over_fixed"] for row in rows], sum(row["above_s"] for row in rows)
    head = "rule | more than 2% above the cap | work over the best fixed clock | changes in 5 min"
    return table(head, rules) + (
        "\nA day with an excursion each half hour: the mean clock of the last hour is "
        f"{day['slices on']['last_over_first']:.3f} of the first hour's, {day['slices off']['last_over_first']:.3f} "
        f"without slices. Training on three simulated boards under a guard that slices, {len(rows)} cases: "
        f"{statistics.fmean(gains):.3f} times the best fixed clock by exact power ({min(gains):.3f} to "
        f"{max(gains):.3f}), {above_s:.1f} s more than 2% above the cap. With {cpu['readings_per_s']:.0f} readings a "
        f"second and slices, an agent takes {cpu['agent_percent']:.1f}% of a core and its guard "
        f"{cpu['guard_percent']:.1f}%. Of {kills['killed']:,} kills, {kills['changed']:,} left a board changed, and "
        f"{kills['changed_after_restore']} after `restore`.\n"
    )


# -------------------------------------------------------------------------------------------------------- calibration


def calibration_fits() -> str:
    """Fits of the simulated boards to the published times, with what they say of the clocks."""
    data = read("paper_calibration")
    groups = {
        "jetson-nano resnet18": "Nano, ResNet18",
        "jetson-nano mobilenet-v2": "Nano, MobileNetV2",
        "jetson-nano character-transformer": "Nano, transformer",
        "jetson-tx2-nx": "TX2 NX, ResNet18",
        "between": "TX2 NX against Nano",
    }
    rows = []
    for way, errors in data["errors"].items():
        fitted = data["fits"].get(way)
        row = [way, "those of the files", ""]
        if fitted:
            row = [way, fitted["number_of_constants"], f"{fitted['data_points']} ({fitted['cells']})"]
        for group in groups:
            one = errors.get(group)
            mark = "*" if one and fitted and not one["fitted"] else ""
            row.append("" if one is None else f"{mark}{percent(one['rms'])}, {100 * one['largest']:+.1f}%{mark}")
        rows.append(row)
    level = dict(data["level_s"])
    published_s = level.pop("published")
    return table(f"fit | constants | data points (cells) | {' | '.join(groups.values())}", rows) + (
        "\nRMS error, largest error; *in italics* predicted, not fitted. The absolute level rests on one published "
        f"time, {published_s:g} s for a step of ResNet18 at 224x224 with batch size 8; it becomes "
        f"{', '.join(f'{time_s:.2f} s in {way}' for way, time_s in level.items())}.\n"
    )


def agx_orin() -> str:
    """Energy over the GPU's clock of the simulated AGX Orin beside the recorded one."""
    data = read("agx_orin")
    return table(
        "fine-tuning DeBERTa-v2-xlarge | least energy at (recorded) | highest clock over least (recorded) | RMS error "
        "of the shape",
        [
            (
                f"{name}, {'fitted' if name == data['fitted'] else 'predicted'}",
                f"{one['least_mhz']:g} MHz ({one['recorded_least_mhz']:g})",
                f"{one['highest_over_least']:.2f} ({one['recorded_highest_over_least']:.2f})",
                percent(one["rms"]),
            )
            for name, one in data["shapes"].items()
        ],
    )


def tx2_calibration() -> str:
    """Errors of the simulated TX2 beside a recorded one, fitted and predicted cells apart, and what is left out."""
    data = read("tx2_calibration")
    shipped, load = data["shipped"], data["shipped"]["full_load"]
    clocks = {name: ", ".join(f"{mhz:g}" for mhz in mhz_s) for name, mhz_s in data["fitted_mhz"].items()}
    steps = {f"{name}, {kind}": one for name, kinds in shipped["steps"].items() for kind, one in kinds.items()}
    steps |= {f"{name}, board fitted to the others": one for name, one in data["left_out"].items()}
    rows = [(name, one["time"]["cells"], _errors(one["time"]), _errors(one["power"])) for name, one in steps.items()]
    return (
        f"Fitted: the training steps at {clocks['clock_mhz']} MHz of the GPU, {clocks['cpu_clock_mhz']} MHz of the CPU "
        "and all clocks of the memory. Predicted: all others. RMS error, 95th percentile and largest:\n\n"
        f"{table('training steps | cells | time | power', rows)}"
        f"\nVDD_IN at full load (VGG19 inference in TensorRT): {load['low_w']:.2f} W at the lowest GPU clock, "
        f"{load['high_w']:.2f} W at the highest ({load['ratio']:.2f}-fold, recorded {load['recorded_ratio']:.2f}), the "
        f"worst of {load['clocks']} clocks off by {percent(load['worst'])}. "
        f"The training steps were recorded as the sum of four rails; VDD_IN is {data['vdd_in']['factor']:.3f} times "
        f"that plus {data['vdd_in']['other_w']:.2f} W, as at full load (within {data['vdd_in']['worst_w']:.2f} W).\n"
    )


def _errors(one: dict[str, Any]) -> str:
    return ", ".join(percent(one[key]) for key in ("rms", "p95", "worst"))


def tx2_nx() -> str:
    """The TX2 NX with nothing fitted to it, and as shipped: published times, and the TX2's power."""
    data = read("tx2_calibration")["tx2_nx"]
    ways = [data[name] for name in ("nothing fitted", "as shipped")]
    rows = [
        [f"time ratios {there}", *(f"{percent(o['rms'])}, {100 * o['largest']:+.1f}%" for o in times)]
        for there, times in (
            ("within the board", [way["times"]["within"] for way in ways]),
            ("against the Nano", [way["times"]["between"] for way in ways]),
        )
    ]
    lowest = [f"{way['low_w']:.1f} to {way['high_w']:.1f} W" for way in ways]
    rows.append(["power of ResNet18 (batch size 128), lowest to highest clock", *lowest])
    for name, recorded in ways[0]["power"].items():
        low_w, high_w = recorded["recorded_w"]
        powers = [way["power"][name] for way in ways]
        errors = [f"{percent(one['rms'])} ({one['low_w']:.1f} to {one['high_w']:.1f} W)" for one in powers]
        rows.append([f"power of {name} (TX2: {low_w:.1f} to {high_w:.1f} W)", *errors])
    slower = [[one["slower"] for one in way["power"].values()] for way in ways]
    spans = [f"{min(times):.2f} to {max(times):.2f}" for times in slower]
    rows.append(["the same three, time of a step relative to the TX2's", *spans])
    fitted = "; ".join(f"{place} {one['fit']:.3g} ({one['known']})" for place, one in data["constants"].items())
    text = table("RMS (and largest) error | nothing fitted | as shipped", rows)
    return f"{text}\nFitted again, with two standard errors: {fitted}.\n"
