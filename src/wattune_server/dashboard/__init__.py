"""Web pages: rendered by the server, refreshed by a small script; nothing is loaded from other sites.

pages       routes
device_page the page of one device
run_pages   the pages of training runs
run_views   their data, read from the store
views       data of the other pages, read from the store
responses   templates rendered to HTML responses
"""

from __future__ import annotations

from wattune_server.dashboard import device_page, pages, run_pages
from wattune_server.dashboard.responses import problem_page, static

ROUTERS = (pages.router, device_page.router, run_pages.router)

__all__ = ["ROUTERS", "problem_page", "static"]
