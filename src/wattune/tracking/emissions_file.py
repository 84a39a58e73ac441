"""A run in a CSV file with the columns of CodeCarbon's ``emissions.csv``, and the operating point behind them."""

from __future__ import annotations

import csv
import os
import platform
import uuid
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from wattune.errors import OutputError
from wattune.files import check_writable
from wattune.power.run_update import RunUpdate

CODECARBON = (
    "timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions", "emissions_rate", "cpu_power",
    "gpu_power", "ram_power", "cpu_energy", "gpu_energy", "ram_energy", "energy_consumed", "water_consumed",
    "country_name", "country_iso_code", "region", "cloud_provider", "cloud_region", "os", "python_version",
    "codecarbon_version", "cpu_count", "cpu_model", "gpu_count", "gpu_model", "longitude", "latitude",
    "ram_total_size", "tracking_mode", "cpu_utilization_percent", "gpu_utilization_percent",
    "ram_utilization_percent", "ram_used_gb", "on_cloud", "pue", "wue",
)  # fmt: skip
"""CodeCarbon's columns in their order. Durations are in s, power in W, energy in kWh.

Source: codecarbon 3.3, output_methods/emissions_data.py.
"""

OWN = ("device", "kind", "steps", "samples", "batch_size", "micro_batch_size", "clock_mhz", "temperature_c", "cap_w")
"""Our columns behind them; ``kind`` says if the figures are measured, simulated or replayed."""

J_PER_KWH = 3.6e6


class EmissionsFile:
    """A tracker that adds a row for each stretch of a run, about a second, to a file.

    Durations and energies are those of the stretch, so that their sums are those of the run. What wattune does not know
    (emissions, the country, ...) is empty. Raises: OutputError if the file has other columns or cannot be written.
    """

    def __init__(self, path: str | Path = "emissions.csv"):
        self._path = Path(path)
        if self._path.is_dir():
            raise OutputError("log_to: a folder has the name of the file", value=str(self._path), hint="give csv:FILE")
        check_writable(self._path.parent)
        self._has_columns()
        self._file: IO[str] | None = None
        self._rows: Any = None
        self._run_id = ""
        self._before_s = self._before_j = 0.0

    def __call__(self, update: RunUpdate) -> None:
        """Write a row, if time has passed since the last one."""
        if self._file is None:
            self._open(update)
        seconds, energy_j = update.time_s - self._before_s, update.energy_j - self._before_j
        if seconds > 0:
            self._before_s, self._before_j = update.time_s, update.energy_j
            self._rows.writerow(self._row(update, seconds, energy_j))
        if update.event == "end" and self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, update: RunUpdate) -> None:
        # The time and energy before a run was resumed are in the rows of then.
        self._before_s, self._before_j = (update.time_s, update.energy_j) if update.steps else (0.0, 0.0)
        self._run_id = str(uuid.uuid4())
        has_columns = self._has_columns()
        self._file = self._path.open("a", buffering=1, newline="", encoding="utf-8")
        self._rows = csv.DictWriter(self._file, CODECARBON + OWN, restval="", lineterminator="\n")
        if not has_columns:
            self._rows.writeheader()

    def _has_columns(self) -> bool:
        """True if the file exists, with our columns. Raises: OutputError if it has others."""
        try:
            with self._path.open(newline="", encoding="utf-8") as file:
                first = next(csv.reader(file), None)
        except FileNotFoundError:
            return False
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise OutputError(f"cannot read {self._path}", value=str(error), hint="give csv:FILE") from error
        if first is not None and tuple(first) != CODECARBON + OWN:
            raise OutputError(
                "log_to: the file has other columns", value=str(self._path), hint="give the path of a new csv:FILE"
            )
        return first is not None

    def _row(self, update: RunUpdate, seconds: float, energy_j: float) -> dict[str, Any]:
        return {
            "timestamp": datetime.now().isoformat(timespec="seconds"),
            "project_name": "wattune",
            "run_id": self._run_id,
            "duration": seconds,
            f"{update.processor}_power": energy_j / seconds,
            f"{update.processor}_energy": energy_j / J_PER_KWH,
            "energy_consumed": energy_j / J_PER_KWH,
            "os": platform.platform(),
            "python_version": platform.python_version(),
            "cpu_count": os.cpu_count(),
            f"{update.processor}_model": update.device,
            "tracking_mode": "machine",
            **{name: getattr(update, name) for name in OWN if name != "micro_batch_size"},
            "micro_batch_size": update.point.micro_batch_size,
        }
