"""Overlap of the server's sweep and the device's profiling. ``python -m benchmarks overlap`` has the figures."""

from __future__ import annotations

import time

import pytest
from tests.support.server.serving import serving
from tests.support.server.slow import RealTime
from tests.support.server.story import offer, own_data, small

import wattune


class Stop(Exception):
    """Ends a run when both are complete."""


@pytest.mark.slow
def test_profiling_and_sweep_overlap(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    offer(tmp_path / "store", *small())
    seen = {}

    def note(done, total, what):
        seen.setdefault(what.partition(": ")[0] + (" begins" if what.endswith(": started") else ""), time.time())
        if what == "estimate: done":
            raise Stop

    board = RealTime("jetson-nano", seconds=0.3)
    with serving(tmp_path / "store") as server:
        with pytest.raises(Stop):
            wattune.run(
                board,
                server=server.url,
                model="small-digits",
                data=own_data(tmp_path / "my.npz"),
                cap_w=4.2,
                device_name="nano",
                reference=False,
                output=tmp_path / "run",
                progress=note,
            )
        (job,) = server.json("/v1/jobs")
    assert job["created_s"] < seen["profile"], "the sweep was requested after the first probe"
    assert seen["profile begins"] < job["finished_s"], "profiling began after the sweep"
