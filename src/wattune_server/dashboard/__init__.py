"""Web pages: rendered by the server, refreshed by a small script; nothing is loaded from other sites.

pages      routes
views      their data, read from the store
responses  templates rendered to HTML responses
"""

from wattune_server.dashboard.pages import router
from wattune_server.dashboard.responses import problem_page, static

__all__ = ["problem_page", "router", "static"]
