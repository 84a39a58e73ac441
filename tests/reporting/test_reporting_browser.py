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
    shown = browse(write_report_of(records, tmp_path), tmp_path, "--dump-dom")
    assert not re.findall(r"CONSOLE.*", shown.stderr)
    keys = {item.key for section in compose(records).sections for item in section.items if hasattr(item, "key")}
    places = re.split(r'(?=<div class="figure)', shown.stdout.split('<script type="application/json"')[0])[1:]
    assert {re.search(r'data-figure="([^"]+)"', place).group(1) for place in places} == keys
    for place in places:
        assert 'class="main-svg"' in place
        assert "var(--" not in place.split("</figure>")[0]
    assert f'data-drawn="{len(keys)}"' in shown.stdout


def write_report_of(records, folder):
    for part in ("profile", "efficiency", "plan", "training", "comparison"):
        if (record := getattr(records, part)) is not None:
            record.save(folder / "run" / f"{part}.json")
    for part in ("proxy", "target"):
        for curve in getattr(records, part):
            curve.save(folder / "run" / "curves" / part / f"b{curve.batch_size:03d}-s{curve.seed}.json")
    return write_report(folder / "run", folder / "run" / "report.html")
