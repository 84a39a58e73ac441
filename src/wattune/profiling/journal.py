"""Measurements so far, each appended to a file on disk, so that an interrupted profile resumes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from wattune.cap import SensorLimit
from wattune.devices import Device, MeterFigures
from wattune.files import append_line, json_line, read_lines, set_aside, write_bytes
from wattune.goal import Goal
from wattune.point import BatchShape, OperatingPoint
from wattune.records import AbortedProbe, ProfileCell, ProfileCost, ProfileKey, Record, Value
from wattune.records.base import Flag, Number, Whole

Place = tuple[str | None, OperatingPoint]
"""Name of the reference workload (None: the workload itself), and a point."""

Measured = tuple[ProfileCell | AbortedProbe, ProfileCost]
"""Result of one probe, and its cost on the device, warm-up included."""


class Probe(Protocol):
    """A way to measure a cell: a ``CellProbe`` of a workload, or a ``ProgramProbe``."""

    def measure(self, point: OperatingPoint) -> Measured:
        """Measure one cell. Raises: DeviceError, InputError."""


class JournalEntry(Value):
    """One finished probe: a cell, or a probe that was stopped at the cap.

    Of the file alone: ``rest_w``, see ``Partial``, and ``device_state``, the state of the device after the probe.
    """

    reference: str | None = None
    cell: ProfileCell | None = None
    aborted: AbortedProbe | None = None
    cost: ProfileCost
    rest_w: Number | None = None
    device_state: dict[str, Any] | None = None

    @property
    def result(self) -> ProfileCell | AbortedProbe:
        """The cell or the stopped probe."""
        result = self.cell or self.aborted
        assert result is not None
        return result


class Partial(Record):
    """First line of the file: all that the profile depends on (``ASKED``). A ``JournalEntry`` a line follows.

    ``strict``, ``samples`` and ``goal`` are a guided profile's, ``step_time`` a program's. Files of before have one
    record: ``rest_w`` is what the board drew at rest before the first probe, if that was read, ``notes`` are the
    probes, ``device_state`` that after the last.
    """

    name = "partial-profile"
    written_by = "wattune profile"

    key: ProfileKey
    strategy: str
    cap_w: Number | None = None
    cap_window_s: Number | None = None
    steps: Whole
    rows: tuple[BatchShape, ...]
    host_s_per_sample: Number
    strict: Flag = False
    samples: tuple[tuple[Whole, tuple[Number, Number]], ...] = ()
    goal: Goal | None = None
    step_time: str | None = None
    rest_w: Number | None = None
    notes: tuple[JournalEntry, ...] = ()
    device_state: dict[str, Any] | None = None


ASKED = (
    *("strategy", "cap_w", "cap_window_s", "steps", "rows", "host_s_per_sample"),
    *("strict", "samples", "goal", "step_time"),
)
"""Fields in which two profiles have to agree, beside their key, for the probes of one to serve the other."""


class Journal:
    """Finished probes, in order and by their place.

    The probes in a file that agrees in the fields of ``ASKED`` are taken over, and the device continues from its state
    of then. Any other file is kept beside, with a warning that says in what the two profiles differ. ``rest_w``: see
    ``Partial``.

    Raises: RecordError if the file cannot be read; OutputError if it cannot be kept.
    """

    def __init__(self, path: Path | None, device: Device, begin: Partial):
        self._path = None if path is None else path.absolute()  # code of a user may change the current folder
        self._device = device
        self._begin = begin
        self._notes: list[JournalEntry] = []
        self._latest: dict[Place, JournalEntry] = {}
        self._is_begun = False  # the file, by this process
        self.rest_w: float | None = None
        if path is None or not path.is_file():
            return
        first, *lines = read_lines(path)
        if lines and isinstance(first, dict):
            first["notes"] = lines
        partial = Partial.parse(first, source=str(path))
        if differences := _differences(partial, begin):
            kept = set_aside(path)
            warnings.warn(
                f"the measurements in {path} are of another profile, which differs in {differences}: they are kept in "
                f"{kept}, and this profile is measured from its beginning",
                stacklevel=3,
            )
            return
        self._notes = list(partial.notes)
        self._latest = {(note.reference, note.result.point): note for note in partial.notes}
        saved = partial.notes[-1] if lines else partial
        self.rest_w = saved.rest_w
        if saved.device_state is not None:
            device.load_state_dict(saved.device_state)

    @property
    def notes(self) -> list[JournalEntry]:
        """Everything measured so far, in order."""
        return list(self._notes)

    def is_calm(self, limit: SensorLimit) -> bool:
        """True if every reading of the latest probe was under the cap: the sensor may still show its power."""
        run = (note.result for note in reversed(self._notes) if note.cell is None or not note.cell.out_of_memory)
        latest = next(run, None)
        return latest is not None and is_calm(latest, limit)

    def missing(self, rows: Sequence[BatchShape], reference: str | None = None) -> list[BatchShape]:
        """Those of the shapes that were not measured at all yet."""
        done = {point.shape for name, point in self._latest if name == reference}
        return [shape for shape in rows if shape not in done]

    def look_up(self, reference: str | None, probe: Probe, point: OperatingPoint) -> ProfileCell | AbortedProbe:
        """The result at this point, which is measured and recorded now if there is none yet."""
        if (reference, point) not in self._latest:
            self.measure(reference, probe, point)
        return self._latest[reference, point].result

    def measure(self, reference: str | None, probe: Probe, point: OperatingPoint) -> None:
        """Measure at this point, even if that was done before, and record the result."""
        result, cost = probe.measure(point)
        aborted, cell = (result, None) if isinstance(result, AbortedProbe) else (None, result)
        note = JournalEntry(reference=reference, cell=cell, aborted=aborted, cost=cost)
        self._notes.append(note)
        self._latest[reference, point] = note
        if self._path is not None:
            state = {"rest_w": self.rest_w, "device_state": self._device.state_dict()}
            self._write(self._path, note.model_copy(update=state))

    def _write(self, path: Path, note: JournalEntry) -> None:
        if self._is_begun:
            append_line(path, note.model_dump(mode="json"))
            return
        # Whole, also after a crash: nothing may follow a line that it cut off.
        lines = [self._begin.dump(), *(one.model_dump(mode="json") for one in (*self._notes[:-1], note))]
        write_bytes(path, map(json_line, lines))
        self._is_begun = True


def probe_cost(spent: Sequence[MeterFigures], cap_w: float | None) -> ProfileCost:
    """The cost of one probe, from the figures of its parts."""
    return ProfileCost(
        time_s=sum(figures.time_s for figures in spent),
        energy_j=sum(figures.energy_j for figures in spent),
        above_cap_s=sum(figures.above_cap_s for figures in spent),
        probes=1,
        cap_w=cap_w,
    )


def total_cost(notes: Sequence[JournalEntry]) -> ProfileCost:
    """The cost of all of these probes together; ``cap_w`` is None unless they were all measured under the same one."""
    return ProfileCost(
        time_s=sum(note.cost.time_s for note in notes),
        energy_j=sum(note.cost.energy_j for note in notes),
        above_cap_s=sum(note.cost.above_cap_s for note in notes),
        probes=len(notes),
        cap_w=notes[0].cost.cap_w if len({note.cost.cap_w for note in notes}) == 1 else None,
    )


def _differences(there: Partial, here: Partial) -> str:
    """Name the fields of ``ASKED`` that differ in two files, with their values where they are short."""
    # As JSON: a tuple that was asked for is read back as a list. Rounded: another processor, or another release of
    # NumPy, computes other last digits of what was asked for.
    before, now = _rounded(there.dump()), _rounded(here.dump())
    said = here.key.differences(there.key)
    for name in ASKED:
        if before[name] != now[name]:
            is_short = not isinstance(now[name], (dict, list))
            said.append(f"{name} ({before[name]}, not {now[name]})" if is_short else name)
    return ", ".join(said)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def is_calm(result: ProfileCell | AbortedProbe, limit: SensorLimit) -> bool:
    """True if no reading of this probe was above the cap; its mean may have stayed under it all the same."""
    if isinstance(result, AbortedProbe):
        return False
    return limit.limit_w is None or (result.power_peak_w or 0.0) <= limit.limit_w
