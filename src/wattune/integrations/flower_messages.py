"""Messages of a fleet on Flower: what a client offers, what it is asked to do, and what it answers.

Whatever a client sends is checked before it is used: a client that answers nonsense counts as failed for the round.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from pydantic import Field, ValidationError

from wattune.errors import InputError
from wattune.planning.fleet import LocalPoint
from wattune.records import PointRecord
from wattune.records.base import BatchSize, NotNegative, Positive, Value, in_words

OFFER = "wattune-offer"
"""Record of an offer: asked for by a train message that has one, and answered with the client's points."""

POINT = "wattune-point"
"""Entry of the configuration: the operating point, as JSON in the flat form of records."""

Read = TypeVar("Read")

LOCAL_STEPS, BATCH_SIZE = "local-steps", "batch-size"
SECONDS, JOULES, WATTS, STEPS = "wattune-seconds", "wattune-joules", "wattune-watts", "wattune-steps"


class _OfferedPoint(PointRecord):
    step_s: Annotated[Positive, Field(ge=1e-6, le=1e6)]
    power_w: Annotated[Positive, Field(le=1e6)]


class _Offer(Value):
    points: tuple[_OfferedPoint, ...]


class RoundFigures(Value):
    """Figures of a client's round, from the metrics of its reply."""

    seconds: Positive = Field(alias=SECONDS)
    joules: NotNegative = Field(alias=JOULES)
    steps: BatchSize = Field(alias=STEPS)


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
        points.append(LocalPoint(row.point, row.step_s, row.power_w))
    return tuple(points)


def metrics_of(reply: Message) -> Any:
    """The metrics of a reply. Raises: InputError."""
    return _only(reply.content.metric_records, "MetricRecord")


def figures_of(reply: Message) -> RoundFigures:
    """The figures in a reply. Raises: InputError."""
    return _read(lambda: RoundFigures.model_validate(dict(metrics_of(reply))))


def check_weight(reply: Message, name: str) -> None:
    """Check that a reply has the metric that it is weighted by. Raises: InputError."""
    weight = metrics_of(reply).get(name)
    if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise InputError(f"the metric {name}", value=weight, allowed="a number above 0")


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


def alike(replies: Sequence[Message], failed: Callable[[Message, str], None]) -> list[Message]:
    """Keep the replies with the same metrics as most others, the only ones that Flower averages.

    ``failed`` is called with each other reply. Every reply has one record of metrics.
    """
    forms = [_form(metrics_of(reply)) for reply in replies]
    counts = Counter(forms)
    usual, kept = max(counts, key=lambda form: (counts[form], len(form)), default=None), []
    for reply, form in zip(replies, forms, strict=True):
        if form == usual:
            kept.append(reply)
        else:
            failed(reply, "most clients have other metrics")
    return kept


def _form(metrics: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
    """The names of metrics, and the lengths of lists (-1: a number)."""
    return frozenset((name, len(value) if isinstance(value, list) else -1) for name, value in metrics.items())


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
        raise InputError(place, value=str(first["input"])[:80], allowed=in_words(first)) from error
