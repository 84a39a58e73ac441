"""The list of runs: what of it is shown."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from tests.server.test_server_dashboard_pages import shown
from tests.support import report_records as samples
from tests.support.server import api
from tests.support.server import dashboard as made

from wattune.server.dashboard import run_pages

RECORD = samples.run().training
BUDGET = {"ended": "budget used up", "reached": False}


def put(store, *, ago_s=0.0, workload=None, **changes):
    """A run of a workload that the server does not have."""
    record = RECORD.model_copy(update={"plan": RECORD.plan.model_copy(update={"workload": workload}), **changes})
    return made.put_training(store, record, "nano-1", ago_s=ago_s, model=None)


def test_long_list_is_cut_and_says_so(client, store, monkeypatch):
    for index in range(4):
        put(store, ago_s=float(index))
    monkeypatch.setattr(run_pages, "PAGE_ROWS", 2)
    assert "first 2 of 4 runs in this order." in shown(client, "/runs").text


@pytest.fixture
def various(store):
    """Runs by a name, each of which a filter tells from the others."""
    plan = RECORD.plan.model_copy(update={"workload": None})
    return {
        "first": made.put_training(store, RECORD, "nano-1", ago_s=1),
        "other device": made.put_training(store, RECORD, "tx2-1", ago_s=2),
        "other workload": put(store, ago_s=3, workload="50% <b>off</b>"),
        "out of budget": made.put_training(store, RECORD.model_copy(update=BUDGET), "nano-1", ago_s=4),
        "unnamed": made.put_training(store, RECORD.model_copy(update={"plan": plan}), "nano-2", ago_s=5, model=None),
    }


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("device=tx2-1", ["other device"]),
        ("device=tx2", []),
        ("workload=50%25+%3Cb%3Eoff%3C/b%3E", ["other workload"]),
        ("state=budget+used+up", ["out of budget"]),
        ("state=target+reached&device=nano-1", ["first", "other workload"]),
        ("state=diverged", []),
        ("find=TX2", ["other device"]),
        ("find=resnet8", ["first", "other device", "out of budget"]),
        ("find=0%25", ["other workload"]),
        ("find=_", []),
        ("find=nano&state=target+reached&sort=created_s&order=asc", ["unnamed", "other workload", "first"]),
    ],
)
def test_runs_are_filtered_by_their_address(client, various, query, names):
    page = shown(client, f"/runs?{query}")
    ids = [various[name] for name in names]
    assert [a["href"] for a in page.all("a") if a["href"].startswith("/runs/")] == [f"/runs/{key}" for key in ids]
    assert f"{len(ids)} run{' matches' if len(ids) == 1 else 's match'} the filter" in page.text
    # The form and the heads of the columns keep what is set.
    asked = dict(parse_qsl(query))
    filters = {name: asked.get(name, "") for name in ("find", "workload", "device")}
    assert {a["name"]: a["value"] for a in page.all("input") if a.get("name") in filters} == filters
    heads = [dict(parse_qsl(a["href"].partition("?")[2])) for a in page.all("a") if "sort=" in a["href"]]
    assert len(heads) == 11 * bool(ids)
    assert all(head.items() >= asked.items() - {("sort", "created_s"), ("order", "asc")} for head in heads)
    suggested = [a["value"] for a in page.all("option") if "value" in a]
    assert suggested == ["50% <b>off</b>", "resnet8-digits", "nano-1", "nano-2", "tx2-1", ""]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("state=lost", "target reached, budget used up"),
        ("find=" + "x" * 65, "64"),
        ("workload=%00", "pattern"),
        ("device=%00", "pattern"),
    ],
)
def test_filters_are_bounded(client, query, says):
    assert says in api.problem(client.get(f"/runs?{query}"), 422)["allowed"]
