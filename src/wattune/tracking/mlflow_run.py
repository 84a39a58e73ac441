"""A run in MLflow, with names like those of its own system metrics."""

from __future__ import annotations

import time

import mlflow
from mlflow.entities import Metric, RunTag

from wattune.power.run_update import RunUpdate
from wattune.tracking.trackers import values_of

NAMES = {
    "power_w": "power_usage_watts",
    "energy_j": "energy_joules",
    "clock_mhz": "clock_megahertz",
    "temperature_c": "temperature_celsius",
    "cap_w": "power_limit_watts",
}
"""Field of an update -> the end of a metric's name, behind "system/gpu_0_". The first is MLflow's own; it has none for
the others, which are named in its manner.

Source: mlflow.org/docs/latest/system-metrics.
"""


class MlflowRun:
    """A tracker that logs to the user's active MLflow run, else to a run of its own in the present experiment."""

    def __init__(self) -> None:
        self._client: mlflow.MlflowClient | None = None
        self._run_id = ""
        self._is_own = self._has_tags = False

    def __call__(self, update: RunUpdate) -> None:
        """Log an update."""
        if self._client is None:
            run = mlflow.active_run()
            self._is_own = run is None
            self._client, self._run_id = mlflow.MlflowClient(), (run or mlflow.start_run()).info.run_id
        tags = []
        if not self._has_tags:
            tags = [RunTag("wattune.device", update.device), RunTag("wattune.kind", update.kind)]
            self._has_tags = True
        where = "system/gpu_0_" if update.processor == "gpu" else "system/cpu_"
        values = values_of(update, {field: where + name for field, name in NAMES.items()})
        now_ms = int(1e3 * time.time())
        metrics = [Metric(name, value, now_ms, update.steps) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)
        if update.event == "end":
            if self._is_own:
                mlflow.end_run("FINISHED" if update.reason == "finished" else _failed(update.reason))
            self._client = None
            self._is_own = self._has_tags = False


def _failed(reason: str) -> str:
    return "KILLED" if reason.startswith("interrupted") else "FAILED"
