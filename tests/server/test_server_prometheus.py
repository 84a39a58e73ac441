"""The metrics of devices, and the alerts and the dashboard that read them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import Store
from tests.support.server import api as made
from tests.support.server import dashboard as rows

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
NAMES = re.compile(r"\bwattune_\w+")


def metrics(client):
    """Value by name and labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in families
        for one in family.samples
        if one.name.startswith("wattune_")
    }


def test_a_device_has_power_cap_temperature_and_the_time_above(client, store: Store):
    status = rows.status("nano-1", step="train", power_w=5.25, cap_w=5.0, above_cap_s=2.5, temperature_c=61.0)
    rows.put_device(store, status)
    found = metrics(client)
    kind = status.kind
    assert found["wattune_device_power_watts", "nano-1", kind] == 5.25
    assert found["wattune_device_cap_watts", "nano-1", kind, "module"] == 5.0
    assert found["wattune_device_above_cap_seconds", "nano-1", kind] == 2.5
    assert found["wattune_device_temperature_celsius", "nano-1", kind] == 61.0
    assert 0 <= time.time() - found["wattune_device_last_seen_timestamp_seconds", "nano-1", "train"] < 600


def test_silent_and_unmetered_devices_have_only_the_time_of_their_last_report(client, store: Store):
    rows.put_device(store, rows.status("silent", step="train", power_w=5.25), ago_s=600)
    rows.put_device(store, rows.status("unmetered", step="train", power_w=None, cap_w=None))
    found = {name: value for name, value in metrics(client).items() if name[0].startswith("wattune_device_")}
    assert {name[:2] for name in found} == {
        ("wattune_device_last_seen_timestamp_seconds", name) for name in ("silent", "unmetered")
    }
    assert time.time() - found["wattune_device_last_seen_timestamp_seconds", "silent", "train"] > 590


def test_alerts_and_dashboard_read_metrics_that_exist(client, store: Store):
    rows.fill(store)
    rows.put_device(store, rows.status("nano-1", power_w=5.25, cap_w=5.0, above_cap_s=0.0, temperature_c=61.0))
    client.get(made.READ)
    client.get("/healthz")
    known = {name for name, *_ in metrics(client)}
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text(encoding="utf-8"))
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    drawn = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in (*alerts, *drawn):
        used = set(NAMES.findall(expression))
        assert used, expression
        assert used <= known, expression
