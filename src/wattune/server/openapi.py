"""The description of the API: FastAPI's, with the bodies that are read strictly and the fields that records have."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from wattune.records import EfficiencyCurve, LearningCurve, Plan, ProfileTable, Record, TrainingRecord
from wattune.records.served import DeviceStatus, ServedModel, SweepRequest
from wattune.server.routes.parts import Problem
from wattune.server.routes.plans import PlanRequest
from wattune.version import __version__

RECORDS: tuple[type[Record], ...] = (
    EfficiencyCurve,
    LearningCurve,
    Plan,
    ProfileTable,
    ServedModel,
    TrainingRecord,
)
BODIES: tuple[type[BaseModel], ...] = (*RECORDS, DeviceStatus, PlanRequest, Problem, SweepRequest)


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole of it."""
    made = get_openapi(
        title="wattune",
        version=__version__,
        summary="Pre-trained models, proxy sweeps, profiles, plans and training records for a small fleet of devices",
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in BODIES], ref_template="#/components/schemas/{model}"
    )
    parts = made.setdefault("components", {})
    parts.setdefault("schemas", {}).update(schemas["$defs"])
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "wt_ID_SECRET"}}
    for kind in RECORDS:
        schema = parts["schemas"][kind.__name__]
        schema["properties"] = {"record": {"const": kind.name}, **schema["properties"]}
        schema["properties"]["version"] |= {"minimum": 1, "maximum": kind.version_read}
    described: dict[str, Any] = _standard(made)
    return described


def _standard(part: Any) -> Any:
    # pydantic writes the limits of a number that has a validator of its own under its own names.
    if isinstance(part, list):
        return [_standard(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    names = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum", "lt": "exclusiveMaximum"}
    return {names.get(k, k) if isinstance(v, (int, float)) else k: _standard(v) for k, v in part.items()}
