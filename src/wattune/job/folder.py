"""The folder of a run: its records, its arguments, and its unfinished work.

run.json  profile.json  efficiency.json  plan.json  training.json  comparison.json  report.html
model.json (the model of a run with a server)
curves/proxy/  curves/target/  checkpoint/training.safetensors  profile-partial.json
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from wattune.cap import PEAK, CapSide, PowerCap
from wattune.errors import OutputError
from wattune.files import check_writable
from wattune.goal import TIME, Goal
from wattune.records import Record
from wattune.records.base import BatchSize, NotNegative, Number, Positive, Samples

R = TypeVar("R", bound=Record)

_UNFINISHED = re.compile(r"\..+\.(json|html|checkpoint|safetensors)\.\w+")


class RunArguments(Record):
    """The arguments of a run, in ``run.json``, with which ``--resume`` continues it.

    ``caps``: a cap that changes as it was given, with its ``cap_range``; ``cap_w`` is then the highest of its caps.
    ``carbon``, ``tariff``: files with the forecast of the grid's carbon intensity, or price.
    ``server``, ``model``, ``data``, ``target`` and ``device_name`` belong to a run whose model comes from a server. Its
    token is saved nowhere.
    """

    name = "run"

    device: str
    workload: str | None = None
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    caps: str | None = None
    cap_range: str | None = None
    carbon: str | None = None
    tariff: str | None = None
    max_temp_c: Number | None = None
    seeds: BatchSize | None = 3
    seed: Samples = 0
    strategy: Literal["full", "staircase", "guided"] | None = None
    margin_w: NotNegative = 0.0
    cap_window: Positive | Literal["peak"] | None = PEAK  # a run of an earlier version has no such field
    goal: Goal = TIME
    reference: bool | None = None
    compare: bool = False
    algorithm: str = "backprop"
    fingerprint: str | None = None
    server: str | None = None
    model: str | None = None
    data: str | None = None
    target: Number | None = None
    device_name: str | None = None

    @property
    def cap(self) -> PowerCap:
        """The power cap of the run, as it was asked for."""
        return PowerCap(self.cap_w, self.cap_side, self.margin_w, self.max_temp_c, self.cap_window)

    @classmethod
    def check(cls, cap: PowerCap, **fields: Any) -> RunArguments:
        """The arguments, validated. Raises: RecordError with one line: which one, its value and what is allowed."""
        limits = {
            "cap_w": cap.limit_w,
            "cap_side": cap.side,
            "margin_w": cap.margin_w,
            "max_temp_c": cap.max_temp_c,
            "cap_window": cap.window,
        }
        return cls.parse({"record": cls.name, **limits, **fields}, source="run")


class RunFolder:
    """A run's folder, claimed by ``open``; records appear in it whole and are replaced in one step."""

    def __init__(self, path: Path):
        self.path = path
        self.arguments_file = path / "run.json"
        self.partial = path / "profile-partial.json"
        self.checkpoint = path / "checkpoint" / "training.safetensors"
        self.proxy_curves = path / "curves" / "proxy"
        self.target_curves = path / "curves" / "target"
        self.weights = path / "model.safetensors"
        self.report = path / "report.html"

    @classmethod
    def open(cls, path: Path, arguments: RunArguments, *, resume: bool) -> RunFolder:
        """Make the folder, or with ``resume`` return to it.

        Raises: OutputError if it is not empty, not writable, or was made for other arguments.
        """
        folder = cls(path)
        if resume and (before := folder.arguments) is not None:
            folder._compare(before, arguments)
            folder._sweep()
            arguments.save(folder.arguments_file)
        elif folder._taken():
            raise OutputError(
                "the output folder is not empty",
                value=str(path),
                allowed="a new or an empty folder",
                hint="give another one, or --resume if a run was interrupted there",
            )
        else:
            check_writable(path)
            arguments.save(folder.arguments_file)
        return folder

    @property
    def arguments(self) -> RunArguments | None:
        """The arguments that a run began with here, None if no run did. Raises: RecordError."""
        return RunArguments.load(self.arguments_file) if os.path.isfile(self.arguments_file) else None

    def abandon(self) -> None:
        """Empty a folder in which nothing has been done yet, so that the corrected command can use it."""
        first = (self.path / "model.json", self.arguments_file)
        if {entry.name for entry in self.path.iterdir()} <= {path.name for path in first}:
            for path in first:
                path.unlink(missing_ok=True)

    def load(self, kind: type[R]) -> R | None:
        """The record of this kind, None if it is not there yet. Raises: RecordError."""
        path = self.path / f"{kind.name}.json"
        return kind.load(path) if path.exists() else None

    def save(self, record: R) -> R:
        """Save a record, and return it. Raises: OutputError."""
        record.save(self.path / f"{record.name}.json")
        return record

    def drop(self, kind: type[Record]) -> None:
        """Remove the record of this kind, so that it is made again."""
        (self.path / f"{kind.name}.json").unlink(missing_ok=True)

    def _compare(self, before: RunArguments, now: RunArguments) -> None:
        hint = "resume with the original arguments, or choose another output folder"
        removed = sorted(name for name, value in (before.model_extra or {}).items() if value is not None)
        if removed:
            raise OutputError(
                f"cannot resume {self.path} with arguments that this version does not have",
                value=", ".join(removed),
                hint="choose another output folder",
            )
        # A comparison may be asked for afterwards, since it changes none of the other records. Neither do the server's
        # address and the name of the device there.
        free = {"version", "provenance", "compare", "server", "device_name"}
        for field in RunArguments.model_fields.keys() - free:
            old, new = getattr(before, field), getattr(now, field)
            # The highest of caps that change is known again only where they are announced.
            if old == new or (field == "cap_w" and now.caps is not None):
                continue
            if field == "fingerprint":
                raise OutputError(f"cannot resume {self.path}: model, data or target have changed since", hint=hint)
            raise OutputError(f"cannot resume {self.path} with another {field}", value=new, allowed=f"{old}", hint=hint)

    def _taken(self) -> bool:
        if not os.path.isdir(self.path):
            return os.path.lexists(self.path)  # a file, or a link to nowhere
        # A kill during the very first write leaves a temporary file, which does not count.
        return any(not name.startswith(f".{self.arguments_file.name}.") for name in os.listdir(self.path))

    def _sweep(self) -> None:
        # A kill in the middle of `write_bytes` leaves a temporary file.
        for entry in self.path.rglob(".*"):
            if _UNFINISHED.fullmatch(entry.name):
                entry.unlink(missing_ok=True)


def free_folder(parent: Path | None = None) -> Path:
    """The first of ``wattune-run-1``, ``wattune-run-2``, ... that does not exist."""
    parent = Path() if parent is None else parent
    number = 1
    while os.path.lexists(parent / f"wattune-run-{number}"):
        number += 1
    return parent / f"wattune-run-{number}"
