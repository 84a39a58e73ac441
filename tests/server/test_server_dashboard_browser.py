"""Pages in a real browser: live updates, keyboard, phone, both themes, and no request to any other host."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager

import pytest
from tests.server.conftest import opened, served
from tests.support import report_records as samples
from tests.support.accessibility import findings
from tests.support.server import dashboard as made

from wattune.cap import PowerCap
from wattune.planning import plan
from wattune_server.store import tokens

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
PAGES = (
    "/",
    "/?state=working",
    "/devices/{device}",
    "/jobs",
    "/jobs/{done}",
    "/jobs/{open}",
    "/profiles",
    "/profiles/{profile}?cap=5.2",
    "/runs",
    "/runs/{runs[0]}",
    "/models",
    "/login",
)

# Every piece of text beside what is behind it: the colour of the nearest element that has one.
CONTRAST = """() => {
  const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    const element = walker.currentNode.parentElement;
    const beside = element.previousElementSibling;
    if (!text || element.closest("script, title, .unseen, option") || !element.checkVisibility()) continue;
    let behind = element;
    while (rgb(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const style = getComputedStyle(element);
    const shades = [light(rgb(element.closest("svg") ? style.fill : style.color))];
    // The text of a map follows the square that it is on.
    const ground = getComputedStyle(behind).backgroundColor;
    shades.push(light(rgb(element.matches("rect + text") ? getComputedStyle(beside).fill : ground)));
    found.push([(Math.max(...shades) + 0.05) / (Math.min(...shades) + 0.05), text, behind.className]);
  }
  return found;
}"""

CURVES = '.large path[stroke^="var(--batch-"]'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None and not os.environ.get("WATTUNE_REQUIRE_BROWSER"),
        reason="needs chromium, which is not installed",
    ),
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert BROWSER is not None, "WATTUNE_REQUIRE_BROWSER is set, but there is no chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=OPTIONS.split())
        yield found
        found.close()


@pytest.fixture
def site(sqlite_store):
    """A full store and its URL."""
    ids = made.fill(sqlite_store)
    with served(sqlite_store) as url:
        yield sqlite_store, url, ids


@contextmanager
def visit(browser, url, path="/", **options):
    """A page in a window of its own; at its end, it must have said nothing to the console, and asked nobody else."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, base_url=url, **options)
    page = context.new_page()
    wrong, requests = [], []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.allowed, page.requests = [], requests
    try:
        assert page.goto(path).status == 200
        yield page
    finally:
        context.close()
    assert [line for line in wrong if not any(part in line for part in page.allowed)] == []
    assert [address for address in requests if not address.startswith((f"{url}/", "data:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_render_in_both_themes_and_on_a_phone(browser, site, scheme):
    store, url, ids = site
    made.put_device(store, made.status("nano-4", step="failed", says="stopped for safety"))
    for path in PAGES:
        with visit(browser, url, path.format(**ids), color_scheme=scheme) as page:
            page.eval_on_selector_all("details", "found => found.forEach((one) => { one.open = true; })")
            assert page.title().endswith("wattune")
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 200) == (scheme == "dark")
            low = [entry for entry in page.evaluate(CONTRAST) if entry[0] < 4.5]
            assert low == [], path
            for width in (360, 1200):
                page.set_viewport_size({"width": width, "height": 800})
                over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert over <= 0, f"{path} is {over} px too wide at {width} px"
                assert findings(page) == [], f"{path} at {width} px"


def test_pages_are_keyboard_accessible(browser, site):
    _, url, ids = site
    with visit(browser, url, f"/profiles/{ids['profile']}?cap=4.5", reduced_motion="reduce") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
        page.keyboard.press("Enter")
        seen = []
        for _ in range(14):
            page.keyboard.press("Tab")
            where = page.evaluate(
                "[document.activeElement.name, getComputedStyle(document.activeElement).outlineStyle]"
            )
            seen.append(where[0])
            assert where[1] != "none", f"{where[0]} does not show that it has the focus"
            if where[0] == "cap":
                break
        assert seen[-1] == "cap"
        page.keyboard.type("5.2W")
        page.keyboard.press("Enter")
        page.wait_for_url("**cap=5.2W**")
        picked = plan(ids["table"], samples.efficiency(), cap=PowerCap(5.2))
        assert f"batch size {picked.batch_size} at" in page.text_content(".tiles")


def test_device_updates_within_seconds(browser, site):
    store, url, _ = site
    with visit(browser, url) as page:
        page.locator("#device-nano-1 a").first.focus()
        made.put_device(store, made.status("nano-1", power_w=5.01, metric=0.93, share=0.71))
        made.put_device(store, made.status("nano-9", step="profile"))
        page.wait_for_selector("#device-nano-1 >> text=5.01 W", timeout=6000)
        assert "0.93" in page.text_content("#device-nano-1")
        assert page.is_visible("#device-nano-9")
        assert "nano-9: profile" in page.text_content("#spoken")
        assert page.get_attribute("#device-nano-1 polyline", "points").count(",") >= 2
        made.put_device(store, made.status("nano-1", step="done", share=1.0))
        page.wait_for_selector("#device-nano-1 >> text=done", timeout=6000)
        assert "nano-1: done" in page.text_content("#spoken")


def test_focus_survives_refresh(browser, site):
    store, url, ids = site
    with visit(browser, url) as page:
        link = page.locator("#device-nano-1 a", has_text="profile and plan")
        link.focus()
        made.put_device(store, made.status("aaa-first"))
        made.put_device(store, made.status("nano-1", power_w=4.44, profile=ids["profile"], job=ids["done"]))
        page.wait_for_selector("#device-nano-1 >> text=4.44 W", timeout=6000)
        assert page.is_visible("#device-aaa-first")
        assert page.evaluate("document.activeElement.textContent") == "profile and plan"
        assert page.evaluate("document.activeElement.closest('li.card').id") == "device-nano-1"


def test_learning_curves_appear_live(browser, site):
    store, url, ids = site
    with visit(browser, url, f"/jobs/{ids['open']}") as page:
        assert page.locator(CURVES).count() == 8
        for curve in made.curves()[8:12]:
            made.finish_run(store, ids["open"], curve)
        page.wait_for_selector("text=12 of at most 18 runs done", timeout=6000)
        assert page.locator(CURVES).count() == 12
        page.get_by_role("button", name="Cancel").click()
        page.wait_for_selector("text=Restart")
        assert "cancelled" in page.text_content("#job-summary")


def test_outage_and_recovery_are_shown(browser, site):
    store, url, _ = site
    with visit(browser, url) as page:
        page.allowed.append("net::ERR_")
        page.route("**/*", lambda route: route.abort("connectionrefused"))
        page.wait_for_selector("#connection-lost:visible", timeout=6000)
        assert "does not respond" in page.text_content("#connection-lost")
        assert "nano-1" in page.text_content("#live")  # what was seen last stays
        made.put_device(store, made.status("nano-1", power_w=3.33))
        page.unroute_all()
        page.wait_for_selector("#device-nano-1 >> text=3.33 W", timeout=10_000)
        assert not page.is_visible("#connection-lost")


def test_hidden_page_sends_no_requests(browser, site):
    _, url, _ = site
    with visit(browser, url) as page:
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        page.evaluate(hide % "true" + "document.dispatchEvent(new Event('visibilitychange'))")
        time.sleep(0.5)
        before = len(page.requests)
        page.wait_for_timeout(5000)
        assert len(page.requests) == before
        page.evaluate(hide % "false" + "document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_timeout(1000)
        assert len(page.requests) > before


def test_reshown_page_sends_one_request_at_a_time(browser, site):
    _, url, _ = site
    with visit(browser, url) as page:
        page.evaluate("""() => {
          const ask = window.fetch;
          window.asked = {now: 0, most: 0, all: 0};
          window.fetch = async (...what) => {
            asked.all += 1;
            asked.now += 1;
            asked.most = Math.max(asked.most, asked.now);
            try {
              await new Promise((resolve) => setTimeout(resolve, 600));
              return await ask(...what);
            } finally {
              asked.now -= 1;
            }
          };
        }""")
        for _ in range(6):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            page.wait_for_timeout(100)
        page.wait_for_timeout(6500)
        found = page.evaluate("asked")
        assert found["most"] == 1
        assert 2 <= found["all"] <= 4  # every 2.6 s


def test_expired_session_redirects_to_login_and_back(browser, tmp_path):
    with opened(tmp_path / "store", proxy="127.0.0.1") as store:
        made.fill(store)
        with store.database.session() as session:
            looker = tokens.make(session, "looker", "read", now_s=time.time())
            another = tokens.make(session, "another", "read", now_s=time.time())
        with served(store) as url, visit(browser, url, "/jobs?some=thing") as page:
            page.allowed.append("Password forms should have")  # the browser's advice: a token has no user's name
            page.fill("input[name=token]", looker)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url("**/jobs?some=thing")
            page.wait_for_timeout(2500)
            assert page.text_content("h1") == "Jobs"  # also after it was renewed
            page.goto("/?find=nano")
            with store.database.session() as session:
                tokens.revoke(session, "looker", time.time())
            page.wait_for_url("**/login?next=**", timeout=8000)
            page.fill("input[name=token]", another)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url("**/?find=nano")
            assert page.text_content("h1") == "Devices"


def test_reduced_motion_is_respected(browser, site):
    _, url, _ = site
    moving = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
    with visit(browser, url, reduced_motion="reduce") as page:
        assert page.evaluate(moving) == 0
