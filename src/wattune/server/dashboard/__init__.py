"""Web pages: rendered by the server, refreshed by a small script; nothing is loaded from other sites.

pages       routes
views       data of the pages, read from the store
heatmap     a profile as heat maps, and the operating point chosen under every cap
line_chart  line charts as geometry
responses   templates rendered to HTML responses
"""

from __future__ import annotations

from wattune.server.dashboard.pages import router
from wattune.server.dashboard.responses import Compressed, problem_page, static

__all__ = ["Compressed", "problem_page", "router", "static"]
