"""A board as it is, second by second: power, clock, temperature and throttling. Nothing is set."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from typing_extensions import Self

from wattune.devices import Device, Meter, MeterFigures
from wattune.errors import OutputError, SensorError

ROW_S = 1.0
"""Seconds of the device's time between two rows."""


@dataclass(frozen=True)
class BoardRow:
    """A stretch of time on a board, about a second; None for what the board does not report.

    ``time``: its end, in UTC. ``seconds`` and ``energy_j``: since the beginning. ``power_w`` is the mean of this
    stretch, ``power_peak_w`` its highest reading. ``throttled``: what throttles the clocks, empty if nothing does.
    """

    time: str
    seconds: float
    power_w: float
    power_peak_w: float
    energy_j: float
    clock_mhz: float | None
    temperature_c: float | None
    throttled: str


COLUMNS = tuple(field.name for field in fields(BoardRow))
"""Columns of the CSV file: the fields of a row."""


class BoardWatch:
    """A context in which a device's power is measured, and which has a row for each stretch of time.

    Raises, on entering: SensorError if the device has no power sensor or it does not answer.
    """

    def __init__(self, device: Device):
        self.device = device
        self.rows = 0
        """Number of rows so far."""
        self.throttled_rows = 0
        """Number of rows in which something throttled the clocks."""
        self.temperature_max_c: float | None = None
        self._meter = Meter(device, on_reading=self._read, on_lost=lambda error: None)
        self._peak_w = 0.0
        self._row_s = self._row_j = 0.0

    def __enter__(self) -> Self:
        if not self.device.sensor.rail:
            raise SensorError(f"{self.device.name} has no power sensor")
        self.device.power_w()
        self._meter.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._meter.__exit__(kind, error, trace)

    def row(self) -> BoardRow:
        """The stretch since the last row. Raises: SensorError if the sensor was lost, or gave no reading yet."""
        figures, peak_w, self._peak_w = self.figures(), self._peak_w, 0.0
        seconds, energy_j = figures.time_s - self._row_s, figures.energy_j - self._row_j
        power_w = energy_j / seconds if seconds > 0 else figures.power_mean_w
        self._row_s, self._row_j = figures.time_s, figures.energy_j
        now, clock_mhz = self.device.conditions(), self.device.clock_mhz()
        if now.temperature_c is not None:
            self.temperature_max_c = max(now.temperature_c, self.temperature_max_c or now.temperature_c)
        self.rows += 1
        self.throttled_rows += bool(now.throttled)
        return BoardRow(
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            seconds=round(figures.time_s, 3),
            power_w=round(power_w, 3),
            power_peak_w=round(peak_w or power_w, 3),
            energy_j=round(figures.energy_j, 3),
            clock_mhz=clock_mhz,
            temperature_c=now.temperature_c,
            throttled=", ".join(now.throttled),
        )

    def figures(self) -> MeterFigures:
        """Figures since the beginning. Raises: SensorError if the sensor was lost, or gave no reading yet."""
        if (lost := self._meter.lost) is not None:
            raise SensorError(str(lost)) from lost
        return self._meter.figures()

    def _read(self, time_s: float, power_w: float) -> None:
        self._peak_w = max(self._peak_w, power_w)


@contextmanager
def rows_file(path: Path) -> Iterator[Callable[[BoardRow], None]]:
    """A new CSV file, and a call that adds a row to it at once. Raises: OutputError."""
    with _written(path), path.open("x", buffering=1, newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()

        def write(row: BoardRow) -> None:
            with _written(path):
                writer.writerow(asdict(row))

        yield write


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}", value=error.strerror or str(error)) from error
