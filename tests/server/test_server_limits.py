"""Limits from the environment."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import anyio
import pytest

from wattune.errors import InputError
from wattune_server.limits import Limits, _Body, limits_from_environment
from wattune_server.problems import Problem

DOCS = Path(__file__).parents[2] / "docs" / "server.md"


def test_limits_come_from_the_environment(monkeypatch):
    before = Limits()
    monkeypatch.setenv("WATTUNE_LIMIT_RATE_PER_S", "500")
    monkeypatch.setenv("WATTUNE_LIMIT_BURST", "7")
    assert limits_from_environment() == before.model_copy(update={"rate_per_s": 500.0, "burst": 7})


@pytest.mark.parametrize(("name", "value"), [("BURST", "many"), ("BURST", "0"), ("HEADERS_S", "-1")])
def test_invalid_limit_is_a_one_line_error(monkeypatch, name, value):
    monkeypatch.setenv(f"WATTUNE_LIMIT_{name}", value)
    with pytest.raises(InputError, match=f"WATTUNE_LIMIT_{name}: {value}") as refusal:
        limits_from_environment()
    assert "\n" not in str(refusal.value)


def test_the_documentation_names_every_limit():
    named = set(re.findall(r"`WATTUNE_LIMIT_(\w+)`", DOCS.read_text()))
    assert named == {field.upper() for field in Limits.model_fields}


def test_a_byte_now_and_then_does_not_hold_a_connection():
    """The deadline is that of the whole body, and moves with its bytes."""

    async def refused(size: int) -> int | None:
        async def receive():
            await anyio.sleep(0.02)
            return {"type": "http.request", "body": b"x" * size, "more_body": True}

        reader = _Body(receive, 10**9, Limits(body_s=0.2), Counter(), "192.0.2.1")
        try:
            for _ in range(50):
                await reader.receive()
        except Problem as problem:
            return problem.status
        return None

    assert anyio.run(refused, 1) == 408
    assert anyio.run(refused, 50_000) is None
