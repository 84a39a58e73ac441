"""A run as counters in a trace of ``torch.profiler``, on one time line with its operators and kernels."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from wattune.errors import OutputError, RecordError
from wattune.files import check_writable, read_json, write_bytes
from wattune.power.run_update import RunUpdate

FIELDS = ("power_w", "energy_j", "clock_mhz", "temperature_c", "cap_w", "batch_size")
"""Fields of an update that become counters."""


class ProfilerTrace:
    """A tracker that adds counters to a trace file at the end of a run.

    The trace is one that ``profiler.export_chrome_trace(path)`` wrote while the session was open; without one, the file
    has the counters alone. Each value begins at the time of the update before its own. On a device with virtual time,
    times are those of this computer.

    Raises: OutputError if the file is not a trace or cannot be written.

    Source: Trace Event Format, Google, 2016 (phase C: counters; times in microseconds, since ``baseTimeNanoseconds`` in
    traces of torch).
    """

    def __init__(self, path: str | Path = "power.trace.json"):
        self._path = Path(path).absolute()
        check_writable(self._path.parent)
        self._trace()
        self._counters: list[tuple[int, str, float]] = []
        self._since_ns = time.time_ns()

    def __call__(self, update: RunUpdate) -> None:
        """Keep the figures of an update; write all of them if it is the last one."""
        values = {field: getattr(update, field) for field in FIELDS}
        label = f"{update.device}, {update.kind}"
        self._counters += [
            (self._since_ns, f"{field} ({label})", float(value)) for field, value in values.items() if value is not None
        ]
        self._since_ns = time.time_ns()
        if update.event == "end":
            trace = self._trace()
            base_ns = int(trace.get("baseTimeNanoseconds", 0))
            trace["traceEvents"] += [
                {"ph": "C", "name": name, "pid": os.getpid(), "ts": (ns - base_ns) / 1e3, "args": {"value": value}}
                for ns, name, value in self._counters
            ]
            write_bytes(self._path, json.dumps(trace).encode())
            self._counters = []

    def _trace(self) -> dict[str, Any]:
        """The trace in the file, or an empty one. Raises: OutputError if the file has something else."""
        if not self._path.exists():
            return {"traceEvents": []}
        try:
            trace = read_json(self._path)
        except RecordError as error:
            raise OutputError("log_to: cannot add to the trace", value=str(error), hint="give trace:FILE") from error
        if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
            raise OutputError("log_to: the file is not a trace", value=str(self._path), hint="give a new trace:FILE")
        return trace
