"""The page of one device: its state, its past runs, and the readings of the newest one."""

from __future__ import annotations

from tests.server.test_server_dashboard_pages import shown, titles
from tests.support import report_records as samples
from tests.support.server import dashboard as made

from wattune.reporting import phrases
from wattune_server.dashboard import views

RECORD = samples.run().training


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
    assert f"/profiles/{ids['profile']}" in {link.partition("?")[0] for link in links}
    assert titles(page) == ["Power during training"]
    assert "/devices/nano-1" in [a["href"] for a in shown(client, "/").all("a")]
    assert "/devices/nano-1" in [a["href"] for a in shown(client, f"/runs/{older}").all("a")]


def test_refresh_of_a_device_reads_no_run(client, store, monkeypatch):
    made.fill(store)
    full = shown(client, "/devices/nano-1")
    live = next(a for a in full.all("div") if a.get("id") == "live")
    monkeypatch.setattr(views, "runs", None)
    part = shown(client, live["data-from"])
    assert "4.87 W" in part.text
    assert not titles(part)


def test_device_without_status_or_without_runs(client, store):
    made.put_training(store, RECORD, "gone")
    assert "no status of this device" in shown(client, "/devices/gone").text
    made.put_device(store, made.status("new"))
    assert "No run of this device has finished yet" in shown(client, "/devices/new").text
    assert client.get("/devices/nobody").status_code == 404


def test_device_page_says_what_it_sums(client, store, monkeypatch):
    monkeypatch.setattr(views, "PAGE_ROWS", 2)
    for index in range(4):
        made.put_training(store, RECORD, "nano-1", ago_s=index)
    assert "those of the newest 2 of 4 runs" in shown(client, "/devices/nano-1").text
