"""The folder of a run: its records, what it was asked to do, and what is unfinished.

run.json  profile.json  efficiency.json  plan.json  training.json  comparison.json  report.html
model.json (what a server said of its model)
curves/proxy/  curves/target/  checkpoint/training.safetensors  profile-partial.json
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal, TypeVar

from wattune.errors import OutputError
from wattune.records import CapSide, Record
from wattune.records.base import BatchSize, NotNegative, Number, Positive, Samples

R = TypeVar("R", bound=Record)

_UNFINISHED = re.compile(r"\..+\.(json|html|checkpoint|safetensors)\.\w+")


class RunArguments(Record):
    """What a run was asked to do: ``run.json``, which ``--resume`` goes by.

    ``server``, ``model``, ``data``, ``target`` and ``device_name`` are of a run whose model comes from a server. Its
    token is kept nowhere.
    """

    name = "run"

    device: str
    workload: str | None = None
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    max_temp_c: Number | None = None
    seeds: BatchSize | None = 3
    seed: Samples = 0
    strategy: Literal["full", "staircase", "guided"] | None = None
    margin_w: NotNegative = 0.0
    reference: bool | None = None
    compare: bool = False
    algorithm: str = "backprop"
    fingerprint: str | None = None
    server: str | None = None
    model: str | None = None
    data: str | None = None
    target: Number | None = None
    device_name: str | None = None

    @classmethod
    def check(cls, **fields: Any) -> RunArguments:
        """The arguments, validated. Raises: RecordError with one line: which one, its value and what is allowed."""
        return cls.parse({"record": cls.name, **fields}, source="run")


class RunFolder:
    """A run's folder, claimed by ``open``; records appear in it whole and are replaced in one step."""

    def __init__(self, path: Path):
        self.path = path
        self.arguments = path / "run.json"
        self.partial = path / "profile-partial.json"
        self.checkpoint = path / "checkpoint" / "training.safetensors"
        self.proxy_curves = path / "curves" / "proxy"
        self.target_curves = path / "curves" / "target"
        self.weights = path / "model.safetensors"
        self.report = path / "report.html"

    @classmethod
    def open(cls, path: Path, arguments: RunArguments, *, resume: bool) -> RunFolder:
        """Make the folder, or with ``resume`` find it again.

        Raises: OutputError where it is not empty, not writable, or was made for other arguments.
        """
        folder = cls(path)
        if folder.begun and resume:
            folder._compare(RunArguments.load(folder.arguments), arguments)
            folder._sweep()
            arguments.save(folder.arguments)
        elif folder._taken():
            raise OutputError(
                "the output folder is not empty",
                value=str(path),
                allowed="a new or an empty folder",
                hint="give another one, or --resume if a run was interrupted there",
            )
        else:
            check_writable(path)
            arguments.save(folder.arguments)
        return folder

    @property
    def begun(self) -> bool:
        """Whether a run has left its arguments here."""
        return os.path.isfile(self.arguments)

    def remembered(self) -> dict[str, Any]:
        """The arguments that the run began with, as ``pipeline.run`` takes them. Raises: RecordError."""
        return RunArguments.load(self.arguments).model_dump(exclude={"version", "provenance", "fingerprint"})

    def abandon(self) -> None:
        """Give up a folder in which nothing has been done yet, so that the corrected command can have it."""
        begun = (self.path / "model.json", self.arguments)
        if {entry.name for entry in self.path.iterdir()} <= {path.name for path in begun}:
            for path in begun:
                path.unlink(missing_ok=True)

    def load(self, kind: type[R]) -> R | None:
        """The record of this kind, None where it is not there yet. Raises: RecordError."""
        path = self.path / f"{kind.name}.json"
        return kind.load(path) if path.exists() else None

    def save(self, record: R) -> R:
        """Keep a record that has just been made, and hand it on. Raises: OutputError."""
        record.save(self.path / f"{record.name}.json")
        return record

    def _compare(self, before: RunArguments, now: RunArguments) -> None:
        # A comparison may be asked for afterwards: it changes none of the other records. Nor do the server's address
        # and the name that the device has there.
        free = {"version", "provenance", "compare", "server", "device_name"}
        for field in RunArguments.model_fields.keys() - free:
            old, new = getattr(before, field), getattr(now, field)
            if old == new:
                continue
            hint = "resume with what the run began with, or give another output folder"
            if field == "fingerprint":
                raise OutputError(f"cannot resume {self.path}: model, data or target have changed since", hint=hint)
            raise OutputError(f"cannot resume {self.path} with another {field}", value=new, allowed=f"{old}", hint=hint)

    def _taken(self) -> bool:
        if not os.path.isdir(self.path):
            return os.path.lexists(self.path)  # a file, or a link to nowhere
        # What a kill leaves of the very first file does not count.
        return any(not name.startswith(f".{self.arguments.name}.") for name in os.listdir(self.path))

    def _sweep(self) -> None:
        # What a kill in the middle of `write_bytes` leaves behind.
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


def check_writable(folder: Path) -> None:
    """Make the folder if need be, and see that files can be made in it. Raises: OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"wattune")
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder}", value=error.strerror or str(error), hint="give another output"
        ) from error
