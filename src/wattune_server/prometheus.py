"""Prometheus metrics: requests are counted as they finish, the store is read on each scrape."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from wattune_server.store import Database, StoreUnavailable
from wattune_server.store.schema import Base, DeviceRow, JobRow, ProfileRow, TrainingRow

BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

SEEN_S = 60.0
"""A device that reported within this many seconds counts as online."""

DEVICES = 2000
"""Maximum number of devices that have metrics of their own; those that reported last."""

DEVICE_METRICS = {
    "power_w": ("wattune_device_power_watts", "Power reported by the online devices."),
    "cap_w": ("wattune_device_cap_watts", "Cap of the online devices, at the side that the label says."),
    "above_cap_s": (
        "wattune_device_above_cap_seconds",
        "Seconds in which an online device's mean power over the cap's window was above it, in its present run.",
    ),
    "temperature_c": ("wattune_device_temperature_celsius", "Temperature reported by the online devices."),
}
"""Field of a device's status -> name and help of its metric."""


class Metrics:
    """The metrics of one server."""

    def __init__(self, database: Database):
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "wattune_http_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "wattune_http_request_seconds",
            "Time to the end of the response.",
            ("method", "route"),
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        # Each series once, since finding one by its labels takes longer than counting.
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._registry.register(_StoreCollector(database))
        ProcessCollector(registry=self._registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route``: the template of its path, not the path itself, to bound the number of series."""
        key = method, route, status
        if (series := self._series.get(key)) is None:
            series = self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)
            self._series[key] = series
        series[0].inc()
        series[1].observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _StoreCollector:
    """Collector that reads the store on each scrape."""

    def __init__(self, database: Database):
        self._database = database

    def describe(self) -> list[Metric]:
        """Return nothing: the metrics are only known on a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the store once."""
        now_s = time.time()
        up = GaugeMetricFamily("wattune_store_up", "1 if the database responds, else 0.")
        try:
            with self._database.session(reads_only=True) as session:
                families = [*_of_store(session, now_s), *_of_devices(session, now_s)]
        except StoreUnavailable:
            families = []
        up.add_metric([], 1 if families else 0)
        yield up
        yield from families


def _of_store(session: Session, now_s: float) -> Iterator[Metric]:
    def rows(table: type[Base], *conditions: ColumnElement[bool]) -> int:
        return session.scalar(select(func.count()).select_from(table).where(*conditions)) or 0

    jobs = dict(session.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).all())
    oldest_s = session.scalar(select(func.min(JobRow.created_s)).where(JobRow.state == "waiting"))
    oldest_wait_s = 0.0 if oldest_s is None else max(0.0, now_s - oldest_s)
    by_state = GaugeMetricFamily("wattune_jobs", "Jobs.", labels=("state",))
    for state, count in sorted(jobs.items()):
        by_state.add_metric([state], count)
    yield by_state
    online = rows(DeviceRow, DeviceRow.seen_s > now_s - SEEN_S)
    for name, what, value in (
        ("wattune_queue_oldest_seconds", "Age of the oldest waiting job.", oldest_wait_s),
        ("wattune_devices", "Devices that ever reported.", rows(DeviceRow)),
        ("wattune_devices_seen", f"Devices that reported within {SEEN_S:.0f} s.", online),
        ("wattune_profiles", "Profiles stored.", rows(ProfileRow)),
        ("wattune_trainings", "Training records stored.", rows(TrainingRow)),
    ):
        yield GaugeMetricFamily(name, what, value=value)


def _of_devices(session: Session, now_s: float) -> Iterator[Metric]:
    query = select(DeviceRow.seen_s, DeviceRow.status).order_by(DeviceRow.seen_s.desc()).limit(DEVICES)
    reported = session.execute(query).all()
    last_seen = GaugeMetricFamily(
        "wattune_device_last_seen_timestamp_seconds",
        f"When a device last reported, and the step that it was at; of the {DEVICES} devices that did last.",
        labels=("device", "step"),
    )
    for seen_s, status in reported:
        last_seen.add_metric([status["device"], status["step"]], seen_s)
    yield last_seen
    for field, (name, text) in DEVICE_METRICS.items():
        more = ("side",) if field == "cap_w" else ()
        family = GaugeMetricFamily(name, text, labels=("device", "kind", *more))
        for seen_s, status in reported:
            if seen_s > now_s - SEEN_S and status.get(field) is not None:
                side = [status.get("cap_side", "module")] if more else []
                family.add_metric([status["device"], status.get("kind") or "unknown", *side], status[field])
        yield family
