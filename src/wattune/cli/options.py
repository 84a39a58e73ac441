"""Options and arguments that several commands take, each with its one help text."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from wattune.errors import InputError

WorkloadFile = Annotated[
    Path | None, typer.Argument(metavar="WORKLOAD", help="Workload file; without one the built-in example.")
]
DeviceSpec = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="A name from `wattune devices`, a board file, or auto: what is here."
    ),
]
SysfsRoot = Annotated[
    Path | None,
    typer.Option("--sysfs-root", metavar="DIR", help="A folder with sys/... in it, in place of this machine's files."),
]
Mode = Annotated[
    str | None,
    typer.Option("--mode", metavar="ID", help="Switch the board to this nvpmodel mode; as it was found afterwards."),
]
Cap = Annotated[
    str, typer.Option("--cap", metavar="WATTS", help="Power limit such as 4.5W, 10W@module or 12W@supply, or none.")
]
MaxTemp = Annotated[
    str | None,
    typer.Option("--max-temp", metavar="CELSIUS", help="Second limit such as 80C: hotter counts as above the cap."),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the record goes, by default here by its own name; never overwritten.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of the training.")]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Trainings per batch size.")]
Processes = Annotated[
    int | None, typer.Option("--processes", metavar="N", min=1, help="Trainings at a time; by default one a core.")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="WHICH",
        help="full: every batch size and clock; staircase: those along the limit; guided: the few that tell most. By "
        "default staircase under a limit.",
    ),
]
Reference = Annotated[
    bool | None,
    typer.Option(
        "--reference/--no-reference",
        help="Also measure the reference workloads, once a device, to compare with simpler rules. By default where "
        "that takes no time of a real board.",
    ),
]
Margin = Annotated[str, typer.Option("--margin", metavar="WATTS", help="Stay this much below the limit.")]
Algorithm = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        metavar="NAME",
        help="Training algorithm, perhaps with options: backprop (by default), backprop:checkpoint=auto, "
        "forward-gradient, async-fgd:modules=4; see docs/algorithms.md.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="BYTES", help="Limit of memory such as 64MB, 1.5GB or 512MiB; by default none."),
]
ProfileFile = Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile record.")]
EfficiencyFile = Annotated[Path, typer.Argument(metavar="EFFICIENCY", help="An efficiency record.")]

STORE = Path("wattune-store")
"""The store of a server where none is given."""

Store = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help=f"The server's store. By default ./{STORE}.")
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="WATTUNE_DATABASE",
        help="The server's database: postgresql+psycopg://USER@HOST/NAME. By default SQLite in the store.",
    ),
]

ALGORITHM = "backprop"
"""The training algorithm where none is given."""

REAL = ("auto", "jetson", "cpu")
"""The devices that are read from files, which may be in a folder of their own."""

_NUMBER = r"(?P<number>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)"
_WATTS = re.compile(_NUMBER + r"\s*(?P<unit>mW|[wW])?", re.ASCII)
_CELSIUS = re.compile(_NUMBER + r"\s*°?[cC]?")
_CLOCK = re.compile(_NUMBER + r"\s*(?P<unit>[kMG]?Hz)?", re.ASCII | re.IGNORECASE)
_BYTES = re.compile(_NUMBER + r"\s*(?P<unit>[kMGT]i?)?B?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MHZ = {"hz": 1e-6, "khz": 1e-3, "mhz": 1.0, "ghz": 1e3}


class Limit(NamedTuple):
    """A power limit, and where it holds: at the board's own sensor or at the supply's terminals."""

    cap_w: float | None
    side: Literal["module", "supply"] = "module"


def cap_limit(text: str) -> Limit:
    """A power limit such as "10W" or "12W@supply"; without a side the board's own sensor's. Raises: InputError."""
    if text.strip().lower() == "none":
        return Limit(None)
    watts, at, side = text.partition("@")
    value, side = _watts(watts), side.strip().lower() if at else "module"
    if value is None or value <= 0 or side not in ("module", "supply"):
        raise InputError(
            "--cap",
            value=text,
            allowed="a limit above zero such as 4.5W, 4500mW or 4.5, with @module or @supply behind it, or none",
        )
    return Limit(value, "supply" if side == "supply" else "module")


def margin_w(text: str) -> float:
    """A margin in watts. Raises: InputError."""
    value = _watts(text)
    if value is None or value < 0:
        raise InputError("--margin", value=text, allowed="watts from 0 on, such as 0.2W or 200mW")
    return value


def max_temp_c(text: str | None) -> float | None:
    """A temperature in °C that a board can have. Raises: InputError."""
    if text is None:
        return None
    match = _CELSIUS.fullmatch(text.strip())
    value = float(match["number"]) if match else math.nan
    if not 0 < value < 150:
        raise InputError("--max-temp", value=text, allowed="°C above 0 and below 150, such as 80C or 80")
    return value


def clock_mhz(text: str | None) -> float | None:
    """A clock in MHz. Raises: InputError."""
    if text is None:
        return None
    match = _CLOCK.fullmatch(text.strip())
    value = float(match["number"]) * _MHZ[(match["unit"] or "MHz").lower()] if match else math.nan
    if not 0 < value < math.inf:
        raise InputError("--clock", value=text, allowed="such as 612MHz, 0.612GHz or 612")
    return value


def memory_bytes(text: str | None) -> float | None:
    """An amount of memory in bytes. Raises: InputError."""
    if text is None:
        return None
    match = _BYTES.fullmatch(text.strip())
    unit = (match["unit"] or "").lower() if match else ""
    base = 1024.0 if unit.endswith("i") else 1000.0
    value = float(match["number"]) * base ** _FACTORS[unit.removesuffix("i")] if match else math.nan
    if not 0 < value < math.inf:
        raise InputError("--memory", value=text, allowed="above zero, such as 64MB, 1.5GB or 512MiB")
    return value


def sizes(text: str) -> tuple[int, ...]:
    """Batch sizes such as "8,16,32". Raises: InputError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and 0 < int(word) < 10**9 for word in words):
        raise InputError("--batch-sizes", value=text, allowed="numbers from 1 on, such as 8,16,32")
    return tuple(int(word) for word in words)


def device_spec(device: str, sysfs_root: Path | None = None, mode: str | None = None) -> str:
    """The device with ``--sysfs-root`` and ``--mode`` written behind it. Raises: InputError where it takes neither."""
    if sysfs_root is None and mode is None:
        return device
    scheme = re.split(r"[:?]", device, maxsplit=1)[0]
    option = "--sysfs-root" if sysfs_root is not None else "--mode"
    if scheme not in REAL:
        raise InputError(f"{option} with this device", value=device, allowed=", ".join(REAL))
    if sysfs_root is not None and not (sysfs_root / "sys").is_dir():
        raise InputError("--sysfs-root", value=str(sysfs_root), allowed="a folder with sys/... in it")
    from wattune.devices.options import with_options

    return with_options(device, root=None if sysfs_root is None else sysfs_root.absolute(), mode=mode)


def _watts(text: str) -> float | None:
    match = _WATTS.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match["number"]) / (1000 if match["unit"] == "mW" else 1)
    return value if math.isfinite(value) else None
