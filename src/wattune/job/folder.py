"""The folder of a run: its records, its arguments, and its unfinished work.

run.json  profile.json  efficiency.json  plan.json  training.json  comparison.json  report.html
model.json (the model of a run with a server)
curves/proxy/  curves/target/  checkpoint/training.safetensors  profile-partial.json
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, model_validator

from wattune.cap import PEAK
from wattune.errors import OutputError
from wattune.files import Held, check_writable
from wattune.goal import Goal
from wattune.job.config import CHANGEABLE, OF_GOAL, WITH_PATHS, RunConfig, with_paths
from wattune.records import Record
from wattune.records.base import Positive
from wattune.revision import check_revision

R = TypeVar("R", bound=Record)

_SAME_IN_VERSION_1 = (
    *("device", "workload", "cap_range", "carbon", "tariff", "seed", "strategy", "reference", "compare"),
    *("algorithm", "server", "model", "data", "target", "battery", "beside", "latency"),
)
"""Arguments that version 1 has by the same names; ``RunConfig`` refuses those that are no more."""

_UNFINISHED = re.compile(r"\..+\.(json|html|checkpoint|safetensors)\.(?!lock$)\w+")


class RunArguments(Record):
    """The arguments of a run, in ``run.json``, with which ``--resume`` continues it.

    ``arguments``: what ``RunConfig.saved`` gives. ``highest_w``: the cap, or the highest of the caps of one that
    changes, as it was when the run began. ``fingerprint``: of all that is trained. ``working_folder``: where a program
    runs, by which the paths in its command are found.
    """

    name = "run"
    written_by = "wattune run"
    version_read = 2

    version: int = 2
    arguments: dict[str, Any] = Field(default_factory=dict)
    highest_w: Positive | None = None
    fingerprint: str | None = None
    working_folder: str | None = None

    def located(self, folder: Path) -> dict[str, Any]:
        """The arguments of a run in this folder, whose own files are found wherever the folder is now."""

        def there(path: Path) -> Path | None:
            return folder / path if os.path.lexists(folder / path) else None

        own = {key: with_paths(self.arguments[key], there) for key in WITH_PATHS if key in self.arguments}
        return self.arguments | own

    @model_validator(mode="before")
    @classmethod
    def _read_version_1(cls, data: Any) -> Any:
        """Version 1 had a field for each argument, in its own unit."""
        if not isinstance(data, dict) or "device" not in data:
            return data
        cap_w, side, goal = data.get("cap_w"), data.get("cap_side", "module"), data.get("goal")
        goal = goal if isinstance(goal, dict) else {"aim": goal}
        arguments = {
            **{key: data.get(key) for key in _SAME_IN_VERSION_1},
            "cap": data.get("caps") or ("none" if cap_w is None else f"{cap_w!r}W@{side}"),
            "margin": data.get("margin_w", 0.0),
            "max_temp": data.get("max_temp_c"),
            "cap_window": data.get("cap_window", PEAK),  # the first ones had no such field
            "seeds": data.get("seeds", 3),
            "name": data.get("device_name"),
            **{key: goal.get(field.name) for key, field in zip(OF_GOAL, fields(Goal), strict=True)},
        }
        return {
            "arguments": {key: value for key, value in arguments.items() if value is not None},
            "highest_w": cap_w,
            "fingerprint": data.get("fingerprint"),
        }


class RunFolder:
    """A run's folder, claimed by ``claim``; records appear in it whole and are replaced in one step."""

    def __init__(self, path: Path):
        self.path = path
        self.arguments_file = path / "run.json"
        self.partial = path / "profile-partial.json"
        self.checkpoint = path / "checkpoint" / "training.safetensors"
        self.proxy_curves = path / "curves" / "proxy"
        self.target_curves = path / "curves" / "target"
        self.weights = path / "model.safetensors"
        self.report = path / "report.html"
        self._held: Held | None = None

    def claim(self, arguments: RunArguments, *, resume: bool) -> None:
        """Make the folder, or with ``resume`` return to it; no other process can have it until ``close``.

        Raises: OutputError if it is not empty, not writable, was made for other arguments, or another process has it;
        RecordError if its algorithm has another revision today.
        """
        self.close()
        if resume and (before := self.arguments) is not None:
            self._compare(before, arguments)
            self._held = Held(self.arguments_file)
            self._sweep()
        elif self._taken():
            raise OutputError(
                "the output folder is not empty",
                value=str(self.path),
                allowed="a new or an empty folder",
                hint="give another one, or --resume if a run was interrupted there",
            )
        else:
            check_writable(self.path)
            self._held = Held(self.arguments_file)
        arguments.save(self.arguments_file)

    def close(self) -> None:
        """Let another process have the folder."""
        if self._held is not None:
            self._held.release()

    @property
    def arguments(self) -> RunArguments | None:
        """The arguments that a run began with here, None if no run did. Raises: RecordError."""
        return RunArguments.load(self.arguments_file) if os.path.isfile(self.arguments_file) else None

    def abandon(self) -> None:
        """Empty a folder in which nothing has been done yet, so that the corrected command can use it."""
        self.close()
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
        old, new = RunConfig.read(before.located(self.path), {"output": self.path}).saved(), now.arguments
        check_revision(old.get("algorithm", "backprop"))
        # Of a workload file the fingerprint tells, wherever the file has moved.
        moved = {"workload"} if isinstance(old.get("workload"), str) and isinstance(new.get("workload"), str) else set()
        for key in RunConfig.model_fields.keys() - set(CHANGEABLE) - moved:
            if old.get(key) != new.get(key):
                raise OutputError(
                    f"cannot resume {self.path} with another {key}",
                    value=new.get(key, "none"),
                    allowed=str(old.get(key, "none")),
                    hint=hint,
                )
        # A folder that is gone has moved, perhaps to the present one.
        if (began := before.working_folder) is not None and began != now.working_folder and os.path.isdir(began):
            raise OutputError(
                f"cannot resume {self.path} from another working folder, where the command may mean other files",
                value=now.working_folder,
                allowed=began,
                hint=f"cd {shlex.quote(began)}",
            )
        if before.fingerprint != now.fingerprint:
            raise OutputError(f"cannot resume {self.path}: model, data or target have changed since", hint=hint)

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
