"""The page of one device: its state, its past runs, and their readings one run after another."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.test_server_dashboard_pages import shown
from tests.support import report_records as samples
from tests.support.server import dashboard as made

from wattune.point import Knobs
from wattune.reporting import phrases
from wattune.server.dashboard import device_page, run_views
from wattune.server.dashboard.device_page import HISTORY_RUNS
from wattune.server.dashboard.run_charts import MOST_POINTS, history_charts

RECORD = samples.run().training


def titles(page):
    return [a["aria-label"].split(":")[0] for a in page.all("svg") if "chart" in a.get("class", "")][::2]


def test_device_page_shows_state_and_past_runs(client, store):
    ids = made.fill(store)
    longer = RECORD.model_copy(update={"time_s": 3600.0, "energy_j": 7200.0})
    older = made.put_training(store, longer, "nano-1", ago_s=9e4)
    page = shown(client, "/devices/nano-1")
    assert "nano-1" in page.text
    assert "4.87 W" in page.text
    assert "batch size 16 at 614.4 MHz" in page.text
    sums = phrases.seconds(3600 + RECORD.time_s), phrases.joules(7200 + RECORD.energy_j)
    above_cap = phrases.seconds(2 * RECORD.above_cap_s)
    assert "runs 2 time {} energy {} above the cap {}".format(*sums, above_cap) in page.text
    links = [a["href"] for a in page.all("a")]
    assert [link.removeprefix("/runs/") for link in links if link.startswith("/runs/")] == [ids["runs"][0], older]
    assert {f"/profiles/{ids['profile']}", "/runs"} <= {link.partition("?")[0] for link in links}
    assert titles(page) == ["Power", "Setting"]
    assert "The newest 2 runs, oldest first" in page.text
    assert "/devices/nano-1" in [a["href"] for a in shown(client, "/").all("a")]
    assert "/devices/nano-1" in [a["href"] for a in shown(client, f"/runs/{older}").all("a")]


def test_refresh_of_a_device_reads_no_run(client, store, monkeypatch):
    made.fill(store)
    full = shown(client, "/devices/nano-1")
    live = next(a for a in full.all("div") if a.get("id") == "live")
    monkeypatch.setattr(run_views, "runs", None)
    part = shown(client, live["data-from"])
    assert "4.87 W" in part.text
    assert not titles(part)


def test_device_without_status_or_without_runs(client, store):
    made.put_training(store, RECORD, "gone")
    assert "no status of this device" in shown(client, "/devices/gone").text
    made.put_device(store, made.status("new"))
    assert "No run of this device has finished yet" in shown(client, "/devices/new").text
    assert client.get("/devices/nobody").status_code == 404


def test_device_page_draws_few_runs_and_says_what_it_sums(client, store, monkeypatch):
    monkeypatch.setattr(device_page, "PAGE_ROWS", HISTORY_RUNS + 1)
    for index in range(HISTORY_RUNS + 3):
        made.put_training(store, RECORD, "nano-1", ago_s=index)
    page = shown(client, "/devices/nano-1")
    assert f"those of the newest {HISTORY_RUNS + 1} of {HISTORY_RUNS + 3} runs" in page.text
    assert f"The newest {HISTORY_RUNS} runs" in page.text


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1500)), min_size=1, max_size=HISTORY_RUNS))
def test_readings_of_runs_follow_each_other(runs):
    records = [
        RECORD.model_copy(update={"time_s": time_s, "trace": (RECORD.trace * 6)[:count]}) for time_s, count in runs
    ]
    charts, _ = history_charts(records)
    power = next((chart for chart in charts if chart.title == "Power"), None)
    if power is None:
        assert not any(count for _, count in runs)
        return
    assert sum(len(line.points) for line in power.lines) <= MOST_POINTS
    lines = iter(power.lines)
    offset_s = 0.0
    for record in records:
        if record.trace:
            line = next(lines)
            readings = {(offset_s + sample.time_s, sample.power_w) for sample in record.trace}
            assert set(line.points) <= readings
            assert max(power_w for _, power_w in line.points) == max(power_w for _, power_w in readings)
        offset_s += record.time_s


@pytest.mark.parametrize("other", [{"power_limit_w": 9.0}, {}], ids=["power limit", "no knob"])
def test_settings_of_another_knob_are_not_in_one_chart(other):
    changed = RECORD.plan.model_copy(update={"clock_mhz": None, **other, "cap_w": 9.0})
    assert RECORD.plan.knobs != Knobs(other)
    charts, notes = history_charts([RECORD.model_copy(update={"plan": changed}), RECORD])
    by_title = {chart.title: chart for chart in charts}
    assert len(by_title["Power"].lines) == 2
    assert len(by_title["Setting"].lines) == 1
    assert by_title["Power"].target is None
    assert re.search("different caps", notes["Power"])
