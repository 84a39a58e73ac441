"""OpenAPI description: FastAPI's own, plus the strictly parsed bodies and the fields of records."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from wattune.records import LearningCurve, Plan, ProfileTable, Record, SampleEfficiency, TrainingRecord
from wattune.records.served import DeviceStatus, ServedModel, SweepRequest
from wattune.server.routes.endpoint import ProblemDetails
from wattune.server.routes.plans import PlanRequest
from wattune.version import __version__

RECORDS: tuple[type[Record], ...] = (
    SampleEfficiency,
    LearningCurve,
    Plan,
    ProfileTable,
    ServedModel,
    TrainingRecord,
)
BODIES: tuple[type[BaseModel], ...] = (*RECORDS, DeviceStatus, PlanRequest, ProblemDetails, SweepRequest)


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document."""
    document = get_openapi(
        title="wattune",
        version=__version__,
        summary="Pre-trained models, proxy sweeps, profiles, plans and training records for a small fleet of devices",
        routes=app.routes,
        separate_input_output_schemas=False,
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
    described: dict[str, Any] = _standardize(document)
    return described


def _standardize(part: Any) -> Any:
    # pydantic uses its own names for the limits of a number with a custom validator.
    if isinstance(part, list):
        return [_standardize(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    names = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum", "lt": "exclusiveMaximum"}
    return {names.get(k, k) if isinstance(v, (int, float)) else k: _standardize(v) for k, v in part.items()}
