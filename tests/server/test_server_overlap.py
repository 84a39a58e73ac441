"""Overlap of the server's sweep and the device's profiling. ``python -m benchmarks overlap`` has the figures."""

from __future__ import annotations

import time

import pytest
from tests.support.server.slow import RealTime
from tests.support.server.story import offer, own_data, running, small

import wattune


class Stop(Exception):
    """Ends a run where both are there."""


def test_real_time_board_equals_virtual_board():
    quick, slow = wattune.open_device("sim:jetson-nano"), RealTime("jetson-nano", seconds=0.1)
    begin_s = time.monotonic()
    for board in (quick, slow):
        board.wait(3.0)
    assert time.monotonic() - begin_s >= 0.25
    assert slow.now_s() == quick.now_s()
    assert slow.power_w() == quick.power_w()


@pytest.mark.slow
def test_profiling_and_sweep_overlap(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    offer(tmp_path / "store", *small())
    seen = {}

    def note(done, total, what):
        seen.setdefault(what.partition(": ")[0] + (" begins" if what.endswith(": begins") else ""), time.time())
        if what == "estimate: done":
            raise Stop

    board = RealTime("jetson-nano", seconds=0.3)
    with running(tmp_path / "store") as server:
        with pytest.raises(Stop):
            wattune.run_with_server(
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
        (job,) = server.get("/v1/jobs")
    profiled_s = seen["estimate begins"] - seen["profile begins"]
    swept_s = job["finished_s"] - job["created_s"]
    shorter_s = min(profiled_s, swept_s)
    assert shorter_s > 1  # or there would be nothing to see
    both_s = min(seen["estimate begins"], job["finished_s"]) - max(seen["profile begins"], job["created_s"])
    assert both_s > 0.8 * shorter_s
