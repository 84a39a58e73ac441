"""HTML responses from templates, and parameters of their routes.

Values are escaped here and in the report's figures alone, and a policy forbids loading from other sites.
"""

from __future__ import annotations

from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi import Path as PathParameter
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from wattune.reporting import phrases
from wattune.reporting.page import Figure, render_item
from wattune_server import security
from wattune_server.problems import Problem

NO_NUL = r"^[^\x00]*$"
"""Pattern that excludes NUL, which PostgreSQL cannot store."""

Reader = Annotated[security.Identity, Depends(security.require("read"))]
Fields = Annotated[dict[str, str], Depends(security.form)]
Key = Annotated[str, Query(max_length=64, pattern=NO_NUL)]
Name = Annotated[str, PathParameter(max_length=64, pattern=NO_NUL)]

HERE = Path(__file__).parent

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
)
"""Content security policy of a page: own files only, no inline scripts or styles."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    # Not no-referrer, which makes browsers submit forms with "Origin: null", as if from another site.
    "Referrer-Policy": "same-origin",
}

ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><rect width='16' height='16' rx='4' fill='#0b7a69'/>"
    "<path d='M9 2 4 9h3l-1 5 6-7H9z' fill='#fff'/></svg>"
)

static = StaticFiles(directory=HERE / "static")
"""Style sheet and scripts, to be mounted at /static."""


def respond(request: Request, template: str, /, *, section: str = "", status: int = 200, **values: Any) -> HTMLResponse:
    """Render a page. ``section``: its entry in the navigation."""
    identity = getattr(request.state, "identity", None)
    text = _TEMPLATES.get_template(template).render(
        section=section,
        signed_in=identity is not None and identity.by == "session",
        **values,
    )
    return HTMLResponse(text, status, HEADERS)


def message(request: Request, title: str, text: str, *, status: int, back: str = "/") -> HTMLResponse:
    """Render a page with a single message."""
    return respond(request, "message.html", status=status, title=title, text=text, back=back)


def not_found(request: Request, what: str, back: str) -> HTMLResponse:
    """Render the page for something that does not exist. ``what``: its kind, such as "job"."""
    return message(request, f"No such {what}", f"This server has no {what} with that name.", status=404, back=back)


def problem_page(request: Request, problem: Problem) -> Response:
    """Render an error as a page."""
    return message(request, HTTPStatus(problem.status).phrase, f"{problem}.", status=problem.status)


def ago(seconds_s: float) -> str:
    """Format a duration as elapsed time: "just now", "12 s ago", "3 h ago"."""
    if seconds_s < 3:
        return "just now"
    for size_s, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds_s >= 2 * size_s:
            return f"{seconds_s / size_s:.0f} {unit} ago"
    return f"{seconds_s:.0f} s ago"


def clock(moment_s: float) -> str:
    """Format a time for people, in UTC, since devices and readers may be anywhere."""
    return f"{datetime.fromtimestamp(moment_s, timezone.utc):%Y-%m-%d %H:%M} UTC"


def iso(moment_s: float) -> str:
    """Format a time as ISO 8601."""
    return datetime.fromtimestamp(moment_s, timezone.utc).isoformat(timespec="seconds")


def drawn(figures: list[Figure]) -> Markup:
    """Draw figures as the report does, which escapes their texts itself."""
    return Markup("\n".join(map(render_item, figures)))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Inline, because browsers request the icon again whenever the address changes, as it does with the slider.
    environment.globals.update(words=phrases, icon=ICON)
    environment.filters.update(ago=ago, clock=clock, iso=iso, drawn=drawn)
    return environment


_TEMPLATES = _environment()
