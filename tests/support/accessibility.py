"""What axe-core finds on a page in a browser: rules of WCAG, and good practice, that it can check."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def findings(page: Page) -> list[str]:
    """Each broken rule with the elements that break it; none for a page that is as it should be."""
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {rule['help']}: {[node['html'] for node in rule['nodes']]}" for rule in found]
