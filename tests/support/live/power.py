"""Power that the live boards draw, and what else differs between families.

The figures are of the right size and shape (a floor, a part that grows with load and clock, more than in proportion),
so that caps cut through the middle of the settings; nothing in the tests takes them for those of a real board.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """One family. ``power(ghz, load, asleep)`` gives watts of each rail, by the names in its record;
    ``instead``: files of the record that hold something else here."""

    record: str
    whole: str
    power: Callable[[float, float, bool], dict[str, float]]
    coolers: tuple[str, ...]
    window_s: float
    period_s: float
    heat_c_per_w: float
    heat_s: float
    clock_folder: str = "*/devfreq/*"
    limits: tuple[str, str, str] = ("min_freq", "max_freq", "cur_freq")
    listing: str = "available_frequencies"
    per_mhz: int = 1000000
    refuses: bool = False
    switches: tuple[str, ...] = ("*/railgate_enable",)
    any_step: int = 0
    base_mhz: float = 0.0
    instead: tuple[tuple[str, str], ...] = ()
    memory: str = ""
    """The kind of its memory's clock, see ``LiveMemory``; none where its CPU's clocks are the (first) ones."""
    others_w: tuple[float, float] = (0.0, 0.0)
    """What memory and CPU draw less, under full load, the closer their clocks come to nothing."""


def _orin_nano(ghz: float, load: float, asleep: bool) -> dict[str, float]:
    processors_w = 0.3 + (0.0 if asleep else 0.15) + load * (2.0 * ghz + 4.5 * ghz**3)
    soc_w = 1.1 + 0.9 * load
    return {"VDD_IN": 2.5 + processors_w + soc_w, "VDD_CPU_GPU_CV": processors_w, "VDD_SOC": soc_w}


def _nano(ghz: float, load: float, asleep: bool) -> dict[str, float]:
    # The floor of the voltage up to 530 MHz: L4T drivers/soc/tegra/tegra210-dvfs.c.
    volts = max(0.82, 0.82 + 0.5455 * (ghz - 0.53))
    gpu_w = 0.0 if asleep else 0.5 * (0.377 * volts**3 + (2.138 + 3.3 * load) * volts**2 * ghz)
    cpu_w = 0.3 + 0.9 * load
    return {"POM_5V_IN": 1.2 + 0.9 * load + gpu_w + cpu_w, "POM_5V_GPU": gpu_w, "POM_5V_CPU": cpu_w}


def _tx2_nx(ghz: float, load: float, asleep: bool) -> dict[str, float]:
    processors_w = 0.2 + (0.0 if asleep else 0.1) + load * (1.8 * ghz + 2.6 * ghz**3)
    soc_w = 0.6 + 0.7 * load
    return {"VDD_IN": 1.3 + processors_w + soc_w, "VDD_CPU_GPU": processors_w, "VDD_SOC": soc_w}


def _cpu_laptop(ghz: float, load: float, asleep: bool) -> dict[str, float]:
    package_w = 4.7 + load * (2.2 * ghz + 0.32 * ghz**3)
    dram_w = 0.5 + 0.7 * load
    whole_w = package_w + dram_w
    parts_w = {"package-0": package_w, "core": package_w - 4.6, "uncore": 0.3, "dram": dram_w}
    return {**parts_w, "psys": whole_w + 3.4, "package-0 + dram": whole_w}


MODELS = {
    "orin-nano": Model(
        record="orin-nano-jp6",
        whole="VDD_IN",
        power=_orin_nano,
        coolers=("devfreq-*",),
        window_s=0.0066,
        period_s=0.0066,
        heat_c_per_w=3.5,
        heat_s=80.0,
        memory="bpmp",
        others_w=(1.2, 0.8),
    ),
    "nano": Model(
        record="nano-jp4",
        whole="POM_5V_IN",
        power=_nano,
        refuses=True,
        coolers=("gpu-balanced",),
        window_s=0.422,
        period_s=0.422,
        heat_c_per_w=4.0,
        heat_s=90.0,
        memory="override",
        others_w=(0.8, 0.6),
        # Continuous: the chip averages and holds.
        instead=(("*/running_mode", "1"),),
    ),
    "cpu-laptop": Model(
        record="laptop-intel",
        whole="package-0 + dram",
        power=_cpu_laptop,
        clock_folder="*/cpufreq/policy*",
        limits=("scaling_min_freq", "scaling_max_freq", "scaling_cur_freq"),
        listing="",
        per_mhz=1000,
        switches=("*/no_turbo",),
        coolers=("Processor",),
        window_s=0.0,
        period_s=0.001,
        heat_c_per_w=2.5,
        heat_s=30.0,
        any_step=100000,
        base_mhz=1600.0,
    ),
}


def _many(low_mhz: float, high_mhz: float, count: int = 170) -> str:
    """So many frequencies as an AGX Thor lists, in Hz."""
    return " ".join(str(round(1e6 * (low_mhz + (high_mhz - low_mhz) * n / (count - 1)))) for n in range(count))


_LISTED = "*.gpu/available_frequencies"

STATES = {
    # It idles at first: for a while its clock is at the lowest, or off, whatever the limits allow.
    **{f"{family}-idle": model for family, model in MODELS.items()},
    # Warm to the fingers: a cooling device that lowers no clock is at 1.
    "orin-nano-warm": replace(MODELS["orin-nano"], instead=(("*/cooling_device11/cur_state", "1"),)),
    "orin-nano-170": replace(MODELS["orin-nano"], instead=((_LISTED, _many(306.0, 1020.0)),)),
    "nano-170": replace(MODELS["nano"], instead=((_LISTED, _many(76.8, 921.6)), *MODELS["nano"].instead)),
}
"""The same families in states in which a user's board may be."""

TX2_NX = replace(MODELS["nano"], record="tx2-nx-jp4", whole="VDD_IN", power=_tx2_nx, memory="bpmp")
BOARDS = {**MODELS, **STATES, "tx2-nx": TX2_NX}
