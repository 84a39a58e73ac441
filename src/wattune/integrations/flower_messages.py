"""Messages of a fleet on Flower: what a client offers, what it is asked to do, and what it answers.

Whatever a client sends is checked before it is used: one that answers nonsense counts as failed for the round.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from wattune.errors import InputError
from wattune.planning.fleet import LocalPoint
from wattune.point import OperatingPoint

OFFER = "wattune-offer"
"""Record of an offer: asked for by a train message that has one, and answered with the client's points."""

POINT = "wattune-point"
"""Entry of the configuration: the operating point, as JSON in the flat form of records."""

Read = TypeVar("Read")

LOCAL_STEPS, BATCH_SIZE = "local-steps", "batch-size"
SECONDS, JOULES, WATTS, STEPS = "wattune-seconds", "wattune-joules", "wattune-watts", "wattune-steps"


class _Checked(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, allow_inf_nan=False, extra="ignore")


class _OfferedPoint(_Checked):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    batch_size: PositiveInt
    micro_batch_size: PositiveInt | None = None
    step_s: float = Field(ge=1e-6, le=1e6)
    power_w: float = Field(gt=0, le=1e6)

    __pydantic_extra__: dict[str, PositiveFloat]
    """The knobs."""


class _Offer(_Checked):
    points: tuple[_OfferedPoint, ...]


class RoundFigures(_Checked):
    """Figures of a client's round, from the metrics of its reply."""

    seconds: PositiveFloat = Field(alias=SECONDS)
    joules: NonNegativeFloat = Field(alias=JOULES)
    steps: PositiveInt = Field(alias=STEPS)


def offer_text(points: tuple[LocalPoint, ...]) -> str:
    """The text of an offer."""
    rows = [{**one.point.fields(), "step_s": one.step_s, "power_w": one.power_w} for one in points]
    return json.dumps({"points": rows})


def offered(content: RecordDict, batch_size: int) -> tuple[LocalPoint, ...]:
    """The points of a client's offer for this batch size. Raises: InputError."""
    if OFFER not in content:
        raise InputError("its ClientApp has no PowerCapMod")
    points = []
    for row in _read(lambda: _Offer.model_validate_json(str(content[OFFER].get(OFFER)))).points:
        if row.batch_size != batch_size:
            raise InputError("a point of the offer has batch size", value=row.batch_size, allowed=str(batch_size))
        fields = row.model_dump(exclude={"step_s", "power_w"})
        points.append(LocalPoint(point_of(fields), row.step_s, row.power_w))
    return tuple(points)


def point_of(row: dict[str, Any]) -> OperatingPoint:
    """An operating point from its fields."""
    return OperatingPoint.of(row.pop("batch_size"), row.pop("micro_batch_size", None), **row)


def figures_of(reply: Message) -> RoundFigures:
    """The figures in a reply. Raises: InputError."""
    return _read(lambda: RoundFigures.model_validate(dict(_only(reply.content.metric_records, "MetricRecord"))))


def check_arrays(reply: Message, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a reply has finite arrays of these shapes. Raises: InputError."""
    arrays: ArrayRecord = _only(reply.content.array_records, "ArrayRecord")
    if arrays.keys() != shapes.keys():
        raise InputError("the arrays of the reply", value=", ".join(arrays), allowed=", ".join(shapes))
    for name, array in arrays.items():
        values = array.numpy()
        if values.shape != shapes[name]:
            raise InputError(f"the shape of {name}", value=values.shape, allowed=str(shapes[name]))
        if not np.isfinite(values).all():
            raise InputError(f"the values of {name}", value="NaN or infinite", allowed="finite numbers")


def alike(replies: Iterable[Message], failed: Callable[[Message, str], None]) -> list[Message]:
    """The replies whose metrics are those of most others, since Flower averages no others. ``failed`` is told of each
    other one."""
    kept = list(replies)
    forms = [_form(reply) for reply in kept]
    counts = Counter(form for form in forms if form is not None)

    def rank(form: frozenset[tuple[str, int]]) -> tuple[int, int, int]:  # of as many clients, more metrics and numbers
        return counts[form], len(form), sum(length < 0 for _, length in form)

    usual = max(counts, key=rank, default=None)
    for reply, form in zip(list(kept), forms, strict=True):
        if form is None or form != usual:
            kept.remove(reply)
            failed(reply, "its metrics are not those of most clients")
    return kept


def _form(reply: Message) -> frozenset[tuple[str, int]] | None:
    """The names of the metrics and the lengths of lists (-1: a number); None for not exactly one record of them."""
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        return None
    return frozenset((name, len(value) if isinstance(value, list) else -1) for name, value in records[0].items())


def _only(records: Mapping[str, Any], kind: str) -> Any:
    if len(records) != 1:
        raise InputError(f"records of the kind {kind} in the reply", value=len(records), allowed="1")
    return next(iter(records.values()))


def _read(read: Callable[[], Read]) -> Read:
    try:
        return read()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise InputError(place, value=str(first["input"])[:80], allowed=first["msg"]) from error
