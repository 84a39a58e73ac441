"""The report in a real browser: every figure is drawn, and nothing is requested."""

import os
import re
import shutil
import subprocess

import pytest
from tests.support import report_records as samples

from wattune.reporting import write_report
from wattune.reporting.report import compose

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(page, folder, *options):
    """Document and console output after everything has been drawn."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=20000",
        *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)


@pytest.mark.slow
@pytest.mark.skipif(
    BROWSER is None and not os.environ.get("WATTUNE_REQUIRE_BROWSER"), reason="needs chromium, which is not installed"
)
@pytest.mark.parametrize("name", ["all", "power limit", "no actuator"])
def test_every_figure_is_drawn_without_an_error(name, tmp_path):
    assert BROWSER is not None, "WATTUNE_REQUIRE_BROWSER is set, but there is no chromium"
    records = {
        "all": samples.run,
        "power limit": lambda: samples.other_actuator(limits=True),
        "no actuator": lambda: samples.other_actuator(limits=False),
    }[name]()
    page = write_report_of(records, tmp_path)
    shown = browse(page, tmp_path, "--dump-dom")
    assert not re.findall(r"CONSOLE.*", shown.stderr)
    keys = {item.key for section in compose(records).sections for item in section.items if hasattr(item, "key")}
    assert set(re.findall(r'data-figure="([^"]+)"', shown.stdout)) == keys


@pytest.mark.slow
@pytest.mark.skipif(
    BROWSER is None and not os.environ.get("WATTUNE_REQUIRE_BROWSER"), reason="needs chromium, which is not installed"
)
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_cut_off(width, tmp_path):
    """In a frame, since a browser's window has a least width: what is wider than its box would be cut off or scroll."""
    page = write_report_of(samples.run(), tmp_path)
    frame = tmp_path / "frame.html"
    frame.write_text(f"""<iframe id="frame" width="{width}" height="900" src="{page.as_uri()}"></iframe>
<pre id="out"></pre>
<script>
frame.onload = () => {{
  const page = frame.contentDocument, wide = [];
  for (const box of page.querySelectorAll("html, .card, .scroll, .tile, td"))
    if (box.clientWidth && box.scrollWidth > box.clientWidth + 1)
      wide.push(box.className + " " + box.textContent.slice(0, 40));
  const shown = [...page.querySelectorAll("[role=img] svg")].filter((svg) => svg.getBoundingClientRect().width > 0);
  out.textContent = "wide: " + wide.length + " " + wide.join("; ") + " shown: " + shown.length + " end";
}};
</script>""")
    shown = browse(frame, tmp_path, "--allow-file-access-from-files", "--dump-dom")
    said = re.search(r"wide: (\d+) (.*?) shown: (\d+) end", shown.stdout, re.DOTALL)
    assert said, shown.stdout[-500:]
    assert said[1] == "0", said[2]
    items = [item for section in compose(samples.run()).sections for item in section.items if hasattr(item, "key")]
    assert int(said[3]) == len(items)  # each once: the large or the small drawing


@pytest.mark.slow
@pytest.mark.skipif(
    BROWSER is None and not os.environ.get("WATTUNE_REQUIRE_BROWSER"), reason="needs chromium, which is not installed"
)
def test_axe_finds_nothing_on_the_report(tmp_path):
    from playwright.sync_api import sync_playwright
    from tests.support.accessibility import findings

    path = write_report_of(samples.run(), tmp_path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        for width in (390, 1400):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto(path.as_uri())
            assert findings(page) == [], f"at {width} px"
        browser.close()


def write_report_of(records, folder):
    for part in ("profile", "efficiency", "plan", "training", "comparison"):
        if (record := getattr(records, part)) is not None:
            record.save(folder / "run" / f"{part}.json")
    return write_report(folder / "run", folder / "run" / "report.html")
