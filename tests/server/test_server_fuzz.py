"""Requests near to right ones: no answer is a 5xx, and each refusal is a problem document."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.conftest import asked, opened
from tests.support.server import api as made
from tests.support.server import dashboard as rows

from wattune_server.limits import Limits

CALLS = [
    ("PUT", "/v1/devices/nano-1", made.status()),
    ("POST", "/v1/jobs", {"model": "resnet8-digits", "strategy": "full", "seeds": 2, "batch_sizes": [4, 8]}),
    ("POST", "/v1/profiles?device=nano-1", made.profile()),
    ("POST", "/v1/trainings?device=nano-1", made.training()),
]
TEXTS = st.text(max_size=9)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


def changed(draws, body):
    """A body with another value somewhere, or one more."""
    if not isinstance(body, (dict, list)) or not body or draws.draw(st.integers(0, 4)) == 0:
        return draws.draw(VALUES)
    keys = st.sampled_from(sorted(body)) | TEXTS if isinstance(body, dict) else st.integers(0, len(body) - 1)
    key, fresh = draws.draw(keys), body.copy()
    fresh[key] = changed(draws, body[key]) if isinstance(body, list) or key in body else draws.draw(VALUES)
    return fresh


@pytest.fixture
def client(database_url, tmp_path):
    with opened(tmp_path / "store", database_url, limits=Limits(rate_per_s=1e6, burst=10**6)) as store:
        rows.fill(store)
        with asked(store) as found:
            yield found


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_any_body_is_taken_or_refused(client, method, path, body):
    seen = set()

    @settings(max_examples=150)
    @given(st.data())
    def send(draws):
        content = json.dumps(changed(draws, body)).encode()
        answer = client.request(method, path, content=content, headers={"Content-Type": "application/json"})
        seen.add(answer.status_code)
        if answer.status_code >= 300:
            assert answer.status_code in (400, 404, 422)
            made.problem(answer, answer.status_code)

    send()
    assert seen & {200, 201, 204}
    assert 422 in seen
    client.app.state.statuses.flush()
    for page in ("/", "/devices/nano-1", "/jobs", "/profiles", "/runs"):
        assert client.get(page).status_code == 200
