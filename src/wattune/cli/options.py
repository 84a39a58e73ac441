"""Options and arguments of several commands, each with one help text, and the parsing of their values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from wattune import units
from wattune.cap import PowerCap, parse_window
from wattune.cap_trace import MovingCap, cap_of, parse_range
from wattune.errors import InputError
from wattune.goal import Aim, Goal

Command = TypeVar("Command", bound=Callable[..., None])

WorkloadFile = Annotated[
    Path | None, typer.Argument(metavar="WORKLOAD", help="Workload file (default: the built-in example).")
]
ProfileFile = Annotated[Path, typer.Argument(metavar="PROFILE", help="Profile record.")]
EfficiencyFile = Annotated[Path, typer.Argument(metavar="EFFICIENCY", help="Efficiency record.")]

# An option that `run` may also take from the folder of the run that it resumes has no default there: an object to
# annotate with, beside the type that other commands have.
DEVICE = typer.Option(
    "--device",
    metavar="DEVICE",
    help="A name from `wattune devices`, a board file, replay:TABLE.csv, or auto for this machine's board.",
)
DeviceSpec = Annotated[str, DEVICE]
CAP = typer.Option(
    "--cap",
    metavar="WATTS",
    help="Power cap, such as 4.5W at the power sensor or 12W@supply at the supply's terminals; none for no cap.",
)
Cap = Annotated[str, CAP]
ANY_CAP = typer.Option(
    "--cap",
    metavar="CAP",
    help="Power cap, such as 4.5W at the power sensor or 12W@supply at the supply's terminals; none for no cap. A cap "
    "that changes: CAPS.csv (seconds,watts or time,watts), or watch:FILE, which another program writes watts to.",
)
AnyCap = Annotated[str, ANY_CAP]
CapRange = Annotated[
    str | None,
    typer.Option(
        "--cap-range",
        metavar="W..W",
        help="With --cap watch:FILE: least and most watts to choose the batch size by, such as 4W..7W (default: the "
        "present cap).",
    ),
]
MARGIN = typer.Option("--margin", metavar="WATTS", help="Leave this much of the cap unused, such as 0.2W or 200mW.")
Margin = Annotated[str, MARGIN]
CapWindow = Annotated[
    str | None,
    typer.Option(
        "--cap-window",
        metavar="SECONDS",
        help="Time over which the mean power stays under the cap, such as 1s or 200ms; peak: every single reading "
        "(default: 1s, or the time that the sensor averages over if that is longer).",
    ),
]
SEED = typer.Option(
    "--seed", metavar="N", min=0, max=2**32 - 1, help="Random seed of the training run and of simulated sensors."
)
Seed = Annotated[int, SEED]
SEEDS = typer.Option("--seeds", metavar="N", min=1, max=1000, help="Training runs per batch size.")
Seeds = Annotated[int, SEEDS]

MaxTemp = Annotated[
    str | None,
    typer.Option(
        "--max-temp",
        metavar="CELSIUS",
        help="Highest temperature of the board, such as 80C; a second limit beside the cap (default: none).",
    ),
]
SysfsRoot = Annotated[
    Path | None,
    typer.Option(
        "--sysfs-root", metavar="DIR", help="Read sys/... from this folder, not from this machine (default: /)."
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="ID",
        help="Switch the board to this nvpmodel mode, and back at the end (default: leave it as it is).",
    ),
]
KnobWords = Annotated[
    str | None,
    typer.Option(
        "--knobs",
        metavar="LIST",
        help="Clocks of a Jetson to set together, such as gpu,memory,cpu (default: with a cap all that you may set; "
        "with --strategy full or staircase the GPU's).",
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File for the record; it is never overwritten (default: the record's own name, in this folder).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what was interrupted.")]
Processes = Annotated[
    int | None, typer.Option("--processes", metavar="N", min=1, help="Training runs at a time (default: one per core).")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Points to profile. full: every batch size and clock; staircase: those along the cap; guided: the few "
        "that tell most (default: with a cap guided for several clocks, else staircase; full without a cap).",
    ),
]
Reference = Annotated[
    bool | None,
    typer.Option(
        "--reference/--no-reference",
        help="Also measure the reference workloads, once per device, to compare with simpler rules (default: on "
        "a simulated board with one knob).",
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        metavar="NAME",
        help="Training algorithm, with its options: backprop:checkpoint=auto, backprop:last=1, "
        "async-fgd:modules=4 (default: backprop); see docs/algorithms.md.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="BYTES", help="Memory limit, such as 64MB, 1.5GB or 512MiB (default: no limit)."),
]

GOAL = typer.Option(
    "--goal",
    metavar="NAME",
    help="What is least at the chosen point: time, energy, energy-above-rest, edp (energy times time), or cost "
    "(default: time; energy with --max-slowdown or --deadline, cost with a price).",
)
GoalName = Annotated[str | None, GOAL]
MaxSlowdown = Annotated[
    str | None,
    typer.Option(
        "--max-slowdown", metavar="SHARE", help="Be at most this much slower than the fastest point, such as 5%."
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="Reach the target within this time, such as 90min or 8h."),
]
EnergyBudget = Annotated[
    str | None,
    typer.Option(
        "--energy", metavar="JOULES", help="Be the fastest within this energy to the target, such as 200kJ or 50Wh."
    ),
]
PricePerKwh = Annotated[
    float | None,
    typer.Option("--price-per-kwh", metavar="PRICE", help="Price of a kWh, for the goal cost, in any currency."),
]
PricePerHour = Annotated[
    float | None,
    typer.Option("--price-per-hour", metavar="PRICE", help="Price of an hour of the device, in the same currency."),
]

CarbonFile = Annotated[
    Path | None,
    typer.Option(
        "--carbon",
        metavar="FILE",
        help="With --deadline: train at the times of the least carbon. FILE: forecast of the grid, .csv (time or "
        "seconds, gco2_per_kwh) or .json as of Electricity Maps.",
    ),
]
TariffFile = Annotated[
    Path | None,
    typer.Option(
        "--tariff",
        metavar="FILE",
        help="With --deadline: train at the times of the lowest price. FILE: .csv (time or seconds, price_per_kwh).",
    ),
]
STORE = Path("wattune-store")
"""Default store of a server."""

Store = Annotated[Path | None, typer.Option("--store", metavar="DIR", help=f"The server's store (default: ./{STORE}).")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="WATTUNE_DATABASE",
        help="The server's database: postgresql+psycopg://USER@HOST/NAME (default: SQLite in the store).",
    ),
]

ALGORITHM = "backprop"
"""Default training algorithm."""

REAL = ("auto", "jetson", "cpu", "amd", "intel")
"""Devices that are read from files, for which ``--sysfs-root`` names another folder."""

KNOBS_OF = ("auto", "agent", "jetson")
"""Devices that may have several knobs to choose from."""

MOVING = re.compile(r"^watch:|\.csv(@\w+)?$", re.IGNORECASE)
"""Texts of caps that change, among the values of ``--cap``."""


def made_by(make: Callable[..., Any], parameter: str) -> Callable[[Command], Command]:
    """Give a command the options of ``make`` in place of one parameter, which gets what ``make`` returns for them."""

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        options = inspect.signature(make, eval_str=True).parameters
        parameters: list[inspect.Parameter] = []
        for name, one in signature.parameters.items():
            parameters += [option.replace(kind=one.kind) for option in options.values()] if name == parameter else [one]

        @wraps(command)
        def run(*arguments: Any, **given: Any) -> None:
            made = make(**{name: given.pop(name) for name in options})
            command(*arguments, **given, **{parameter: made})

        # Typer reads both.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return cast(Command, run)

    return decorate


def power_cap(
    cap: str | None,
    margin: str | None = None,
    max_temp: str | None = None,
    window: str | None = None,
    *,
    before: PowerCap | None = None,
) -> PowerCap:
    """The power cap that ``--cap``, ``--margin``, ``--max-temp`` and ``--cap-window`` ask for; one not given is that of
    ``before``.

    Raises: InputError.
    """
    before = before or PowerCap()
    requested_cap = before if cap is None else PowerCap.parse(cap, name="--cap")
    return replace(
        requested_cap,
        margin_w=before.margin_w if margin is None else units.parse(margin, "W", name="--margin", zero=True),
        max_temp_c=before.max_temp_c if max_temp is None else max_temp_c(max_temp),
        window=before.window if window is None else parse_window(window),
    )


def goal_of(
    goal: GoalName = None,
    max_slowdown: MaxSlowdown = None,
    deadline: Deadline = None,
    energy: EnergyBudget = None,
    price_per_kwh: PricePerKwh = None,
    price_per_hour: PricePerHour = None,
) -> Goal | None:
    """The goal that these options ask for; None if none is given.

    Raises: InputError.
    """
    if all(value is None for value in (goal, max_slowdown, deadline, energy, price_per_kwh, price_per_hour)):
        return None
    if goal is None:
        is_priced = price_per_kwh is not None or price_per_hour is not None
        goal = "cost" if is_priced else "time" if max_slowdown is deadline is None else "energy"
    return Goal(
        cast(Aim, goal),
        max_slowdown=None if max_slowdown is None else units.parse(max_slowdown, "share", name="--max-slowdown"),
        deadline_s=None if deadline is None else units.parse(deadline, "s", name="--deadline", bare=False),
        energy_j=None if energy is None else units.parse(energy, "J", name="--energy", bare=False),
        price_per_kwh=price_per_kwh,
        price_per_hour=price_per_hour,
    )


def any_cap(cap: str | None, cap_range: str | None = None, *, before: PowerCap | None = None) -> MovingCap | None:
    """The cap that changes which ``--cap`` and ``--cap-range`` ask for; None for a constant one. ``before`` has margin,
    temperature and window.

    Raises: InputError.
    """
    is_moving = cap is not None and MOVING.search(cap.strip()) is not None
    if not is_moving or cap is None:
        if cap_range is not None:
            raise InputError("--cap-range", value=cap_range, allowed="with --cap watch:FILE")
        return None
    moving = cap_of(cap.strip(), range_w=None if cap_range is None else parse_range(cap_range))
    assert isinstance(moving, MovingCap)  # by its text
    return moving if before is None else moving.with_form(before)


def max_temp_c(text: str) -> float:
    """A temperature in degrees Celsius that a board can have. Raises: InputError."""
    return units.parse(text, "°C", name="--max-temp", below=150.0)


def sizes(text: str) -> tuple[int, ...]:
    """Batch sizes such as "8,16,32". Raises: InputError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and 0 < int(word) < 10**9 for word in words):
        raise InputError("--batch-sizes", value=text, allowed="positive numbers, such as 8,16,32")
    return tuple(int(word) for word in words)


def device_spec(device: str, sysfs_root: Path | None = None, mode: str | None = None, knobs: str | None = None) -> str:
    """The device, with ``--sysfs-root``, ``--mode`` and ``--knobs`` in its spec. Raises: InputError if not taken."""
    if sysfs_root is None and mode is None and knobs is None:
        return device
    scheme = re.split(r"[:?]", device, maxsplit=1)[0]
    option = "--sysfs-root" if sysfs_root is not None else "--mode"
    if scheme not in REAL and (sysfs_root is not None or mode is not None):
        raise InputError(f"{option} with this device", value=device, allowed=", ".join(REAL))
    if knobs is not None and scheme not in KNOBS_OF:
        raise InputError("--knobs with this device", value=device, allowed=", ".join(KNOBS_OF))
    if sysfs_root is not None and not (sysfs_root / "sys").is_dir():
        raise InputError("--sysfs-root", value=str(sysfs_root), allowed="a folder with sys/... in it")
    from wattune.devices.spec_options import with_options

    return with_options(device, root=None if sysfs_root is None else sysfs_root.absolute(), mode=mode, knobs=knobs)


def token_in(path: Path) -> str:
    """The token in a file. Raises: InputError."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:  # not its content: that is a secret
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError("--token-file cannot be read", value=str(path), hint=why) from error
