"""The fleet benchmark in short: a real server process, 50 devices at a time, no device lost."""

from __future__ import annotations

import pytest
from benchmarks.server.clients import CALLS
from benchmarks.server.fleet import bare_route, measure
from benchmarks.server.fleet_tables import AIMS, markdown, verdict


@pytest.mark.slow
def test_fleet_benchmark_loses_no_device(database_url, tmp_path):
    url = None if database_url.startswith("sqlite") else database_url
    found = measure(tmp_path, url, 20, None)
    assert found["first wrong answers"] == []
    assert set(found["lost"].values()) == {0}
    assert found["json calls"]["n"] == (CALLS - 1) * 20
    assert found["api_resident_peak_bytes"] < AIMS["bytes"]
    assert not found["api_has_torch"]
    mix = {**found, "cpu_s_per_call_by_round": [found["api_cpu_s_per_call"]]}
    paced = {**found, "bare route": bare_route(None, 20)}
    parts = {"mix": mix, "paced": paced}
    data = {"databases": {"sqlite": parts}, "machine": {"cores": 2, "cpu": "a made-up one"}}
    assert f"CPU per call, of {CALLS}" in markdown(data)
    assert "none lost anything" in verdict(data)
