"""HTTP API, one module per resource. Each route declares its required scope."""

from __future__ import annotations

from fastapi import APIRouter

from wattune_server.routes import devices, jobs, models, operations, profiles, trainings

ROUTERS: tuple[APIRouter, ...] = (
    # Routers are matched in order, so those that a fleet calls most come first.
    devices.router,
    jobs.router,
    models.router,
    profiles.router,
    trainings.router,
    operations.router,
)

__all__ = ["ROUTERS"]
