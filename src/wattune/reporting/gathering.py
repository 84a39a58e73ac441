"""The records that a report is made of, from a run's folder, from single files or from memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattune.errors import RecordError
from wattune.files import read_json
from wattune.records import Comparison, EfficiencyCurve, LearningCurve, Plan, ProfileTable, Record, TrainingRecord

Source = str | Path | Record

_SINGLE: dict[str, type[Record]] = {
    kind.name: kind for kind in (ProfileTable, EfficiencyCurve, Plan, TrainingRecord, Comparison)
}


@dataclass(frozen=True)
class Records:
    """Whichever records there are. ``proxy`` and ``target`` are the learning curves on the data of either."""

    profile: ProfileTable | None = None
    efficiency: EfficiencyCurve | None = None
    plan: Plan | None = None
    training: TrainingRecord | None = None
    comparison: Comparison | None = None
    proxy: tuple[LearningCurve, ...] = ()
    target: tuple[LearningCurve, ...] = ()

    @property
    def chosen(self) -> Plan | None:
        """The plan, or the one that the training was made with."""
        return self.plan or (self.training.plan if self.training else None)

    def contradictions(self) -> list[str]:
        """One sentence for everything that shows that these records do not belong together."""
        found = []
        for what in ("device", "workload", "algorithm", "cap_w"):
            said = {
                record.name: value
                for record in (self.profile, self.efficiency, self.chosen, self.comparison)
                if record is not None and (value := getattr(record, what, None)) is not None
            }
            # The curve is of the proxy, whose name may differ from the target's.
            if what == "workload":
                said.pop(EfficiencyCurve.name, None)
            if len(set(said.values())) > 1:
                parts = ", ".join(f"{value} in the {name} record" for name, value in said.items())
                found.append(f"These records do not belong together: their {what.replace('_w', '')} is {parts}.")
        if self.plan and self.training and self.plan.point != self.training.plan.point:
            found.append("The training was made with another plan than the one shown: its point is not the chosen one.")
        return found


def gather(sources: Source | Iterable[Source]) -> Records:
    """The records of a run's folder, of JSON files (any mixture of kinds) and of records in memory.

    Raises: RecordError where a file cannot be read or is no record, where two are of one kind, and where there is none.
    """
    given = [sources] if isinstance(sources, (str, Path, Record)) else list(sources)
    records = Records()
    for source in given:
        if isinstance(source, Record):
            records = _with(records, source, str(source.name))
        elif Path(source).is_dir():
            records = _with_folder(records, Path(source))
        else:
            records = _with_file(records, Path(source))
    if records == Records():
        names = ", ".join(f"{name}.json" for name in _SINGLE)
        raise RecordError(
            "nothing to report on", value=", ".join(map(str, given)), allowed=f"a run's folder with {names}"
        )
    return records


def _with_folder(records: Records, folder: Path) -> Records:
    for name in _SINGLE:
        if (path := folder / f"{name}.json").exists():
            records = _with_file(records, path)
    for part in ("proxy", "target"):
        found = [(path, read_json(path)) for path in sorted((folder / "curves" / part).glob("*.json"))]
        # Whoever trains may keep other things beside the curves.
        parsed = [
            LearningCurve.parse(data, source=str(path))
            for path, data in found
            if isinstance(data, dict) and data.get("record") == LearningCurve.name
        ]
        curves = tuple(sorted(parsed, key=lambda curve: (curve.batch_size, curve.seed)))
        records = replace(records, **{part: getattr(records, part) + curves})
    return records


def _with_file(records: Records, path: Path) -> Records:
    data = read_json(path)
    name = data.get("record") if isinstance(data, dict) else None
    kind = _SINGLE.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"{path} is no record that a report shows", value=name, allowed=", ".join(_SINGLE))
    return _with(records, kind.parse(data, source=str(path)), str(path))


def _with(records: Records, record: Record, source: str) -> Records:
    if isinstance(record, LearningCurve):
        return replace(records, target=(*records.target, record))
    if record.name not in _SINGLE:
        raise RecordError(f"{source} is no record that a report shows", value=record.name, allowed=", ".join(_SINGLE))
    if getattr(records, record.name) is not None:
        raise RecordError(f"{source} is a second {record.name} record", hint="give one of each kind")
    fields: dict[str, Any] = {record.name: record}
    return replace(records, **fields)
