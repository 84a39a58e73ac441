"""The benchmark of a fleet, in short: a real server process, 50 devices at work at a time, none of them lost."""

from __future__ import annotations

import pytest
from benchmarks.server.fleet import AIM_BYTES, markdown, measure, middle


@pytest.mark.slow
def test_none_of_a_fleet_is_lost(database_url, tmp_path):
    url = None if database_url.startswith("sqlite") else database_url
    found = measure(tmp_path, url, devices=80, seconds=8.0, together=40, load="whole run")
    assert found["first wrong answers"] == []
    assert set(found["lost"].values()) == {0}
    assert found["json calls"]["n"] == 11 * 80
    assert found["api_resident_peak_bytes"] < AIM_BYTES
    assert not found["api_has_torch"]
    # How fast it is, the benchmark says: here other tests run on the same cores.
    assert found["json calls"]["p99_s"] < 5.0
    told = markdown(
        {"loads": {"whole run": {"sqlite": middle([found])}}, "machine": {"cores": 2, "cpu": "a made-up one"}}
    )
    assert "| PUT status |" in told
