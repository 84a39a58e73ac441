"""Metrics for Prometheus: of requests as they are answered, of the store when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from wattune.server.store import Database, StoreUnavailable, figures

BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self, database: Database):
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "wattune_http_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "wattune_http_request_seconds",
            "Time to the end of the answer.",
            ("method", "route"),
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(_Store(database))
        ProcessCollector(registry=self._registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route``: the template of its path, never what a client put into it."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Store:
    """What the store says at the moment."""

    def __init__(self, database: Database):
        self._database = database

    def describe(self) -> list[Metric]:
        """Nothing: the names are known when somebody asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the store once."""
        up = GaugeMetricFamily("wattune_store_up", "Whether the database answers.")
        try:
            with self._database.session(reads_only=True) as session:
                found = figures.read(session, time.time())
        except StoreUnavailable:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield _by("wattune_units", "Units of work of all jobs.", "state", found.units)
        yield _by("wattune_jobs", "Jobs.", "state", found.jobs)
        yield _one("wattune_workers_busy", "Workers that hold a unit.", found.workers_busy)
        yield _one("wattune_queue_oldest_seconds", "How long the oldest unit has waited.", found.oldest_waiting_s)
        yield _one("wattune_devices", "Devices known.", found.devices)
        yield _one("wattune_devices_seen", f"Devices heard of in {figures.SEEN_S:.0f} s.", len(found.power_w))
        watts = GaugeMetricFamily(
            "wattune_device_power_watts", "What the devices heard of say that they draw.", labels=("device", "kind")
        )
        for (device, kind), power_w in found.power_w.items():
            if power_w is not None:
                watts.add_metric([device, kind], power_w)
        yield watts
        yield _one("wattune_profiles", "Profiles kept.", found.profiles)
        yield _one("wattune_trainings", "Training records kept.", found.trainings)


def _one(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _by(name: str, what: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=(label,))
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
