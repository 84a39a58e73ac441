"""Screenshot for the README: the top of a real report in a browser.

``python -m benchmarks report_picture [REPORT.html [PICTURE.png]]``; by default the report of ``make demo`` and
docs/report.png. Needs Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 900


def main(arguments: list[str] | None = None) -> None:
    report, picture = (*(arguments or []), *(None, None))[:2]
    take_screenshot(
        Path(report or ROOT / ".demo" / "run" / "report.html"), Path(picture or ROOT / "docs" / "report.png")
    )


def take_screenshot(report: Path, picture: Path) -> None:
    """Save the top ``WIDTH`` x ``HEIGHT`` pixels of the report, in the light theme."""
    if not report.exists():
        sys.exit(f"no report at {report}; run `make demo` first, or give the path of one")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser for the screenshot; install one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--blink-settings=preferredColorScheme=1", "--hide-scrollbars", "--virtual-time-budget=20000",
            f"--user-data-dir={folder}", f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={picture.resolve()}", report.resolve().as_uri(),
        ]  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if process.returncode or not picture.exists():
        sys.exit(f"the browser saved no screenshot:\n{process.stderr}")
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")
