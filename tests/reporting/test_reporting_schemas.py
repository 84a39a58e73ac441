import json
from pathlib import Path

import jsonschema
import pytest
from tests.support import report_records as samples

from wattune.errors import RecordError
from wattune.reporting.schemas import PUBLIC, schema, write_schemas

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def records():
    run = samples.run()
    kinds = (run.profile, run.efficiency, run.plan, run.training, run.comparison, run.proxy[0])
    kinds += (samples.session(),)
    return {r.name: r for r in kinds}


def test_the_published_schemas_are_those_of_the_records(tmp_path):
    for path in write_schemas(tmp_path):
        published = DOCS / "schemas" / path.name
        assert published.read_text() == path.read_text(), "run python -m wattune.reporting.schemas docs/schemas"
    assert len(list((DOCS / "schemas").iterdir())) == len(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_records_conform_to_their_schemas(name, records):
    checker = jsonschema.Draft202012Validator(schema(PUBLIC[name]))
    checker.check_schema(checker.schema)
    checker.validate(records[name].dump())


def test_the_examples_of_the_documentation_are_valid_and_are_read():
    text = (DOCS / "records.md").read_text()
    examples = [json.loads(part.split("```")[0]) for part in text.split("```json\n")[1:]]
    assert {example["record"] for example in examples} == {"profile", "efficiency", "plan"}
    for example in examples:
        name = example["record"]
        jsonschema.validate(example, schema(PUBLIC[name]))
        record = PUBLIC[name].parse(example)
        assert json.loads(json.dumps(record.dump())).items() >= {k: example[k] for k in ("record", "version")}.items()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_field_is_documented(name):
    text = (DOCS / "records.md").read_text()
    for part in (schema(PUBLIC[name]), *schema(PUBLIC[name])["$defs"].values()):
        for field in part["properties"]:
            described = f"{text}{part.get('description')}"
            assert f"`{field}`" in described, f"{field} of {name} is neither in docs/records.md nor in its docstring"


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("record", "plan"),
        ("version", 2),
        ("version", 0),
        ("cells", None),
        ("device", 3),
        ("cells", [{"batch_size": 0}]),
    ],
)
def test_schema_and_reader_refuse_the_same_values(change, value, records):
    broken = {**records["profile"].dump(), change: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema(PUBLIC["profile"]))
    with pytest.raises(RecordError):
        PUBLIC["profile"].parse(broken)


@pytest.mark.parametrize(("field", "value"), [("step_s", 0), ("step_s", -1), ("power_peak_w", "4 W"), ("steps", 0)])
def test_the_limits_of_numbers_are_in_the_schema(field, value, records):
    cell = {**records["profile"].dump()["cells"][0], field: value}
    broken = {**records["profile"].dump(), "cells": [cell]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema(PUBLIC["profile"]))
    with pytest.raises(RecordError):
        PUBLIC["profile"].parse(broken)


def test_unknown_fields_and_a_missing_origin_are_fine(records):
    data = {**records["profile"].dump(), "mine": [1], "provenance": None}
    jsonschema.validate(data, schema(PUBLIC["profile"]))
    assert PUBLIC["profile"].parse(data).dump()["mine"] == [1]
