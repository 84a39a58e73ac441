"""The results of ``tx2_calibration`` as text for the documentation."""

from __future__ import annotations

from typing import Any


def percent(share: float, digits: int = 1) -> str:
    """A share of one."""
    return f"{100 * share:.{digits}f}%"


def _errors(one: dict[str, Any]) -> str:
    return " | ".join(
        f"{percent(one[kind]['rms'])}, {percent(one[kind]['p95'])}, {percent(one[kind]['worst'])}"
        for kind in ("time", "power")
    )


def markdown(data: dict[str, Any]) -> str:
    """Errors of the board file, fitted and predicted cells apart, and what is left out."""
    shipped, load = data["shipped"], data["shipped"]["full_load"]
    clocks = {name: ", ".join(f"{mhz:g}" for mhz in mhz_s) for name, mhz_s in data["fitted_mhz"].items()}
    lines = [
        f"Fitted: the training steps at {clocks['clock_mhz']} MHz of the GPU, {clocks['cpu_clock_mhz']} MHz of the CPU "
        "and all clocks of the memory. Predicted: all others. RMS error, 95th percentile and largest:",
        "",
        "| training steps | cells | time | power |",
        "|---|---|---|---|",
    ]
    for name, kinds in shipped["steps"].items():
        lines += [f"| {name}, {kind} | {one['time']['cells']} | {_errors(one)} |" for kind, one in kinds.items()]
    for name, one in data["left_out"].items():
        lines.append(f"| {name}, board fitted to the others | {one['time']['cells']} | {_errors(one)} |")
    lines += [
        "",
        f"VDD_IN at full load (VGG19 inference in TensorRT): {load['low_w']:.2f} W at the lowest GPU clock, "
        f"{load['high_w']:.2f} W at the highest ({load['ratio']:.2f}-fold, recorded {load['recorded_ratio']:.2f}), the "
        f"worst of {load['clocks']} clocks off by {percent(load['worst'])}. "
        f"The training steps were recorded as the sum of four rails; VDD_IN is {data['vdd_in']['factor']:.3f} times "
        f"that plus {data['vdd_in']['other_w']:.2f} W, as at full load (within {data['vdd_in']['worst_w']:.2f} W).",
    ]
    return "\n".join(lines) + "\n"


def markdown_nx(data: dict[str, Any]) -> str:
    """The TX2 NX with nothing fitted to it, and as shipped: published times, and the TX2's power."""
    boards = [data[name] for name in ("nothing fitted", "as shipped")]
    rows = {
        f"time ratios {there}": [
            f"{percent(one['times'][group]['rms'])}, {100 * one['times'][group]['largest']:+.1f}%" for one in boards
        ]
        for group, there in (("within", "within the board"), ("between", "against the Nano"))
    }
    rows["power of ResNet18 (batch size 128), lowest to highest clock"] = [
        f"{one['low_w']:.1f} to {one['high_w']:.1f} W" for one in boards
    ]
    for name, recorded in boards[0]["power"].items():
        low_w, high_w = recorded["recorded_w"]
        rows[f"power of {name} (TX2: {low_w:.1f} to {high_w:.1f} W)"] = [
            f"{percent(one['power'][name]['rms'])} ({one['power'][name]['low_w']:.1f} to "
            f"{one['power'][name]['high_w']:.1f} W)"
            for one in boards
        ]
    rows["the same three, time of a step relative to the TX2's"] = [
        " to ".join(f"{end(p['slower'] for p in one['power'].values()):.2f}" for end in (min, max)) for one in boards
    ]
    fitted = "; ".join(f"{place} {one['fit']:.3g} ({one['known']})" for place, one in data["constants"].items())
    return (
        "\n".join(
            [
                "| RMS (and largest) error | nothing fitted | as shipped |",
                "|---|---|---|",
                *(f"| {what} | {' | '.join(figures)} |" for what, figures in rows.items()),
                "",
                f"Fitted again, with two standard errors: {fitted}.",
            ]
        )
        + "\n"
    )
