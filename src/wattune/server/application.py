"""The ASGI application: routes, middleware, and the shared objects in ``request.app.state``.

The OpenAPI description is FastAPI's own, plus the strictly parsed bodies and the fields of records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import create_task_group, sleep, to_thread
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from wattune.records import LearningCurve, Plan, ProfileTable, Record, SampleEfficiency, TrainingRecord
from wattune.records.served import DeviceStatus, ServedModel, SweepRequest
from wattune.server import dashboard, problems
from wattune.server.direct import Direct
from wattune.server.jobs.watch import JobWatch
from wattune.server.limits import Buckets, Limiter
from wattune.server.prometheus import Metrics
from wattune.server.routes import ROUTERS
from wattune.server.routes.endpoint import ProblemDetails
from wattune.server.security import TokenCache
from wattune.server.settings import Settings
from wattune.server.store import Database, FileStore
from wattune.server.store.statuses import WRITE_EVERY_S, Statuses
from wattune.server.telemetry import Telemetry
from wattune.version import __version__


def create_app(settings: Settings, database: Database, files: FileStore) -> FastAPI:
    """Build the application of one server, for any ASGI server. Call ``Database.upgrade`` first."""
    # FastAPI's own documentation pages load scripts from a CDN, so they are switched off.
    app = FastAPI(
        title="wattune", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.router.lifespan_context = _lifespan
    metrics = Metrics(database)
    app.state.settings = settings
    app.state.database = database
    app.state.files = files
    app.state.metrics = metrics
    app.state.token_cache = TokenCache()
    app.state.statuses = Statuses(database)
    app.state.job_watch = JobWatch(database)
    app.state.ready_s = float("-inf")
    app.state.failures = Buckets(settings.limits.failures_per_min / 60, settings.limits.failures_per_min)
    problems.install(app, dashboard.problem_page)
    for router in ROUTERS:
        app.include_router(router)
    for router in dashboard.ROUTERS:
        app.include_router(router, include_in_schema=False)
    app.mount("/static", dashboard.static)
    # The middleware that is added last is the outermost.
    app.add_middleware(Direct)
    app.add_middleware(dashboard.Compressed)
    app.add_middleware(Limiter, limits=settings.limits)
    app.add_middleware(Telemetry, metrics=metrics)

    description: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        description.update(describe(app) if not description else {})
        return description

    app.openapi = openapi  # type: ignore[method-assign]  # as in FastAPI's documentation
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Limit the threads; write the statuses periodically while the server runs."""
    current_default_thread_limiter().total_tokens = app.state.settings.limits.threads
    async with create_task_group() as tasks:
        tasks.start_soon(_write_periodically, app.state.statuses)
        yield
        tasks.cancel_scope.cancel()
    app.state.statuses.flush()


async def _write_periodically(statuses: Statuses) -> None:
    while True:
        await sleep(WRITE_EVERY_S)
        await to_thread.run_sync(statuses.flush)


RECORDS: tuple[type[Record], ...] = (
    SampleEfficiency,
    LearningCurve,
    Plan,
    ProfileTable,
    ServedModel,
    TrainingRecord,
)
BODIES: tuple[type[BaseModel], ...] = (
    *RECORDS,
    DeviceStatus,
    ProblemDetails,
    SweepRequest,
)


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document."""
    document = get_openapi(
        title="wattune",
        version=__version__,
        summary="Pre-trained models, proxy sweeps, profiles, plans and training records for a small fleet of devices",
        routes=app.routes,
        separate_input_output_schemas=False,
        servers=[{"url": "/"}],
    )
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in BODIES], ref_template="#/components/schemas/{model}"
    )
    parts = document.setdefault("components", {})
    parts.setdefault("schemas", {}).update(schemas["$defs"])
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "wt_ID_SECRET"}}
    for kind in RECORDS:
        schema = parts["schemas"][kind.__name__]
        schema["properties"] = {"record": {"const": kind.name}, **schema["properties"]}
        schema["properties"]["version"] |= {"minimum": 1, "maximum": kind.version_read}
    description: dict[str, Any] = _standardize(document)
    return description


def _standardize(part: Any) -> Any:
    # pydantic uses its own names for the limits of a number with a custom validator.
    if isinstance(part, list):
        return [_standardize(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    names = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum", "lt": "exclusiveMaximum"}
    return {names.get(k, k) if isinstance(v, (int, float)) else k: _standardize(v) for k, v in part.items()}
