"""The HTTP API, one module a kind of thing. Each route says who may call it, and what it answers."""

from __future__ import annotations

from fastapi import APIRouter

from wattune.server.routes import devices, files, jobs, models, operations, plans, profiles, trainings

ROUTERS: tuple[APIRouter, ...] = (
    # They are asked one after another whether a request is theirs: those that a fleet calls most stand first.
    devices.router,
    jobs.router,
    models.router,
    plans.router,
    profiles.router,
    trainings.router,
    files.router,
    operations.router,
)

__all__ = ["ROUTERS"]
