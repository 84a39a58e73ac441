"""The pages: rendered by the server, kept new by a small script of their own; nothing is loaded from elsewhere.

pages      the routes
reading    what they show, read from the store
heatmap    a profile, and what is chosen from it under every cap
figures    line charts as geometry
"""

from __future__ import annotations

from wattune.server.dashboard.pages import router
from wattune.server.dashboard.rendering import static

__all__ = ["router", "static"]
