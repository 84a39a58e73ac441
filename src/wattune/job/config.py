"""``RunConfig``: the one list of a run's arguments.

The command line, ``wattune.run``, the table ``[run]`` of a workload file and the folder of a run all read it. The
options of the commands are made from its fields, and arguments that do not go together are refused here alone.
"""

# No import of records, numpy or torch: `wattune run --help` reads this module.

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from wattune import units
from wattune.cap import PEAK, PowerCap
from wattune.cap_source import STALE_S, CapSource, CapTrace, LowestCap, WatchedCap, cap_of, parse_range
from wattune.errors import InputError, OutputError, did_you_mean
from wattune.goal import Aim, Goal
from wattune.tables import Layout, parse_columns
from wattune.trace_file import zone_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from wattune.devices import Device
    from wattune.intensity import Intensity, Unit
    from wattune.program.workload import ProgramWorkload
    from wattune.records import ProfileTable
    from wattune.workloads import Data, Loaders, Workload

    AnyDevice: TypeAlias = str | Device
    AnyWorkload: TypeAlias = str | Path | Workload
    AnyData: TypeAlias = str | Path | Data | Loaders
    AnyProfile: TypeAlias = str | Path | ProfileTable
else:
    AnyDevice = AnyWorkload = AnyData = AnyProfile = Any

ALSO_CALLED = {"cap_w": "cap", "device_name": "name"}
"""Names of arguments in Python and in folders of earlier runs -> the keys of today."""

OF_DEVICE = ("sysfs_root", "knobs", "meter")
"""Keys that are options of a device, and become part of its name."""

NOT_SAVED = ("output", "resume", "processes", "profile", "token_file", *OF_DEVICE)
"""Keys that a run's folder does not keep: they may be others when the run is resumed, or are told by its records."""

CHANGEABLE = ("compare", "server", "name")
"""Keys that may change when a run is resumed: they change none of the records that exist."""

OF_GOAL = ("goal", "max_slowdown", "deadline", "energy", "price_per_kwh", "price_per_hour")
"""Keys of a goal's parts, in the order of ``Goal``'s own."""

OF_SERVER = ("model", "name", "token_file")

OF_PROGRAM = ("batch_sizes", "metric", "samples", "rate", "proxy_data")

NOT_OF_PROGRAM = ("workload", "server", "algorithm", "reference", "processes", "carbon", "tariff")

WITH_PATHS = ("workload", "device", "cap", "carbon", "tariff", "data", "proxy_data")
"""Keys whose text may be the path of a file, or have one behind a name, as in "watch:FILE"."""

REMOVED = ("battery", "beside", "latency")
"""Arguments of earlier versions; docs/decisions/0012-what-goes.md has what is in their place."""

MOST_SEEDS = 100
"""Training runs per batch size that a server accepts."""

READ_FROM_FILES = ("auto", "jetson", "cpu")
"""Devices that are read from files, for which ``sysfs_root`` names another folder."""

SEVERAL_KNOBS = ("auto", "agent", "jetson")
"""Devices that may have several knobs to choose from."""


def _key(metavar: str | None, description: str, default: Any = None, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"metavar": metavar}, **limits)


def _in(unit: units.Unit, **limits: Any) -> BeforeValidator:
    """Read a text with its unit; a number is in this unit already."""

    def read(value: object, info: ValidationInfo) -> object:
        if isinstance(value, str):
            return units.parse(value, unit, name=str(info.field_name), **limits)
        return _number(value)

    return BeforeValidator(read)


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


def _window(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.strip().lower() != PEAK:
        return units.parse(value, "s", name=str(info.field_name), also="; or peak")
    return PEAK if isinstance(value, str) else _number(value)


def _sizes(value: object) -> object:
    if not isinstance(value, str):
        return value
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdecimal() and word.isascii() and 0 < int(word) < 10**9 for word in words):
        raise InputError("batch_sizes", value=value, allowed="positive numbers, such as 8,16,32")
    return tuple(int(word) for word in words)


def _checked_columns(value: str | None) -> str | None:
    parse_columns(value or "")
    return value


def _checked_zone(value: str | None) -> str | None:
    if value is not None:
        zone_of(value)
    return value


def _layout(given: Mapping[str, Any], *, is_shared: bool = False) -> Layout:
    return Layout(parse_columns(given.get("columns") or ""), given.get("timezone"), is_shared)


def _range(value: object) -> object:
    return parse_range(value) if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]
Watts = Annotated[float, _in("W", zero=True)]
Celsius = Annotated[float, _in("°C", below=150.0)]
Share = Annotated[float, _in("share")]
Seconds = Annotated[float, _in("s", bare=False)]
Joules = Annotated[float, _in("J", bare=False)]
Window = Annotated[float | Literal["peak"], BeforeValidator(_window)]
Sizes = Annotated[tuple[int, ...], BeforeValidator(_sizes)]
WattsRange = Annotated[tuple[float, float], BeforeValidator(_range)]


class RunConfig(BaseModel):
    """All arguments of a run. A text has its unit with it ("4.5W", "90min"); a number is in W, s, J or °C.

    Raises: InputError in one line, by ``read``, for an unknown key, a value that is not allowed, and arguments that do
    not go together.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True, defer_build=True
    )

    workload: AnyWorkload | None = _key("WORKLOAD", "Workload file (default: the built-in example).")
    device: AnyDevice = _key(
        "DEVICE", "A name from `wattune devices`, a board file, replay:TABLE.csv, or auto for this machine's board."
    )
    sysfs_root: Path | None = _key("DIR", "Read sys/... from this folder, not from this machine (default: /).")
    meter: str | None = _key(
        "external:...", "Read the power of a Jetson or CPU by this meter, a URL or a command (default: its own sensor)."
    )
    knobs: str | None = _key(
        "LIST",
        "Clocks of a Jetson to set together, such as gpu,memory,cpu (default: with a cap all that you may set; with "
        "the strategy full or staircase the GPU's).",
    )
    cap_range: WattsRange | None = _key(
        "W..W",
        "With the cap watch:FILE: least and most watts to choose the batch size by, such as 4W..7W (default: the "
        "present cap).",
    )
    cap_stale: Seconds | None = _key(
        "TIME",
        "With the cap watch:FILE: time after which a file that was being rewritten, and is not any more, counts as its "
        "lowest cap (default: 60s).",
    )
    columns: Annotated[str | None, AfterValidator(_checked_columns)] = _key(
        "NAME=HEADER,...",
        "Headers of your table's columns, such as time=Start,value=Price or step_ms=t (default: known headers).",
    )
    timezone: Annotated[str | None, AfterValidator(_checked_zone)] = _key(
        "ZONE",
        "Zone of times without an offset in tables, such as Europe/Berlin or UTC (default: what the header says, else "
        "this machine's).",
    )
    cap: Any = _key(
        "CAP",
        "Power cap, such as 4.5W at the power sensor or 12W@supply at the supply's terminals; none for no cap. A cap "
        "that changes: CAPS.csv (seconds,watts or time,watts), or watch:FILE, which another program writes watts to. "
        "Repeatable: the lowest of several caps holds.",
        default=PowerCap(),
    )
    cap_window: Window | None = _key(
        "SECONDS",
        "Time over which the mean power stays under the cap, such as 1s or 200ms; peak: every single reading "
        "(default: 1s, or the time that the sensor averages over if that is longer).",
    )
    margin: Watts = _key("WATTS", "Leave this much of the cap unused, such as 0.2W or 200mW (default: 0).", 0.0, ge=0)
    max_temp: Celsius | None = _key(
        "CELSIUS",
        "Highest temperature of the board, such as 80C; a second limit beside the cap (default: none).",
    )
    goal: Aim | None = _key(
        "NAME",
        "What is least at the chosen point: time, energy, energy-above-rest, edp (energy times time), or cost "
        "(default: time; energy with max_slowdown or deadline, cost with a price).",
    )
    max_slowdown: Share | None = _key("SHARE", "Be at most this much slower than the fastest point, such as 5%.")
    deadline: Seconds | None = _key("TIME", "Reach the target within this time, such as 90min or 8h.")
    energy: Joules | None = _key(
        "JOULES", "Be the fastest within this energy to the target, such as 200kJ or 50Wh (default: no limit)."
    )
    price_per_kwh: Real | None = _key("PRICE", "Price of a kWh, for the goal cost, in any currency.")
    price_per_hour: Real | None = _key("PRICE", "Price of an hour of the device, in the same currency.")
    carbon: Path | None = _key(
        "FILE",
        "With a deadline: train at the times of the least carbon. FILE: a provider's forecast, .csv or .json, or "
        "time,gco2_per_kwh.",
    )
    tariff: Path | None = _key(
        "FILE",
        "With a deadline: train at the times of the lowest price. FILE: as for carbon, with price_per_kwh.",
    )
    algorithm: str | None = _key(
        "NAME",
        "Training algorithm, with its options: backprop:checkpoint=auto, backprop:last=1, async-fgd:modules=4 "
        "(default: backprop); see docs/algorithms.md.",
    )
    strategy: Literal["full", "staircase", "guided"] | None = _key(
        "NAME",
        "Points to profile. full: every batch size and clock; staircase: those along the cap; guided: the few that "
        "tell most (default: with a cap guided for several clocks, else staircase; full without a cap).",
    )
    reference: bool | None = _key(
        None,
        "Also measure the reference workloads, once per device, to compare with simpler rules (default: on a simulated "
        "board with one knob).",
    )
    profile: AnyProfile | None = _key("FILE", "Use this profile record (default: profile the device).")
    seeds: Count | None = _key(
        "N", "Training runs per batch size (default: as few as tell the best batch size; 3 to compare).", ge=1, le=1000
    )
    seed: Count = _key("N", "Random seed of the training run and of simulated sensors (default: 0).", 0, ge=0, lt=2**32)
    processes: Count | None = _key("N", "Training runs at a time (default: one per core).", ge=1)
    compare: bool = _key(None, "Then also train the picks of simpler rules.", default=False)
    output: Path | None = _key("DIR", "New or empty folder of the run (default: wattune-run-N).")
    resume: bool = _key(None, "Continue what was interrupted.", default=False)
    server: str | None = _key("URL", "Train a model of this wattune server, which trains the proxy.")
    model: str | None = _key(
        "NAME", "With a server: name of the model, or its architecture and input size: resnet18@3x32x32."
    )
    data: AnyData | None = _key("FILE", "Your data: .npz, which never leaves this machine; of a command, its {data}.")
    target: Real | None = _key("X", "Target metric of a server's model (default: the model's), or of a command.")
    name: str | None = _key("NAME", "With a server: name of this device (default: the host's name).")
    token_file: Path | None = _key("FILE", "With a server: file with the token (default: $WATTUNE_TOKEN).")

    command: str | None = _key("TEXT", "Train with this program; {batch_size}, {rate}, {seed}, {data} are replaced.")
    batch_sizes: Sizes | None = _key("LIST", "Batch sizes of a command, such as 8,16,32.")
    metric: str | None = _key("REGEX", "Metric that a command prints; one group.")
    samples: str | None = _key("REGEX", "Samples so far that a command prints, if it trains without torch.")
    lower_is_better: bool = _key(None, "The command's metric falls to the target.", default=False)
    rate: str | None = _key("RATE@SIZE", "{rate} at your own batch size: 0.001@32; for SGD 0.1@32,linear.")
    proxy_data: AnyData | None = _key("FILE", "{data} in the estimate (default: as in training).")

    # ------------------------------------------------------------------------------------------------------ reading

    @classmethod
    def read(cls, *sources: Mapping[str, Any]) -> RunConfig:
        """The arguments that these mappings have together; the last one that has a key counts. Raises: InputError."""
        given: dict[str, Any] = {}
        for source in sources:
            given |= _spread(source)
        try:
            return cls.model_validate(_with_device_options(_with_columns(given)))
        except ValidationError as error:
            raise _as_input_error(error) from error

    @classmethod
    def of_file(cls, given: Mapping[str, Any]) -> RunConfig:
        """The arguments given; those of a program may come from the table ``[program]`` of the workload file.

        Raises: InputError and its kinds.
        """
        return cls.read(*_with_tables(given, "program"))

    @classmethod
    def of_run(cls, given: Mapping[str, Any]) -> RunConfig:
        """The arguments of a whole run: those given; what is not comes from the folder of the run to resume, or from
        the tables ``[run]`` and ``[program]`` of the workload file.

        Raises: InputError and its kinds.
        """
        from wattune.job.folder import RunFolder, free_folder

        before = None
        if given.get("resume"):
            if given.get("output") is None:
                raise OutputError("resume needs output, the folder of the run to continue")
            before = RunFolder(Path(given["output"])).arguments
        if given.get("output") is not None:  # code of a user may change the current folder
            given = {**given, "output": Path(given["output"]).absolute()}
        config = cls.read(
            *(_with_tables(given, "run", "program") if before is None else (before.located(given["output"]), given))
        )
        if config.device is None and config.resume:
            raise OutputError("no run to resume", value=str(config.output), hint="start it again, without --resume")
        config.require("device", "cap", command="run")
        if config.server is None and config.program is None:
            config._refuse(("target",), "without a server or a command")
        return config if config.output is not None else config.model_copy(update={"output": free_folder(Path.cwd())})

    def require(self, *keys: str, command: str) -> RunConfig:
        """Check that these are given. Raises: InputError."""
        for key in keys:
            if key not in self.model_fields_set or (key != "cap" and getattr(self, key) is None):
                raise InputError(f"{key} is missing", hint=f"see wattune {command} --help")
        return self

    # ------------------------------------------------------------------------------------------------------- values

    @cached_property
    def whole_cap(self) -> PowerCap | CapSource:
        """The cap with its margin, temperature and window."""
        form = PowerCap(margin_w=self.margin, max_temp_c=self.max_temp, window=self.cap_window)
        cap: PowerCap | CapSource = self.cap
        if isinstance(cap, CapSource):
            return cap.with_form(form)
        return replace(form, limit_w=cap.limit_w, side=cap.side)

    @property
    def moving_cap(self) -> CapSource | None:
        """The whole cap if it changes."""
        return self.whole_cap if isinstance(self.whole_cap, CapSource) else None

    @property
    def layout(self) -> Layout:
        """Headers and zone of the tables that are given."""
        return _layout({"columns": self.columns, "timezone": self.timezone})

    @cached_property
    def intensity(self) -> Intensity | None:
        """The forecast of carbon or price. Raises: InputError."""
        from wattune.intensity import Intensity

        path = self.carbon or self.tariff
        unit: Unit = "gco2_per_kwh" if self.carbon else "price_per_kwh"
        parts = self.cap.parts if isinstance(self.cap, CapSource) else ()
        layout = self.layout._replace(is_shared=any(isinstance(one, CapTrace) for one in parts))
        return None if path is None else Intensity.load(path, unit, layout)

    @property
    def constant_cap(self) -> PowerCap:
        """The whole cap. Raises: InputError if it changes."""
        if isinstance(self.whole_cap, CapSource):
            raise InputError("cap", value=str(self.cap), allowed="a constant cap")
        return self.whole_cap

    @cached_property
    def whole_goal(self) -> Goal:
        """The goal with its bound and prices."""
        aim = self.goal
        if aim is None:
            is_priced = self.price_per_kwh is not None or self.price_per_hour is not None
            aim = "cost" if is_priced else "time" if self.max_slowdown is self.deadline is None else "energy"
        return Goal(aim, self.max_slowdown, self.deadline, self.energy, self.price_per_kwh, self.price_per_hour)

    @cached_property
    def program(self) -> ProgramWorkload | None:
        """The program that trains, None without a command. Raises: InputError."""
        from wattune.program.workload import ProgramWorkload

        if self.command is None:
            return None
        for key in ("batch_sizes", "metric", "target"):
            if getattr(self, key) is None:
                raise InputError(f"command without {key}", value=self.command, allowed="batch_sizes, metric and target")
        given = {one.name: getattr(self, one.name) for one in fields(ProgramWorkload)}
        for key in ("data", "proxy_data"):
            if given[key] is not None:  # absolute, for a run that is resumed from another folder
                given[key] = os.path.abspath(given[key]) if os.path.lexists(given[key]) else str(given[key])
        return ProgramWorkload(**given)

    def saved(self) -> dict[str, Any]:
        """Arguments that the folder of a run keeps, as JSON has them; ``read`` makes the same arguments of these."""
        values = {key: getattr(self, key) for key in type(self).model_fields if key not in NOT_SAVED}
        values["goal"] = self.whole_goal.aim
        texts = {key: _text(value) for key, value in values.items() if value is not None}
        texts |= {key: with_paths(texts[key], self._kept_path) for key in WITH_PATHS if key in texts}
        return {key: value for key, value in texts.items() if value is not None}

    def _kept_path(self, path: Path) -> Path | None:
        """The path of a file as a run's folder keeps it: absolute, or relative to the folder if it is in there."""
        if not os.path.lexists(path):
            return None
        path, folder = path.absolute(), self.output and self.output.absolute()
        return path.relative_to(folder) if folder is not None and folder in path.parents else path

    # ------------------------------------------------------------------------------------------------------- checks

    @field_validator("cap", mode="before")
    @classmethod
    def _parse_cap(cls, value: object, info: ValidationInfo) -> PowerCap | CapSource:
        stale_s = info.data.get("cap_stale")
        cap = cap_of(
            value,
            range_w=info.data.get("cap_range"),
            stale_s=STALE_S if stale_s is None else stale_s,
            layout=_layout(info.data, is_shared=True),  # with a forecast
        )
        parts = cap.parts if isinstance(cap, CapSource) else ()
        if stale_s is not None and not any(isinstance(one, WatchedCap) for one in parts):
            raise InputError("cap_stale", value=f"{stale_s:g} s", allowed="with watch:FILE")
        return cap

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        goal, forecast = self.whole_goal, self.carbon or self.tariff
        if self.command is None:
            self._refuse(OF_PROGRAM, "without a command")
            self._refuse(() if self.server else ("data",), "without a server or a command")
        else:
            self._refuse(NOT_OF_PROGRAM, "with a command")
        if self.server is None:
            self._refuse(OF_SERVER, "without a server")
        else:
            self._refuse(("workload",), "with a server")
            self.require("model", "data", command="run")
        for is_refused, what, value, allowed in (
            (
                self.lower_is_better and self.command is None,
                "lower_is_better without a command",
                None,
                "with a command",
            ),
            (self.server and (self.seeds or 0) > MOST_SEEDS, "seeds", self.seeds, f"1 to {MOST_SEEDS} with a server"),
            (self.strategy and self.profile, "strategy", self.strategy, "none if a profile is given"),
            (self.carbon and self.tariff, "a forecast of carbon and one of the price", None, "one of the two"),
            (forecast and goal.deadline_s is None, "a forecast without a deadline", forecast, "with a deadline"),
        ):
            if is_refused:
                raise InputError(what, value=None if value is None else str(value), allowed=allowed)
        return self

    def _refuse(self, keys: tuple[str, ...], why: str) -> None:
        for key in keys:
            if (value := getattr(self, key)) is not None:
                raise InputError(f"{key} {why}", value=str(value))


def known_key(text: str, keys: tuple[str, ...] | None = None) -> str:
    """The key of an argument, which may be written with dashes. Raises: InputError, which names a similar key."""
    key = text.strip().replace("-", "_")
    key, known = ALSO_CALLED.get(key, key), keys or tuple(RunConfig.model_fields)
    if key in known:
        return key
    if key in REMOVED:
        raise InputError(f"{key} is not an argument of a run any more", hint="see docs/decisions/0012-what-goes.md")
    hint = did_you_mean(key, known)
    raise InputError("unknown argument of a run", value=text, allowed=None if hint else ", ".join(known), hint=hint)


def _spread(source: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by today's keys: a cap or goal that is an object gives its parts, a device takes its options in."""
    given = {known_key(key): value for key, value in source.items()}
    cap, goal = given.get("cap"), given.get("goal")
    parts: dict[str, Any] = {}
    caps = cap if isinstance(cap, (list, tuple)) else (cap,)
    forms = [one.form if isinstance(one, CapSource) else one for one in caps if isinstance(one, (PowerCap, CapSource))]
    if forms:
        form = max(forms, key=lambda one: one.margin_w)
        parts |= {"margin": form.margin_w, "max_temp": form.max_temp_c, "cap_window": form.window}
    if isinstance(goal, Goal):
        parts |= dict(zip(OF_GOAL, astuple(goal), strict=True))
    return given | parts


def _with_device_options(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with ``OF_DEVICE`` in the name of the device. Raises: InputError."""
    options = {key: given[key] for key in OF_DEVICE if given.get(key) is not None}
    if (root := options.get("sysfs_root")) is not None and not (Path(root) / "sys").is_dir():
        raise InputError("sysfs_root", value=str(root), allowed="a folder with sys/... in it")
    device = given.get("device")
    if device is None or not options:
        return given
    scheme = re.split(r"[:?]", device, maxsplit=1)[0] if isinstance(device, str) else None
    for key in options:
        if scheme not in (allowed := SEVERAL_KNOBS if key == "knobs" else READ_FROM_FILES):
            raise InputError(f"{key} with this device", value=str(device), allowed=", ".join(allowed))
    from wattune.devices.spec_options import with_options

    absolute = None if root is None else Path(root).absolute()
    options["sysfs_root"] = absolute
    named = {"root" if key == "sysfs_root" else key: options.get(key) for key in OF_DEVICE}
    device = with_options(device, **named)
    return {key: value for key, value in given.items() if key not in OF_DEVICE} | {"device": device}


def _with_columns(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with the headers of a replayed table in the name of the device as well."""
    device, columns = given.get("device"), given.get("columns")
    if not columns or not str(device).startswith("replay:") or "columns=" in str(device):
        return given
    from wattune.devices.spec_options import with_options

    return given | {"device": with_options(str(device), columns=columns)}


def _with_tables(given: Mapping[str, Any], *names: str) -> tuple[Mapping[str, Any], ...]:
    """These tables of the workload file, ``[run]`` for one, and the arguments given. If the file has nothing but
    the two, a table may name the workload.

    Raises: InputError, WorkloadError.
    """
    workload = given.get("workload")
    if not isinstance(workload, (str, Path)) or ("run" not in names and not Path(workload).is_file()):
        return {}, given
    from wattune.workloads.toml import read_toml

    file = read_toml(Path(workload))
    tables = {name: file.pop(name) for name in names if name in file}
    if not tables:
        return {}, given
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InputError(f"{workload}, {name}", value=str(table), allowed=f"a table [{name}]")
    if file.keys() - {"run", "program"}:
        return *tables.values(), given
    return *tables.values(), {key: value for key, value in given.items() if key != "workload"}


def _text(value: object) -> object:
    """The value as ``read`` takes it from JSON; None for an object that only Python has."""
    if isinstance(value, PowerCap):
        side = "" if value.side == "module" else f"@{value.side}"
        return "none" if value.limit_w is None else f"{float(value.limit_w)!r}W{side}"
    if isinstance(value, LowestCap):
        return [_text(one) for one in value.sources]
    if isinstance(value, tuple):
        is_range = isinstance(value[0], float)
        return "..".join(f"{watts!r}W" for watts in value) if is_range else ",".join(map(str, value))
    if isinstance(value, (CapSource, Path)):
        return str(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    # A device has the text that opens it, a workload a name.
    return getattr(value, "spec", None) or getattr(value, "name", None)


_WITH_PATH = re.compile(r"(?P<name>(?:watch|replay|sim):)?(?P<path>[^?@]+)(?P<rest>.*)", re.DOTALL)


def with_paths(text: Any, moved: Callable[[Path], Path | None]) -> Any:
    """An argument, or a list of them, in which ``moved`` gives another path for a file (None: the path stays)."""
    if isinstance(text, list):
        return [with_paths(one, moved) for one in text]
    match = _WITH_PATH.fullmatch(text) if isinstance(text, str) else None
    if match is None or not (match["name"] or Path(match["path"]).suffix):  # a name, such as auto
        return text
    path = moved(Path(match["path"]))
    return text if path is None else f"{match['name'] or ''}{path}{match['rest']}"


def _as_input_error(error: ValidationError) -> InputError:
    from wattune.records.base import in_words

    first = error.errors()[0]
    names = re.findall("'([^']+)'", str(first.get("ctx", {}).get("expected", "")))
    hint = did_you_mean(str(first["input"]), names)
    return InputError(str(first["loc"][0]), value=first["input"], allowed=in_words(first), hint=hint)
