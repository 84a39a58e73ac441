"""A simulated board as its TOML file describes it: ``docs/board-file.md`` walks through a whole one.

Every figure has its unit in its name. The sections of the GPU are at the top level (``[gpu]``, ``[memory]``,
``[host]``, ``[power]``); the CPU as a training processor repeats them below ``[cpu]``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from wattune.devices.base import Knob
from wattune.errors import InputError, UnknownName
from wattune.records.base import Number, in_words

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library under its older name
    import tomli as tomllib

# The bounds are those of anything that could be a board; they keep every time and power finite.
Megahertz = Annotated[Number, Field(gt=0, le=1e5)]
Volts = Annotated[Number, Field(gt=0, le=5)]
Watts = Annotated[Number, Field(ge=0, le=1e4)]
Seconds = Annotated[Number, Field(ge=0, le=1e6)]
Rate = Annotated[Number, Field(ge=1e-3, le=1e7)]
Mebibytes = Annotated[Number, Field(ge=0, le=1e8)]
Share = Annotated[Number, Field(ge=0, le=1)]
Degrees = Annotated[Number, Field(ge=-100, le=1000)]
Factor = Annotated[Number, Field(gt=0, le=1e3)]
ProcessorName = Literal["gpu", "cpu"]
DataType = Literal["fp32", "tf32", "fp16", "bf16"]

BOARDS = Path(__file__).parent / "boards"
ADDED_KEYS = {
    "memory": {"clocks_mhz", "clock_w", "clock_form"},
    "host": {"hidden", "clocks_mhz", "voltage_v", "clock_w_per_v2ghz", "busy_w_per_v2ghz"},
}
"""Section -> keys that are newer than the digests of boards without them, which stay as they were."""


class TomlSection(BaseModel):
    """Base of every section: frozen, finite, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        unknown = [str(key) for key in data if key not in cls.model_fields]
        if unknown:
            raise ValueError(f"{', '.join(cls.model_fields)} (there is no key {unknown[0]!r})")
        return data


def _check_ascending(clocks_mhz: tuple[float, ...]) -> None:
    if list(clocks_mhz) != sorted(set(clocks_mhz)):
        raise ValueError("clocks_mhz ascending, each once")


def _check_curve(clocks_mhz: tuple[float, ...], values: tuple[float, ...], name: str) -> None:
    _check_ascending(clocks_mhz)
    if len(values) != len(clocks_mhz):
        raise ValueError(f"one {name} per clock: {len(clocks_mhz)} of them, not {len(values)}")
    if list(values) != sorted(values):
        raise ValueError(f"{name} that does not fall as the clock rises")


class Processor(TomlSection):
    """Clocks (MHz, ascending), the voltage at each, and the speed at the highest one.

    ``peak_gflops``: per data type, counting a multiply-add as two; the chip lacks a type that is absent.
    ``efficiency``: share of the peak that large batches reach. ``half_speed_samples``: number of samples of a forward
    pass that reaches half of that (``b / (b + half_speed_samples)``).
    """

    clocks_mhz: Annotated[tuple[Megahertz, ...], Field(min_length=1)]
    voltage_v: tuple[Volts, ...]
    peak_gflops: Annotated[dict[DataType, Rate], Field(min_length=1)]
    efficiency: Annotated[Number, Field(ge=1e-3, le=1)]
    half_speed_samples: Annotated[Number, Field(ge=0, le=1e6)] = 0.0

    @model_validator(mode="after")
    def _curve(self) -> Self:
        _check_curve(self.clocks_mhz, self.voltage_v, "voltage_v")
        return self


class Access(TomlSection):
    """Memory access of one processor.

    ``achieved_gbps``: bandwidth of unfused operations at the highest clock; ``optimizer_gbps``: bandwidth of the
    optimizer's long element-wise passes over the weights. ``clock_share``: share of the memory time that grows as the
    clock falls (1: all of it, as on a chip that cannot keep enough requests in flight). ``clock_form``: how that part
    meets the memory's own clock. "sum": the parts are added, and all of it grows as the memory's clock falls.
    "slower": the processor's requests take ``clock_share`` of the time at the highest clocks, grow as its clock falls,
    and overlap with the memory, which alone grows as the memory's clock falls; the slower of both decides.
    ``context_mib``: memory that the framework takes on this processor before the first tensor.
    """

    achieved_gbps: Rate
    optimizer_gbps: Rate
    clock_share: Share
    clock_form: Literal["sum", "slower"] = "sum"
    context_mib: Mebibytes


class Memory(Access):
    """The board's memory, shared by CPU and GPU, and the GPU's access to it.

    ``bandwidth_gbps``: the data sheet's, an upper bound of what is achieved. ``system_mib``: taken by the
    operating system. ``clocks_mhz``: the memory's clocks, ascending, if they can be set; bandwidth, stated at the
    highest one, falls in proportion to the clock (and with ``clock_form = "sum"`` so does the power per traffic).
    ``clock_w``: power of memory and controller at each clock beyond that at the lowest, with or without traffic.
    """

    size_mib: Annotated[Number, Field(gt=0, le=1e8)]
    system_mib: Mebibytes
    bandwidth_gbps: Rate
    clocks_mhz: Annotated[tuple[Megahertz, ...], Field(min_length=1)] | None = None
    clock_w: tuple[Watts, ...] | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.clocks_mhz is not None:
            _check_ascending(self.clocks_mhz)
        if self.clock_w is not None:
            _check_curve(self.clocks_mhz or (), self.clock_w, "clock_w")
        if max(self.achieved_gbps, self.optimizer_gbps) > self.bandwidth_gbps:
            raise ValueError("achieved_gbps and optimizer_gbps at most bandwidth_gbps")
        if self.system_mib + self.context_mib >= self.size_mib:
            raise ValueError("system_mib and context_mib together below size_mib")
        return self


class Host(TomlSection):
    """The CPU that feeds the processor.

    ``s_per_operation``: time to issue one operation, during which the processor idles;
    ``s_per_optimizer_operation``: the same for the optimizer, with the Python code around it. ``sample_factor``:
    time to load a sample, relative to a Jetson Nano, for which workloads state it.

    ``hidden``: share of the shorter of both, issuing and the processor's own work, that overlaps with the longer
    (0: they are added; 1: the longer alone decides, as if the host always ran ahead). ``clocks_mhz``, ``voltage_v``:
    the CPU's clocks, ascending, if they can be set; the times above hold at the highest one and grow as it falls.
    The CPU then draws ``(clock_w_per_v2ghz + busy_w_per_v2ghz x share of the time that it issues) V^2 f``, f in GHz,
    in training and beyond ``power.base_w``.
    """

    s_per_operation: Annotated[Number, Field(ge=0, le=1)]
    s_per_optimizer_operation: Annotated[Number, Field(ge=0, le=1)]
    sample_factor: Annotated[Number, Field(ge=0, le=1e3)] = 1.0
    hidden: Share = 0.0
    clocks_mhz: Annotated[tuple[Megahertz, ...], Field(min_length=1)] | None = None
    voltage_v: tuple[Volts, ...] | None = None
    clock_w_per_v2ghz: Watts = 0.0
    busy_w_per_v2ghz: Watts = 0.0

    @model_validator(mode="after")
    def _curve(self) -> Self:
        if (self.clocks_mhz is None) != (self.voltage_v is None):
            raise ValueError("clocks_mhz and voltage_v together")
        if self.clocks_mhz is not None and self.voltage_v is not None:
            _check_curve(self.clocks_mhz, self.voltage_v, "voltage_v")
        elif self.clock_w_per_v2ghz or self.busy_w_per_v2ghz:
            raise ValueError("clock_w_per_v2ghz and busy_w_per_v2ghz only beside clocks_mhz and voltage_v")
        return self


class Power(TomlSection):
    """Power of the whole board, in watts.

    ``base_w``: in training, without the processor. ``idle_w``: at rest, without the processor.
    The processor itself, with V in volts and f in GHz::

        leakage_w_per_v3 V^3 exp(leakage_per_degree (T - 25))
        + (clock + s (compute u_c + memory u_m)) V^2 f + s traffic_w_per_gbps GB/s,      s = T_step / (T_step + rise_s)

    ``clock_w_per_v2ghz`` is spent while the clock runs, ``compute_`` and ``memory_w_per_v2ghz`` in the shares of
    the time in which arithmetic (u_c) and memory (u_m) are busy.

    Source: the form without s is a least-squares fit to the GM20B measurements of Nunez-Yanez et al.,
    arXiv 2006.12176 (data: github.com/kranik/ARMPM_BUILDMODEL).
    """

    base_w: Watts
    idle_w: Watts
    leakage_w_per_v3: Watts
    leakage_per_degree: Annotated[Number, Field(ge=0, le=0.1)] = 0.0
    clock_w_per_v2ghz: Watts
    compute_w_per_v2ghz: Watts
    memory_w_per_v2ghz: Watts
    traffic_w_per_gbps: Watts
    rise_s: Seconds

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.base_w == 0 or self.idle_w == 0:
            raise ValueError("base_w and idle_w above 0: no board runs on nothing")
        return self


class Rails(TomlSection):
    """Names of the power rails: the one of the whole board, which is read, and those that are parts of it."""

    board: str
    parts: tuple[str, ...] = ()


class SensorSection(TomlSection):
    """The power sensor: see ``wattune.devices.Sensor`` for the meaning of each figure."""

    resolution_w: Watts
    period_s: Annotated[Number, Field(ge=1e-3, le=3600)]
    window_s: Annotated[Number, Field(ge=0, le=3600)]
    lag_s: Annotated[Number, Field(ge=0, le=3600)] = 0.0
    noise_w: Watts = 0.0


class Thermal(TomlSection):
    """One heat capacity: the chip tends to ``ambient_c + rth_c_per_w`` x power with the time constant ``tau_s``.

    Every ``poll_s`` the clock is clamped one step lower while the chip is at ``throttle_c`` or above, and raised
    one step when it is ``release_c`` below that.
    """

    ambient_c: Degrees
    rth_c_per_w: Annotated[Number, Field(ge=0, le=1e3)]
    tau_s: Annotated[Number, Field(gt=0, le=1e6)]
    throttle_c: Degrees
    release_c: Annotated[Number, Field(ge=0, le=100)] = 2.0
    poll_s: Annotated[Number, Field(ge=0.01, le=3600)] = 0.5

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.throttle_c <= self.ambient_c:
            raise ValueError("throttle_c above ambient_c")
        return self


class Fault(TomlSection):
    """A fault that begins at ``time_s`` and lasts ``duration_s``, in seconds since the board was opened.

    "power": the board draws ``gain`` times as much; "reading": only the sensor reads that much;
    "slowdown": steps take ``gain`` times as long; "dropout": the sensor gives no reading.
    """

    kind: Literal["power", "reading", "slowdown", "dropout"]
    time_s: Seconds
    duration_s: Annotated[Number, Field(gt=0, le=1e6)]
    gain: Factor | None = None

    @model_validator(mode="after")
    def _gain(self) -> Self:
        if (self.gain is None) != (self.kind == "dropout"):
            raise ValueError('a gain, except for kind = "dropout"')
        return self


class SupplySection(TomlSection):
    """Losses and loads between the supply's terminals and the sensor, for caps that apply at the supply.

    ``other_w``: power that the sensor does not see; ``efficiency``: the share that the regulators pass on.
    """

    other_w: Annotated[Number, Field(ge=0, le=1000)]
    efficiency: Annotated[Number, Field(gt=0, le=1)]


class Cpu(Processor):
    """The CPU as a training processor: the same sections again, with the GPU off."""

    memory: Access
    host: Host
    power: Power

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if self.host.clocks_mhz is not None:
            raise ValueError("host without clocks_mhz: this CPU has its own")
        return self


class Chip(NamedTuple):
    """One processor of a board, with everything that its step time and power depend on.

    ``memory_clocks_mhz`` and ``host_clocks_mhz`` are empty if there is one clock; ``memory_clock_w`` has an entry for
    each of the memory's clocks, or none.
    """

    processor: Processor
    access: Access
    host: Host
    power: Power
    memory_clocks_mhz: tuple[float, ...] = ()
    memory_clock_w: tuple[float, ...] = ()

    @property
    def host_clocks_mhz(self) -> tuple[float, ...]:
        """The clocks of the CPU that feeds this processor."""
        return self.host.clocks_mhz or ()

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The clocks that can be set."""
        knobs = [Knob("clock_mhz", self.processor.clocks_mhz)]
        if self.memory_clocks_mhz:
            knobs.append(Knob("memory_clock_mhz", self.memory_clocks_mhz))
        if self.host_clocks_mhz:
            knobs.append(Knob("cpu_clock_mhz", self.host_clocks_mhz))
        return tuple(knobs)


class SimulatedBoard(TomlSection):
    """A whole board file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    mode: str
    calibrated: bool | Annotated[str, Field(pattern=r"^[^,;\n]+$")] | None = None
    """True if its times were compared with published or measured ones; a text: what else was; None if the file does not
    say."""
    gpu: Processor
    memory: Memory
    host: Host
    power: Power
    rails: Rails
    sensor: SensorSection
    thermal: Thermal
    cpu: Cpu | None = None
    supply: SupplySection | None = None
    fault: tuple[Fault, ...] = ()

    def chip(self, processor: ProcessorName) -> Chip:
        """The GPU or the CPU. Raises: InputError if the file has no ``[cpu]``."""
        clocks = self.memory.clocks_mhz or (), self.memory.clock_w or ()
        if processor == "gpu":
            return Chip(self.gpu, self.memory, self.host, self.power, *clocks)
        if self.cpu is None:
            raise InputError(f"board {self.name} has only", value="gpu", hint="add a [cpu] section to train on its CPU")
        return Chip(self.cpu, self.cpu.memory, self.cpu.host, self.cpu.power, *clocks)

    @property
    def digest(self) -> str:
        """Hash of everything that step time and power depend on, eight hex digits: an edited file is another board."""
        said = {"name", "mode", "calibrated", "rails", "sensor", "supply", "fault"}
        physics = self.model_dump(mode="json", exclude=said)
        for part in (physics, physics["cpu"] or {}):
            for section, added in ADDED_KEYS.items():
                for key in added & part.get(section, {}).keys():
                    if part[section][key] in (None, 0.0, "sum"):
                        del part[section][key]
        return hashlib.sha256(json.dumps(physics, sort_keys=True).encode()).hexdigest()[:8]


def load_board(path: str | Path) -> SimulatedBoard:
    """Read a board file. Raises: InputError in one line: the field, its value and what is allowed."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError("no such board file", value=str(path), hint="give the path of a TOML file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}", value=str(error), allowed="a readable TOML file") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML", value=str(error), allowed="a board file") from error
    try:
        return SimulatedBoard.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        allowed = in_words(first)
        raise InputError(
            f"{path}, field {place}", value=_shown(first), allowed=allowed, hint="docs/board-file.md has every field"
        ) from error


def board_names() -> tuple[str, ...]:
    """Names of the boards that come with wattune, ascending."""
    return tuple(sorted(path.stem for path in BOARDS.glob("*.toml")))


def builtin_board(name: str) -> SimulatedBoard:
    """A board that comes with wattune. Raises: UnknownName."""
    if name not in board_names():
        raise UnknownName("simulated board", name, board_names())
    return load_board(BOARDS / f"{name}.toml")


def _shown(error: Any) -> object:
    # A whole section does not belong in an error line; a missing field has no value of its own.
    if error["type"] == "missing":
        return "missing"
    value = error.get("input")
    return f"a section with {len(value)} keys" if isinstance(value, dict) else value
