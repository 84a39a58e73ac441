"""The fleet benchmark in short: a real server process, 50 devices at a time, no device lost."""

from __future__ import annotations

import pytest
from benchmarks.server.fleet import AIM_BYTES, markdown, measure, middle


@pytest.mark.slow
def test_fleet_benchmark_loses_no_device(database_url, tmp_path):
    url = None if database_url.startswith("sqlite") else database_url
    found = measure(tmp_path, url, devices=80, seconds=8.0, together=40, load="whole run")
    assert found["first wrong answers"] == []
    assert set(found["lost"].values()) == {0}
    assert found["json calls"]["n"] == 11 * 80
    assert found["api_resident_peak_bytes"] < AIM_BYTES
    assert not found["api_has_torch"]
    told = markdown(
        {"loads": {"whole run": {"sqlite": middle([found])}}, "machine": {"cores": 2, "cpu": "a made-up one"}}
    )
    assert "| PUT status |" in told
