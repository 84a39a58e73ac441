"""Options of several commands: those of ``RunConfig``'s fields, and a few others, each with one help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from wattune.errors import InputError
from wattune.job.config import RunConfig, known_key

Command = TypeVar("Command", bound=Callable[..., None])

ProfileFile = Annotated[Path, typer.Argument(metavar="PROFILE", help="Profile record.")]
EfficiencyFile = Annotated[Path, typer.Argument(metavar="EFFICIENCY", help="Efficiency record.")]
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
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="BYTES", help="Memory limit, such as 64MB, 1.5GB or 512MiB (default: no limit)."),
]

ALGORITHM = "backprop"
"""Default training algorithm."""

SEVERAL = ("cap",)
"""Keys whose option may be given several times."""

FLAGS = {
    "compare": "--compare",
    "resume": "--resume",
    "reference": "--reference/--no-reference",
    "lower_is_better": "--lower-is-better",
}
"""Keys that are options without a value."""

WHERE = "docs/run-arguments.md"
"""Page with all keys and their meaning."""


def configured(
    *shown: str,
    advanced: Sequence[str] = (),
    required: Sequence[str] = (),
    read: Callable[[dict[str, Any]], RunConfig] = RunConfig.read,
) -> Callable[[Command], Command]:
    """Give a command options in place of its parameter ``config``, which gets the ``RunConfig`` that they make.

    ``shown``: keys with an option of their own, ``workload`` with an argument; ``advanced``: keys that ``--set`` takes
    besides, whose options the help leaves out; ``required``: keys that must be given.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        options = {key: _option(key, is_hidden=key in advanced) for key in (*shown, *advanced)}
        if advanced:
            options["settings"] = _set_option(advanced)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, one in signature.parameters.items()
            for parameter in (options.values() if name == "config" else (one,))
        ]

        @wraps(command)
        def run(**given: Any) -> None:
            asked = {key: given.pop(key) for key in (*shown, *advanced)}
            asked |= _settings(given.pop("settings", None) or (), (*shown, *advanced))
            # A flag that is not given is False, and a list is empty.
            config = read({key: value for key, value in asked.items() if value not in (None, False, [])})
            command(**given, config=config.require(*required, command=command.__name__))

        # Typer reads both.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return cast(Command, run)

    return decorate


def of_this_machine(given: dict[str, Any]) -> RunConfig:
    """The arguments, by default on this machine's board. Raises: InputError."""
    return RunConfig.read({"device": "auto"}, given)


def _option(key: str, *, is_hidden: bool) -> inspect.Parameter:
    field = RunConfig.model_fields[key]
    metavar, text = cast(dict[str, Any], field.json_schema_extra)["metavar"], field.description
    name = FLAGS.get(key) or f"--{key.replace('_', '-')}"
    names = (name, "-o") if key == "output" else (name,)
    made = (
        typer.Argument(metavar=metavar, help=text)
        if key == "workload"
        else typer.Option(*names, metavar=metavar, help=text, hidden=is_hidden)
    )
    kind: Any = bool if key in FLAGS else list[str] if key in SEVERAL else str
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, made])


def _set_option(advanced: Sequence[str]) -> inspect.Parameter:
    text = f"Advanced, repeatable, see {WHERE}: {', '.join(sorted(advanced))}."
    made = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=text)]
    return inspect.Parameter("settings", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=made)


def _settings(pairs: Sequence[str], keys: tuple[str, ...]) -> dict[str, str]:
    """Key -> value of each ``--set``. Raises: InputError."""
    allowed = "KEY=VALUE, such as margin=0.2W"
    read = named_values("--set", pairs, allowed)
    if empty := [name for name, value in read.items() if not value]:
        raise InputError("--set", value=f"{empty[0]}=", allowed=allowed)
    settings = {known_key(key, keys): value for key, value in read.items()}
    if len(settings) < len(read):
        raise InputError("--set has a key twice", value=", ".join(read), allowed="each key once")
    return settings


def named_values(option: str, pairs: Iterable[str], allowed: str) -> dict[str, str]:
    """Name -> value, which may be empty, from texts such as "name=value". Raises: InputError, also for a name twice."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not name or not equals:
            raise InputError(option, value=pair, allowed=allowed)
        if name in values:
            raise InputError(f"{option} has a name twice", value=name, allowed="each name once")
        values[name] = value
    return values
