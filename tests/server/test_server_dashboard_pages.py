"""Pages as HTML, on both databases: content, access, and escaping of foreign text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from sqlalchemy import event
from tests.support import report_records as samples
from tests.support.server import dashboard as made

from wattune.cap import PowerCap
from wattune.planning import plan
from wattune.reporting import phrases
from wattune.workloads.metrics import METRICS
from wattune_server.dashboard import views
from wattune_server.jobs import queue
from wattune_server.store.schema import JobRow

PAGES = (
    "/",
    "/devices/{device}",
    "/jobs",
    "/jobs/{done}",
    "/jobs/{open}",
    "/profiles",
    "/profiles/{profile}",
    "/runs",
    "/runs/{runs[0]}",
    "/models",
)


class Markup(HTMLParser):
    """What a browser would make of a page: its elements, and the text outside of scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self._within = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._within.append(tag)

    def handle_endtag(self, tag):
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" not in self._within:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attrs for found, attrs in self.elements if found == tag]


def shown(client, path, **options):
    answer = client.get(path, headers={"Accept": "text/html"}, **options)
    assert answer.status_code == 200, answer.text
    return Markup(answer.text)


def titles(page):
    """The titles of the figures."""
    return [a["aria-label"] for a in page.all("div") if a.get("role") == "img"]


def curves(page):
    """The number of learning curves, each drawn for a wide and a narrow screen."""
    return len([a for a in page.all("path") if a.get("stroke", "").startswith("var(--batch-")]) / 2


@pytest.mark.parametrize("path", PAGES)
def test_empty_store_renders_pages(client, path):
    if "{" in path:
        answer = client.get(path.split("{")[0] + "0" * 32)
        assert answer.status_code == 404
        assert "No such" in answer.text
    else:
        shown(client, path)


def test_pages_show_the_store(client, store):
    ids = made.fill(store)
    devices = shown(client, "/").text
    assert "3 of 5" in devices
    assert "14.68 W" in devices  # 4.87 + 2.10 + 7.71: neither the device that is away nor the one that is done
    assert "7.71 W above the cap" in devices
    assert "orin-1 simulated offline" in devices
    assert "tx2nx-1 measured" in devices
    assert "batch size 16 at 614.4 MHz" in devices

    jobs = shown(client, "/jobs").text
    assert "18 of 18" in jobs
    assert "8 of 18" in jobs

    done = shown(client, f"/jobs/{ids['done']}")
    assert "0.423 to 0.526" in done.text  # the band at batch size 32
    assert curves(done) == 18
    assert not [a for a in done.all("form") if "cancel" in a["action"]]

    under_way = shown(client, f"/jobs/{ids['open']}")
    assert "available when all runs are done" in under_way.text
    assert curves(under_way) == 8
    assert [a for a in under_way.all("form") if a["action"].endswith("/cancel")]

    runs = shown(client, "/runs").text
    assert "28.4 s" in runs
    assert "921.6 MHz" in runs
    assert "resnet8-digits" in shown(client, "/models").text
    assert "Jetson Nano 4 GB" in shown(client, "/profiles").text


def test_tiles_count_all_devices(client, store, monkeypatch):
    monkeypatch.setattr(views, "PAGE_ROWS", 3)
    for index in range(7):
        made.put_device(store, made.status(f"nano-{index}", power_w=2.0))
    made.put_device(store, made.status("unmetered", power_w=None))
    made.put_device(store, made.status("silent"), ago_s=60)
    for step in ("done", "failed"):
        made.put_device(store, made.status(step, step=step))
    for path in ("/", "/?find=unmetered"):
        text = shown(client, path).text
        assert "active 8 of 11" in text
        assert "power now 14.00 W" in text
    assert "Showing 3 of 11 devices" in shown(client, "/").text


@pytest.fixture
def fleet(client, store):
    """Seven devices in all states."""
    made.put_device(store, made.status("failed-1", step="failed", says="stopped for safety"))
    made.put_device(store, made.status("silent-1"), ago_s=95)
    made.put_device(store, made.status("over-1", cap_w=5.0, power_w=5.5, temperature_c=71.0))
    made.put_device(store, made.status("well-1", cap_w=9.0, power_w=3.0, temperature_c=40.0, throttled=("gpu-alert",)))
    made.put_device(store, made.status("well-2", cap_w=7.0, power_w=None))
    for name in ("done-1", "done-2"):
        made.put_device(store, made.status(name, step="done"), ago_s=700)
    return client


def rows_of(page):
    return [a["id"].removeprefix("device-") for a in page.all("tr") if a.get("id", "").startswith("device-")]


def test_many_devices_are_a_table_grouped_by_state(fleet):
    page = shown(fleet, "/")
    assert rows_of(page) == ["failed-1", "silent-1", "over-1", "well-1", "well-2", "done-1", "done-2"]
    for text in ("failed (1)", "offline (1)", "working (3)", "done (2)", "5.50 W 5 W 71 °C just now"):
        assert text in page.text
    assert not [a for a in page.all("li") if "device" in a.get("class", "").split()], "cards are for a few devices"


def test_devices_that_need_a_look_are_on_top(fleet):
    page = shown(fleet, "/").text
    top = page.partition("power now")[0]
    assert "4 devices need a look" in top
    for text in (
        "failed-1 : failed: stopped for safety",
        "silent-1 : no report for 95 s",
        "over-1 : 5.50 W, above its cap of 5 W",
        "well-1 : throttled by gpu-alert",
    ):
        assert text in top


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("state=working&sort=power_w&order=desc", ["over-1", "well-1", "well-2"]),
        ("state=working&sort=cap_w", ["over-1", "well-2", "well-1"]),
        ("state=working&sort=temperature_c", ["well-1", "over-1", "well-2"]),
        ("state=offline", ["silent-1"]),
        ("state=failed", ["failed-1"]),
        ("state=done&order=desc", ["done-2", "done-1"]),
        ("find=WELL&sort=silent_s", ["well-1", "well-2"]),
        ("find=_", []),
    ],
)
def test_devices_are_sorted_and_filtered(fleet, query, names):
    page = shown(fleet, f"/?{query}")
    assert sorted(rows_of(page)) == sorted(names) if "silent_s" in query else rows_of(page) == names
    heads = [a["href"] for a in page.all("a") if "sort=" in a["href"]]
    assert len(heads) == 6 * bool(names)
    for wrong in ("sort=x", "state=x"):
        assert fleet.get(f"/?{wrong}").status_code == 422


def test_overflowing_total_power_is_blank(client, store):
    for name in ("one", "two"):
        made.put_device(store, made.status(name, power_w=1.7e308))
    assert "active 2 of 2 power now - of all active devices" in shown(client, "/").text


def test_higher_is_better_matches_the_metrics():
    assert set(views.HIGHER_IS_BETTER) == {name for name, metric in METRICS.items() if metric.direction == "max"}


@pytest.mark.parametrize(
    ("said", "name", "width"),
    [
        ({"metric_name": "accuracy", "metric": 0.475, "target": 0.95}, "accuracy", "47.5"),
        ({"metric_name": "character_accuracy", "metric": 0.99, "target": 0.5}, "character accuracy", "100.0"),
        ({"metric_name": "mse", "metric": 0.4, "target": 0.1}, "mse", None),  # four times too high is no progress
        ({"metric_name": "accuracy", "metric": None}, "accuracy", None),
        ({"metric": 0.475, "target": 0.95}, "metric", None),
    ],
)
def test_metric_bar_only_if_higher_is_better(client, store, said, name, width):
    made.put_device(store, made.status("nano-1", cap_w=None, **said))  # without a cap the power has no bar
    page = shown(client, "/")
    assert f"{name}, target {said.get('target', 0.95)}" in page.text
    assert [a["width"] for a in page.all("rect") if a.get("class") == "fill"] == ([] if width is None else [width])


def test_failed_device_shows_its_error(client, store):
    made.put_device(store, made.status("nano-1", step="failed", says="stopped for safety"))
    made.put_device(store, made.status("nano-2", step="done", says="late"))
    page = shown(client, "/")
    assert "nano-1 simulated failed Jetson" in page.text
    cards = [(a["data-announce"], "failed" in a["class"]) for a in page.all("li") if "device" in a.get("class", "")]
    assert cards == [("nano-1: failed, stopped for safety", True), ("nano-2: done", False)]


def test_curve_serves_equivalent_algorithms(client, store):
    made.fill(store)  # its finished job is of backprop
    for algorithm, fits in (("backprop:checkpoint=4", True), ("forward-gradient", False)):
        key = made.put_profile(store, samples.profile().model_copy(update={"algorithm": algorithm}))
        page = shown(client, f"/profiles/{key}?cap=5.2")
        assert ("no batch size can be chosen" in page.text) is not fits


def test_lost_file_removes_one_line_of_the_chart(client, store):
    ids = made.fill(store)
    with store.database.session(reads_only=True) as session:
        lost = next(run.curve for run in queue.status(session, ids["done"]).runs if run.curve)
    store.files.path(lost).write_bytes(b"damaged")
    page = shown(client, f"/jobs/{ids['done']}")
    assert "1 learning curve cannot be read" in page.text
    assert curves(page) == 17


def test_runs_are_listed_newest_first(client, store, monkeypatch):
    made.fill(store)
    newest = re.findall(r"(nano-1|nano-3|tx2nx-1) resnet8", shown(client, "/runs").text)
    assert newest == ["nano-1", "tx2nx-1", "nano-3"]
    monkeypatch.setattr(views, "PAGE_ROWS", 2)
    assert "newest 2 of 3 runs." in shown(client, "/runs").text


@pytest.mark.parametrize(("cap", "cap_w"), [("3.4", 3.4), ("4.5W", 4.5), ("5200mW", 5.2), ("9", 9.0), ("", None)])
def test_profile_page_shows_the_plan_under_the_cap(client, store, cap, cap_w):
    ids = made.fill(store)
    page = shown(client, f"/profiles/{ids['profile']}?cap={cap}")
    picked = plan(ids["table"], samples.efficiency(), cap=PowerCap(cap_w))
    assert f"chosen batch size {picked.batch_size} at {picked.clock_mhz:g} MHz" in page.text
    assert f"highest power {phrases.watts(picked.predicted_window_w)}" in page.text
    framed = [a for a in page.all("path") if (a.get("stroke"), a.get("stroke-width")) == ("var(--accent)", "3.5")]
    assert len(framed) == 2 * 2  # in each of the two maps, for both widths


def test_records_of_another_revision_are_said_and_not_planned_with(client, store):
    ids = made.fill(store)
    older = {"algorithm": "async-fgd"}  # without a revision it is the first one
    said = re.compile(r"revision 1 of the training algorithm: async-fgd[^;]*; allowed: revision 2")
    with store.database.session() as session:
        job = session.get(JobRow, ids["done"])
        job.curve = {**job.curve, **older}
    profile = made.put_profile(store, ids["table"].model_copy(update=older))
    record = samples.run().training
    run = made.put_training(store, record.model_copy(update={"plan": record.plan.model_copy(update=older)}), "nano-1")
    for path in (f"/profiles/{profile}?cap=4.5", f"/jobs/{ids['done']}", f"/runs/{run}"):
        page = shown(client, path)
        assert said.search(page.text), path
        assert "chosen batch size" not in page.text, path


def test_infeasible_and_invalid_caps_are_explained(client, store):
    ids = made.fill(store)
    page = shown(client, f"/profiles/{ids['profile']}?cap=1")
    assert "no measured point stays under the cap" in page.text
    assert "chosen" not in page.text
    for text in ("nan", "-1", "inf", "1e999", "0", "4,5", "5 volts"):
        assert client.get(f"/profiles/{ids['profile']}?cap={text}").status_code == 422


def test_run_page_shows_its_record(client, store):
    record = samples.run().training
    hot = record.guard[0].model_copy(update={"temperature_c": 71.0})
    changes = {"guard": (hot, *record.guard[1:]), "max_temp_c": 80.0, "temperature_max_c": 73.4}
    record = record.model_copy(update=changes)
    answer = client.post("/v1/trainings?device=nano-1&model=resnet8-digits", json=record.dump())
    run = answer.json()["id"]
    page = shown(client, f"/runs/{run}")
    assert "resnet8-digits on nano-1" in page.text
    assert f"{record.plan.point}" in page.text
    assert "highest temperature 73 °C limit: 80 °C" in page.text
    assert titles(page) == ["Power during training", "Metric during training"]
    assert re.search(r"10.1 s down 6.12 W 844.8 MHz 22 s up 4.84 W 921.6 MHz", page.text), page.text
    assert f"/v1/trainings/{run}" in [attrs["href"] for attrs in page.all("a")]
    assert f"/runs/{run}" in [attrs["href"] for attrs in shown(client, "/runs").all("a")]
    bare = record.model_copy(update={"guard": (), "trace": (), "evaluations": (), "samples": 1})
    run = client.post("/v1/trainings?device=nano-1", json=bare.dump()).json()["id"]
    page = shown(client, f"/runs/{run}")
    assert "The limiter changed nothing." in page.text
    assert not titles(page)
    assert client.get(f"/runs/{'0' * 32}").status_code == 404


def test_profile_without_measurements_renders(client, store):
    table = samples.profile(strategy="staircase")
    for cells in ((), tuple(cell for cell in table.cells if cell.out_of_memory)):
        key = made.put_profile(store, table.model_copy(update={"cells": cells}))
        page = shown(client, f"/profiles/{key}?cap=5")
        assert "no measured cells" in page.text
        assert not page.all("input")


def test_job_is_cancelled_and_restarted_on_its_page(client, store):
    ids = made.fill(store)
    path = f"/jobs/{ids['open']}"
    done = client.post(f"{path}/cancel", follow_redirects=False)
    assert (done.status_code, done.headers["location"]) == (303, path)
    assert client.post(f"{path}/cancel").status_code == 409
    assert client.post(f"{path}/retry", follow_redirects=False).status_code == 303
    assert "8 of at most 18 runs done" in shown(client, path).text


def handed_in(client, status, table, record):
    """A device's status, profile and record, by the API as a device would; gives the paths of their pages."""
    assert client.put(f"/v1/devices/{status['device']}", json=status).status_code == 204
    profile = client.post("/v1/profiles?device=evil", json=table)
    assert profile.status_code == 201, profile.text
    run = client.post("/v1/trainings?device=evil", json=record)
    assert run.status_code == 201, run.text
    run_id = run.json()["id"]
    return [
        *(
            "/",
            "/devices/evil",
            "/profiles",
            f"/profiles/{profile.json()['id']}",
            f"/profiles/{profile.json()['id']}?cap=5",
        ),
        *("/runs", f"/runs/{run_id}"),
    ]


@pytest.mark.slow
def test_foreign_text_is_escaped(client, store):
    ids = made.fill(store)
    bad = made.HOSTILE
    with store.database.session() as session:  # what no request can set
        job = session.get(JobRow, ids["open"])
        job.reason = bad
    table = samples.profile().model_copy(update={"device": bad, "workload": bad, "notes": (bad,)})
    record = made.slower(samples.run().training, 2.0).model_copy(update={"metric": bad})
    record = record.model_copy(update={"plan": record.plan.model_copy(update={"device": bad, "workload": bad})})
    status = made.status("evil", board=bad, says=bad).model_dump(mode="json")
    paths = handed_in(client, status, table.dump(), record.dump())
    seen = 0
    for path in [*paths, "/jobs", f"/jobs/{ids['open']}"]:
        page = shown(client, path)
        assert not page.all("img"), path
        assert {a.get("src", "").split("/")[1] for a in page.all("script") if "src" in a} == {"static"}, path
        assert {a.get("type") for a in page.all("script") if "src" not in a} <= {"application/json"}, path
        assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")], path
        seen += "<script>alert('x')</script>" in page.text
    assert seen >= 7  # a list of runs shows neither board nor metric


@pytest.mark.slow
@pytest.mark.parametrize("number", [1e300, 1.7e308, 1e-300, 5e-324])
def test_extreme_numbers_do_not_break_a_page(client, store, number):
    made.fill(store)
    status = made.status("evil", power_w=number, metric=-number, target=number, cap_w=number).model_dump(mode="json")
    table = samples.profile().dump()
    table["cells"][0].update(power_peak_w=number, power_mean_w=number)
    table["cells"][9].update(step_s=number)
    record = samples.run().training.dump()
    record.update(time_s=number, energy_j=number, target=number)
    record["evaluations"][0].update(metric=number, time_s=number)
    record["evaluations"][1].update(metric=-number)
    for path in handed_in(client, status, table, record):
        shown(client, path)


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PAGES, "/login"])
def test_page_sends_and_follows_its_policy(client, store, path):
    ids = made.fill(store)
    answer = client.get(path.format(**ids))
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    page = Markup(answer.text)
    assert not [attrs for _, attrs in page.elements if "style" in attrs]
    assert not page.all("style")
    addresses = [attrs[name] for _, attrs in page.elements for name in ("href", "src", "action") if name in attrs]
    ours = [a for a in addresses if a.startswith(("/", "#", "data:image/svg+xml,")) and not a.startswith("//")]
    assert ours == addresses
    links = {attrs[name] for _, attrs in page.elements for name in ("href", "src") if name in attrs}
    for link in links:
        assert not link.startswith("/") or client.get(link).status_code == 200, link


@pytest.mark.parametrize(
    "place", ["//elsewhere.example", "https://elsewhere.example/", "/\\elsewhere.example", "jobs", "//["]
)
def test_sign_in_redirects_only_locally(client, place):
    answer = client.get("/login", params={"next": place}, follow_redirects=False)
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize("path", ["/?find=%00", "/jobs/%00", "/profiles/a%00"])
def test_nul_is_rejected_before_the_database(client, path):
    assert client.get(path).status_code == 422


def test_oversized_profile_is_not_drawn(client, store):
    cells = [
        {"batch_size": n, "clock_mhz": n, "step_s": 1.0, "power_mean_w": 1.0, "power_peak_w": 1.0 + n, "steps": 5}
        for n in range(1, 101)
    ]
    sent = {"record": "profile", "device": "d", "workload": "w", "cells": cells}
    answer = client.post("/v1/profiles?device=d", json=sent)
    assert answer.status_code == 201, answer.text
    page = client.get(f"/profiles/{answer.json()['id']}")
    assert (page.status_code, "too many to draw" in page.text) == (200, True)


def test_the_list_of_devices_reads_no_more_of_them_than_it_shows(sqlite_store):
    """However many reported once: a scan of the whole table is allowed for their number and a search by name alone."""
    statements = []
    event.listen(sqlite_store.database.engine, "before_cursor_execute", lambda *call: statements.append(call[2:4]))
    with sqlite_store.database.session(reads_only=True) as session:
        views.devices(session, 0.0)
        views.devices(session, 0.0, views.DeviceQuery("nano"))
        views.fleet(session, 0.0)
    asked = [(sql, values) for sql, values in statements if sql.startswith("SELECT")]
    assert len(asked) == 6
    with sqlite_store.database.engine.connect() as connection:
        for sql, values in asked:
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)]
            assert all("INDEX" in step for step in plan), (sql, plan)


def test_the_list_of_runs_reads_no_record(sqlite_store):
    statements = []
    event.listen(sqlite_store.database.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    with sqlite_store.database.session(reads_only=True) as session:
        views.runs(session, "", 100)
    assert len([sql for sql in statements if "trainings" in sql]) == 2
    assert not [sql for sql in statements if "record" in sql]
