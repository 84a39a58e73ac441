"""The records of a report, from a run's folder, from single files or from memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattune.errors import RecordError
from wattune.files import read_json
from wattune.records import (
    Comparison,
    LearningCurve,
    Plan,
    ProfileTable,
    Record,
    SampleEfficiency,
    SessionRecord,
    TrainingRecord,
)

Source = str | Path | Record

_SINGLE: dict[str, type[Record]] = {
    kind.name: kind for kind in (ProfileTable, SampleEfficiency, Plan, TrainingRecord, Comparison, SessionRecord)
}


@dataclass(frozen=True)
class RecordSet:
    """Records of a run, each optional. ``proxy`` and ``target``: learning curves on the data of either.

    A ``session`` is a run of its own, beside which there is no other record.
    """

    profile: ProfileTable | None = None
    efficiency: SampleEfficiency | None = None
    plan: Plan | None = None
    training: TrainingRecord | None = None
    comparison: Comparison | None = None
    session: SessionRecord | None = None
    proxy: tuple[LearningCurve, ...] = ()
    target: tuple[LearningCurve, ...] = ()

    @property
    def chosen(self) -> Plan | None:
        """The plan, or else the plan of the training record."""
        return self.plan or (self.training.plan if self.training else None)

    def contradictions(self) -> list[str]:
        """One sentence for each sign that these records do not belong together."""
        warnings = []
        for what in ("device", "workload", "algorithm", "cap_w"):
            values = {
                record.name: value
                for record in (self.profile, self.efficiency, self.chosen, self.comparison)
                if record is not None and (value := getattr(record, what, None)) is not None
            }
            # The efficiency record is of the proxy, whose name may differ from the target's.
            if what == "workload":
                values.pop(SampleEfficiency.name, None)
            if len(set(values.values())) > 1:
                parts = ", ".join(f"{value} in the {name} record" for name, value in values.items())
                warnings.append(f"These records do not belong together: their {what.replace('_w', '')} is {parts}.")
        if self.plan and self.training and self.plan.point != self.training.plan.point:
            warnings.append("The training record belongs to another plan: its operating point is not the chosen one.")
        return warnings


def gather(sources: Source | Iterable[Source]) -> RecordSet:
    """Gather records from a run's folder, JSON files (any mixture of kinds) and records in memory.

    Raises: RecordError if a file cannot be read or is not a record, if two are of one kind, or if there is none.
    """
    sequence = [sources] if isinstance(sources, (str, Path, Record)) else list(sources)
    records = RecordSet()
    for source in sequence:
        if isinstance(source, Record):
            records = _with(records, source, str(source.name))
        elif Path(source).is_dir():
            records = _with_folder(records, Path(source))
        else:
            records = _with_file(records, Path(source))
    if records.session is not None and records != RecordSet(session=records.session):
        raise RecordError("a session is reported alone", hint="leave out the other records, or the session")
    if records == RecordSet():
        names = ", ".join(f"{name}.json" for name in _SINGLE)
        raise RecordError(
            "nothing to report on", value=", ".join(map(str, sequence)), allowed=f"a run's folder with {names}"
        )
    return records


def _with_folder(records: RecordSet, folder: Path) -> RecordSet:
    for name in _SINGLE:
        if (path := folder / f"{name}.json").exists():
            records = _with_file(records, path)
    for part in ("proxy", "target"):
        contents = [(path, read_json(path)) for path in sorted((folder / "curves" / part).glob("*.json"))]
        # The folder may have other files besides the curves.
        loaded_curves = [
            LearningCurve.parse(data, source=str(path))
            for path, data in contents
            if isinstance(data, dict) and data.get("record") == LearningCurve.name
        ]
        curves = tuple(sorted(loaded_curves, key=lambda curve: (curve.batch_size, curve.seed)))
        records = replace(records, **{part: getattr(records, part) + curves})
    return records


def _with_file(records: RecordSet, path: Path) -> RecordSet:
    data = read_json(path)
    name = data.get("record") if isinstance(data, dict) else None
    kind = _SINGLE.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"record type of {path}, for a report", value=name, allowed=", ".join(_SINGLE))
    return _with(records, kind.parse(data, source=str(path)), str(path))


def _with(records: RecordSet, record: Record, source: str) -> RecordSet:
    if isinstance(record, LearningCurve):
        return replace(records, target=(*records.target, record))
    if record.name not in _SINGLE:
        raise RecordError(f"record type of {source}, for a report", value=record.name, allowed=", ".join(_SINGLE))
    if getattr(records, record.name) is not None:
        raise RecordError(f"{source} is a second {record.name} record", hint="give one of each kind")
    fields: dict[str, Any] = {record.name: record}
    return replace(records, **fields)
