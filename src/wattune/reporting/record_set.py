"""The records of a report, from a run's folder, from single files or from memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.errors import RecordError
from wattune.records import (
    Comparison,
    Plan,
    ProfileTable,
    Record,
    SampleEfficiency,
    SessionRecord,
    TrainingRecord,
    load_one_of,
)

Source = str | Path | Record

_KINDS: dict[str, type[Record]] = {
    kind.name: kind for kind in (ProfileTable, SampleEfficiency, Plan, TrainingRecord, Comparison, SessionRecord)
}


@dataclass(frozen=True)
class RecordSet:
    """Records of a run, each optional. A ``session`` is a run of its own, beside which there is no other record."""

    profile: ProfileTable | None = None
    efficiency: SampleEfficiency | None = None
    plan: Plan | None = None
    training: TrainingRecord | None = None
    comparison: Comparison | None = None
    session: SessionRecord | None = None

    @property
    def all(self) -> list[Record]:
        """The records that are there."""
        return [record for name in _KINDS if (record := getattr(self, name)) is not None]

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
    found: dict[str, Any] = {}
    for source in sequence:
        for record in _records(source):
            if record.name in found:
                raise RecordError(f"{source} is a second {record.name} record", hint="give one of each kind")
            found[record.name] = record
    records = RecordSet(**found)
    if records.session is not None and records != RecordSet(session=records.session):
        raise RecordError("a session is reported alone", hint="leave out the other records, or the session")
    if records == RecordSet():
        names = ", ".join(f"{name}.json" for name in _KINDS)
        raise RecordError(
            "nothing to report on", value=", ".join(map(str, sequence)), allowed=f"a run's folder with {names}"
        )
    return records


def _records(source: Source) -> Iterator[Record]:
    if not isinstance(source, Record) and (folder := Path(source)).is_dir():
        paths = [folder / f"{name}.json" for name in _KINDS]
        yield from (load_one_of(_KINDS.values(), path) for path in paths if path.exists())
    elif isinstance(source, Record) and source.name not in _KINDS:
        raise RecordError("record type for a report", value=source.name, allowed=", ".join(_KINDS))
    else:
        yield source if isinstance(source, Record) else load_one_of(_KINDS.values(), source)
