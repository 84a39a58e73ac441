"""A server behind a reverse proxy, below a path of a host that it shares with others."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from tests.server.conftest import opened, served
from tests.server.test_server_dashboard_pages import PAGES, Markup
from tests.support.server import dashboard as made
from tests.support.server.prefix_proxy import behind_prefix
from tests.support.server.served import model, request
from tests.support.server.serving import serving, wait_for

from wattune.cli import main
from wattune.remote.connection import Connection
from wattune.server.settings import checked_root_path
from wattune.server.store import model_catalog, tokens

PREFIX = "/lab/wattune"
BROWSER = {"Accept": "text/html"}


def addresses(markup):
    """Every address that a page names, and whether it is one to read."""
    for _, attributes in markup.elements:
        for name in ("href", "src", "action", "formaction"):
            if name in attributes:
                yield attributes[name], attributes.get("method", "get").lower() == "get"


@pytest.mark.slow
def test_every_address_of_every_page_is_below_the_prefix(tmp_path):
    with opened(tmp_path / "store", root_path=PREFIX) as store:
        ids = made.fill(store)
        with served(store) as upstream, behind_prefix(upstream, PREFIX) as proxied, httpx.Client() as client:
            waiting = [f"{proxied.url}{path.format(**ids)}" for path in (*PAGES, "/no-such-page", "/jobs/none")]
            seen, pages, posts = set(), 0, set()
            while waiting:
                url = waiting.pop()
                if url in seen:
                    continue
                seen.add(url)
                answer = client.get(url, headers=BROWSER)
                is_missing = url.endswith(("/no-such-page", "/jobs/none"))
                assert answer.status_code == (404 if is_missing else 200), url
                if not answer.headers["content-type"].startswith("text/html"):
                    continue
                pages += 1
                for address, is_read in addresses(Markup(answer.text)):
                    target = urljoin(url, address)
                    if urlsplit(target).scheme == "data" or address.startswith("#"):
                        continue
                    assert target.startswith(proxied.url + "/"), f"{url} names {address}"
                    if is_read:
                        waiting.append(target.partition("#")[0])
                    else:
                        posts.add(target.removeprefix(proxied.url))
            assert proxied.outside == []
            assert pages > len(PAGES)
            assert {f"{proxied.url}/static/{name}" for name in ("page.css", "page.js", "theme.js")} < seen
            assert posts >= {f"/jobs/{ids['open']}/cancel"}


def test_the_command_on_the_empty_page_has_the_address_outside(tmp_path):
    with opened(tmp_path / "store", root_path=PREFIX) as store, served(store) as upstream:
        with behind_prefix(upstream, PREFIX) as proxied:
            page = httpx.get(proxied.url + "/", headers=BROWSER)
            assert f"wattune run --server {proxied.url} " in page.text


def test_redirects_cookies_and_locations_have_the_prefix(tmp_path):
    with opened(tmp_path / "store", root_path=PREFIX, proxy="127.0.0.1") as store:
        ids = made.fill(store)
        with store.database.session() as session:
            token = tokens.make(session, "boss", "admin", now_s=time.time())
        with served(store) as upstream, behind_prefix(upstream, PREFIX) as proxied:
            with httpx.Client(headers=BROWSER, follow_redirects=True) as browser:
                page = browser.get(f"{proxied.url}/runs?device=nano-1")
                assert str(page.url) == f"{proxied.url}/login?next=/runs%3Fdevice%3Dnano-1"
                page = browser.post(
                    f"{proxied.url}/login", data={"token": token, **hidden(page)}, headers={"Origin": origin(proxied)}
                )
                assert (page.status_code, str(page.url)) == (200, f"{proxied.url}/runs?device=nano-1")
                (cookie,) = browser.cookies.jar
                assert cookie.path == PREFIX + "/"
                page = browser.post(f"{proxied.url}/jobs/{ids['open']}/cancel", headers={"Origin": origin(proxied)})
                assert str(page.url) == f"{proxied.url}/jobs/{ids['open']}"
                page = browser.post(f"{proxied.url}/logout", headers={"Origin": origin(proxied)})
                assert str(page.url) == f"{proxied.url}/login"
                assert not browser.cookies.jar
            authorization = {"Authorization": f"Bearer {token}"}
            with httpx.Client(headers=authorization, base_url=proxied.url) as programs:
                asked = programs.post("/v1/jobs", json=json.loads(request("resnet8-digits", seeds=1).model_dump_json()))
                assert asked.headers["location"] == f"{PREFIX}/v1/jobs/{asked.json()['job']}"
                assert programs.get("/v1/openapi.json").json()["servers"] == [{"url": PREFIX}]
            assert proxied.outside == []


def hidden(page):
    return {a["name"]: a["value"] for a in Markup(page.text).all("input") if a.get("type") == "hidden"}


def origin(proxied):
    return "{0.scheme}://{0.netloc}".format(urlsplit(proxied.url))


@pytest.mark.parametrize(
    ("text", "path"),
    [("", ""), ("/", ""), ("/wattune", "/wattune"), ("/wattune/", "/wattune"), ("/a-b/c_d.e~", "/a-b/c_d.e~")],
)
def test_root_path_is_normalized(text, path):
    assert checked_root_path(text) == path


@pytest.mark.parametrize("text", ["wattune", "//evil.example", "/a//b", "/a b", "/a?b", "/../a", "/a/.", "/a\n", "/ä"])
def test_invalid_root_path_is_refused(text, capsys):
    assert main(["serve", "--root-path", text, "--proxy", "127.0.0.1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "a path such as /wattune" in said


def test_root_path_needs_a_proxy(capsys, monkeypatch):
    monkeypatch.setenv("WATTUNE_SERVE_ROOT_PATH", "/wattune")
    assert main(["serve"]) == 2
    assert "--proxy" in capsys.readouterr().err


@pytest.mark.slow
def test_clients_work_through_the_prefix(tmp_path):
    """A real server and device: the proxy sees no call above the prefix."""
    folder = tmp_path / "store"
    with opened(folder) as store, store.database.session() as session:
        model_catalog.put(session, model(), time.time())
        secrets = {scope: tokens.make(session, scope, scope, time.time()) for scope in ("device", "read")}
    environment = {"WATTUNE_SERVE_ROOT_PATH": PREFIX, "WATTUNE_SERVE_PROXY": "127.0.0.1"}
    with serving(folder, environment=environment) as server:
        with behind_prefix(server.url, PREFIX, scheme="https") as proxied:
            page = httpx.get(f"{proxied.url}/login")
            form = {"token": secrets["read"], **hidden(page)}
            answer = httpx.post(f"{proxied.url}/login", data=form, headers={"Origin": origin(proxied)})
            assert answer.headers["location"] == PREFIX + "/"
            cookie = answer.headers["set-cookie"]
            assert f"Path={PREFIX}/;" in cookie
            assert "Secure" in cookie
            connection = Connection(proxied.url, token=secrets["device"])
            try:
                body = json.loads(request(seeds=1, batch_sizes=[64]).model_dump_json())
                job = connection.request("POST", "/v1/jobs", body=body)["job"]
                wait_for(lambda: connection.request("GET", f"/v1/jobs/{job}")["state"] == "done")
                connection.request("PUT", "/v1/devices/nano", body=made.status("nano").model_dump(mode="json"))
            finally:
                connection.close()
            called = {re.sub("[0-9a-f]{32,}", "ID", path) for _, path in proxied.proxy.paths()}
            assert {f"{PREFIX}/v1/jobs", f"{PREFIX}/v1/jobs/ID"} < called
            assert proxied.outside == []
