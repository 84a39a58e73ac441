"""The server's application: routes, the layers around them, and what they reach through ``request.app.state``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from anyio import create_task_group, sleep, to_thread
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from wattune.server import dashboard, problems
from wattune.server.limits import Buckets, Limiter
from wattune.server.metrics import Metrics
from wattune.server.observing import Observer
from wattune.server.openapi import describe
from wattune.server.routes import ROUTERS
from wattune.server.security import Recent
from wattune.server.sessions import Sessions
from wattune.server.settings import Settings
from wattune.server.store import Database, FileStore, StoreUnavailable, tokens
from wattune.version import __version__

THREADS = 4
"""Requests that are worked on at a time; the others wait in line. What they do is mostly computing, for which Python
has one thread at a time: with the library's own 40 they hold each other up, and all take several times as long."""

USED_EVERY_S = 10.0
"""How often it is kept which tokens were used: a write at every request would cost more than it tells."""


def create_app(settings: Settings, database: Database, files: FileStore) -> FastAPI:
    """The application of one server, for any ASGI server. The tables have to be there (``Database.upgrade``)."""
    # No pages of FastAPI's own: they load their scripts from elsewhere.
    app = FastAPI(
        title="wattune", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.router.lifespan_context = _lifespan
    metrics = Metrics(database)
    app.state.settings = settings
    app.state.database = database
    app.state.files = files
    app.state.metrics = metrics
    app.state.sessions = Sessions()
    app.state.recent = Recent()
    app.state.used_s = {}
    app.state.ready_s = float("-inf")
    app.state.failures = Buckets(settings.limits.failures_per_min / 60, settings.limits.failures_per_min)
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(dashboard.router, include_in_schema=False)
    app.mount("/static", dashboard.static)
    # The last one added is the outermost.
    app.add_middleware(Limiter, limits=settings.limits)
    app.add_middleware(Observer, metrics=metrics)

    described: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        described.update(describe(app) if not described else {})
        return described

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation has it
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """While the server runs: few threads, and from time to time it is kept which tokens were used."""
    current_default_thread_limiter().total_tokens = THREADS
    async with create_task_group() as tasks:
        tasks.start_soon(_keep_used, app.state)
        yield
        tasks.cancel_scope.cancel()
    _write_used(app.state)


async def _keep_used(state: Any) -> None:
    while True:
        await sleep(USED_EVERY_S)
        await to_thread.run_sync(_write_used, state)


def _write_used(state: Any) -> None:
    # That the store takes nothing now is no reason to end; those are kept with the next.
    used_s = dict(state.used_s)
    with suppress(StoreUnavailable):
        if used_s:
            with state.database.session() as session:
                tokens.mark_used(session, used_s)
        for token, moment_s in used_s.items():
            if state.used_s.get(token) == moment_s:
                del state.used_s[token]
