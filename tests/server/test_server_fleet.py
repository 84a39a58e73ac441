"""The fleet benchmark in short: a real server process, 50 devices at a time, no device lost."""

from __future__ import annotations

import pytest
from benchmarks.server.clients import CALLS
from benchmarks.server.fleet import least, measure
from benchmarks.server.fleet_tables import AIMS, KINDS, markdown, verdict


@pytest.mark.slow
def test_fleet_benchmark_loses_no_device(database_url, tmp_path):
    url = None if database_url.startswith("sqlite") else database_url
    found = measure(tmp_path, url, kind="mix", devices=20, together=10)
    assert found["first wrong answers"] == []
    assert set(found["lost"].values()) == {0}
    assert found["json calls"]["n"] == (CALLS - 1) * 20
    assert found["api_resident_peak_bytes"] < AIMS["bytes"]
    assert not found["api_has_torch"]
    parts = {**dict.fromkeys(KINDS, least([found])), "paced": [found], "at_once": found, "fleet": found}
    data = {"databases": {"sqlite": parts}, "before": {}, "machine": {"cores": 2, "cpu": "a made-up one"}}
    assert "| PUT status |" in markdown(data)
    assert "none lost anything" in verdict(data)


@pytest.mark.slow
def test_devices_that_begin_at_different_times_count_while_all_are_there(tmp_path):
    found = measure(tmp_path, None, kind="mix", devices=4, together=2, rate_per_s=200, at_once=False)
    assert found["first wrong answers"] == []
    assert set(found["lost"].values()) == {0}
    assert 0 < found["json calls"]["n"] < (CALLS - 1) * 4
