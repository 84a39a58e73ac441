"""Strict JSON parsing: agrees with the standard parser on valid input and rejects the rest."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune_server.bodies import VALUES, parse_json
from wattune_server.problems import Problem

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


@given(PLAIN, st.booleans(), st.sampled_from([None, 1]))
def test_valid_json_is_read_unchanged(value, is_ascii, indent):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    found = parse_json(text.encode())
    assert json.dumps(found) == json.dumps(value)


@given(st.integers(), st.sampled_from(["{}", "[{}]", '{{"a":{}}}', "[1, {}]", "[\n{}]", '{{"a": {}}}']))
def test_only_64_bit_integers_are_accepted(value, around):
    for number in (value, value * 2**60, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1):
        text = around.format(number).encode()
        if -(2**63) <= number < 2**63:
            assert json.dumps(parse_json(text)) == json.dumps(json.loads(text))
        else:
            with pytest.raises(Problem, match="JSON"):
                parse_json(text)


@given(st.integers(1, 9), st.integers(-400, 400), st.sampled_from(["{}e{}", "{}.5E{}", "[{}e+{}]", "-{}e{}"]))
def test_only_finite_doubles_are_accepted(digit, exponent, form):
    text = form.format(digit, exponent)
    if "+-" in text:
        return
    number = float(text.strip("[]"))
    if math.isfinite(number):
        assert parse_json(text.encode()) in (number, [number])
    else:
        with pytest.raises(Problem):
            parse_json(text.encode())


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_rejected(content):
    problem: Problem | None = None
    found: Any = None
    try:
        found = parse_json(content)
    except Problem as refused:
        problem = refused
    if problem is None:
        json.dumps(found, allow_nan=False).encode()
    else:
        assert problem.status == 400
        assert str(problem).isprintable()


@pytest.mark.parametrize(
    "text",
    ["NaN", "[-Infinity]", '"\\ud800"', '"\\u0000"', '{"\\u0000": 1}', "", "[" * 1000 + "]" * 1000],
)
def test_what_cannot_be_stored_is_rejected(text):
    with pytest.raises(Problem):
        parse_json(text.encode())


def test_unusual_escapes_are_accepted():
    assert parse_json(b'["\\\\u0000", "\\\\ud800", "\\ud83d\\ude00"]') == ["\\u0000", "\\ud800", "\U0001f600"]


def test_number_of_values_is_limited():
    good = b"[" + b"1," * (VALUES - 2) + b"1]"
    assert len(parse_json(good)) == VALUES - 1
    with pytest.raises(Problem, match="too many values"):
        parse_json(b"[" + b"1," * VALUES + b"1]")
