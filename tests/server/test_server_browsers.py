"""What browsers, proxies and load balancers meet: links from elsewhere, errors as pages, HEAD, compression."""

from __future__ import annotations

import httpx
import pytest
from tests.server.conftest import asked, opened
from tests.support.server import api as made
from tests.support.server import dashboard as rows
from tests.support.server.serving import serving

from wattune_server.limits import Limits
from wattune_server.store import StoreUnavailable

HTML = {"Accept": "text/html,*/*"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.fixture
def browser(sqlite_store):
    with asked(sqlite_store) as client:
        yield client


def test_link_from_another_site_opens_a_page(browser, sqlite_store):
    assert browser.get("/", headers={**HTML, **LINK}).status_code == 200
    text = made.token(sqlite_store, "read")["Authorization"].removeprefix("Bearer ")
    browser.post("/login", data={"token": text}, headers={"Origin": str(browser.base_url)})
    assert sqlite_store.settings.session_cookie in browser.cookies
    assert browser.get("/jobs", headers={**HTML, **LINK}, follow_redirects=False).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "changes"),
    [
        ("GET", "/v1/models/a", {}),
        ("GET", "/", {"Sec-Fetch-Dest": "iframe"}),
        ("GET", "/", {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}),
        ("POST", "/jobs/a/cancel", {}),
    ],
)
def test_other_requests_from_another_site_are_rejected(browser, method, path, changes):
    assert browser.request(method, path, headers={**HTML, **LINK, **changes}).status_code == 403


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/?sort=bad", 422), (f"/profiles/{'x' * 100}", 422)])
def test_errors_of_pages_are_pages(browser, path, status):
    answer = browser.get(path, headers=HTML)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert "<nav" in answer.text
    made.problem(browser.get(path), status)


def test_error_pages_of_limits_and_of_an_unavailable_store(tmp_path, monkeypatch):
    with opened(tmp_path / "store", limits=Limits(burst=3, rate_per_s=1e-6)) as store, asked(store) as client:

        def fail(*args, **options):
            raise StoreUnavailable("the database does not respond: <test>")

        monkeypatch.setattr("wattune_server.store.model_catalog.listing", fail)
        answer = client.get("/models", headers=HTML)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "does not respond: &lt;test&gt;" in answer.text
        statuses = [client.get("/login", headers=HTML) for _ in range(4)]
        assert statuses[-1].status_code == 429
        assert "<h1>Too Many Requests</h1>" in statuses[-1].text
        assert statuses[-1].headers["retry-after"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", made.READ, "/v1/models/resnet8-digits", "/metrics"])
def test_head_is_get_without_a_body(live_server, store, path):
    rows.put_model(store)
    head = httpx.head(live_server + path, trust_env=False)
    assert head.status_code == httpx.get(live_server + path, trust_env=False).status_code == 200
    assert head.content == b""
    assert int(head.headers["content-length"]) > 0 or "transfer-encoding" in head.headers


@pytest.mark.slow
def test_server_behind_a_proxy_believes_its_headers_alone(tmp_path):
    with opened(tmp_path / "store") as store:
        text = made.token(store, "read")["Authorization"].removeprefix("Bearer ")
    forwarded = {"X-Forwarded-For": "10.1.2.3", "X-Forwarded-Proto": "https", **HTML}
    for options, believed in (["--proxy", "127.0.0.1"], True), (["--proxy", "10.9.9.9"], False), ([], False):
        with serving(tmp_path / "store", "--workers", "0", *options) as server:
            with httpx.Client(base_url=server.url, headers=forwarded, trust_env=False, timeout=20) as client:
                entered = client.post("/login", data={"token": text}, headers={"Origin": server.url})
                assert entered.status_code == 303
                assert ("Secure" in entered.headers["set-cookie"]) == believed
                assert ("strict-transport-security" in entered.headers) == believed
        log = (tmp_path / "server.log").read_text()
        assert ('"client": "10.1.2.3"' in log) == believed
        (tmp_path / "server.log").unlink()
