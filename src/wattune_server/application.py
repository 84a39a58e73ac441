"""The ASGI application: routes, middleware, and the shared objects in ``request.app.state``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter, create_task_group, sleep, to_thread
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from wattune_server import api, dashboard, problems
from wattune_server.jobs.answers import JobAnswers
from wattune_server.limits import Buckets, Limiter
from wattune_server.prometheus import Metrics
from wattune_server.security import TokenCache
from wattune_server.settings import Settings
from wattune_server.store import Database, FileStore
from wattune_server.store.statuses import WRITE_EVERY_S, Statuses
from wattune_server.telemetry import Telemetry


def create_app(settings: Settings, database: Database, files: FileStore) -> FastAPI:
    """Build the application of one server, for any ASGI server. Call ``Database.upgrade`` first."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.router.lifespan_context = _lifespan
    metrics = Metrics(database)
    app.state.settings = settings
    app.state.database = database
    app.state.files = files
    app.state.metrics = metrics
    app.state.token_cache = TokenCache(database)
    app.state.statuses = Statuses(database)
    app.state.job_answers = JobAnswers(database)
    app.state.ready_s = float("-inf")
    app.state.failures = Buckets(settings.limits.failures_per_min / 60, settings.limits.failures_per_min)
    problems.install(app, dashboard.problem_page)
    for router in (api.router, dashboard.router):
        app.include_router(router)
    app.mount("/static", dashboard.static)
    # The middleware that is added last is the outermost.
    app.add_middleware(Limiter, limits=settings.limits)
    app.add_middleware(Telemetry, metrics=metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Limit the threads; write the statuses periodically while the server runs."""
    threads = app.state.settings.limits.threads
    current_default_thread_limiter().total_tokens = threads
    app.state.writes = CapacityLimiter(1 if app.state.database.is_sqlite else threads)
    async with create_task_group() as tasks:
        tasks.start_soon(_write_periodically, app)
        yield
        tasks.cancel_scope.cancel()
    app.state.statuses.flush()


async def _write_periodically(app: FastAPI) -> None:
    while True:
        await sleep(WRITE_EVERY_S)
        await to_thread.run_sync(app.state.statuses.flush, limiter=app.state.writes)
