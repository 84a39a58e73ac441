"""Schemathesis tests from the OpenAPI document: no response is a 5xx, and each matches the document."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Store, opened
from tests.support.server import dashboard as rows

from wattune.server.application import create_app
from wattune.server.limits import Limits

ROOT = Path(__file__).parents[2]

PROMISED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)

EXAMPLES = 40
"""Requests for each operation, kind of path (made up, or of what is there) and kind of body (right, wrong)."""


def explore(store: Store, examples: int) -> dict[str, int]:
    """Send them, and fail at the first answer that breaks a promise; gives how many answers had which status."""
    import requests
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.checks import CHECKS, load_all_checks
    from schemathesis.generation import GenerationMode
    from starlette.testclient import TestClient

    load_all_checks()
    checks = CHECKS.get_by_names(PROMISED)
    there = rows.fill(store)
    app = create_app(store.settings, store.database, store.files)
    paths = {
        "name": rows.MODEL.model,
        "job": there["done"],
        "profile": there["profile"],
        "training": there["runs"][0],
        "batch_size": 4,
        "seed": 0,
    }
    counted: dict[str, int] = {}
    with TestClient(app, base_url="http://127.0.0.1:8484") as client:
        schema = schemathesis.openapi.from_dict(client.get("/v1/openapi.json").json())

        def send(case: Any) -> None:
            request = requests.Request(**case.as_transport_kwargs(base_url="http://127.0.0.1:8484")).prepare()
            response = client.request(
                request.method or "", request.url or "", content=request.body, headers=request.headers
            )
            counted[str(response.status_code)] = counted.get(str(response.status_code), 0) + 1
            case.validate_response(response, checks=checks)

        for result in schema.get_all_operations():
            operation = result.ok()
            known = {one.name: paths[one.name] for one in operation.path_parameters if one.name in paths}
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                for given_paths in [{}, known] if known else [{}]:
                    more = {"path_parameters": given_paths} if given_paths else {}
                    strategy = operation.as_strategy(generation_mode=mode, **more)
                    run = settings(
                        max_examples=examples,
                        deadline=None,
                        database=None,
                        derandomize=True,
                        suppress_health_check=list(HealthCheck),
                    )(given(case=strategy)(send))
                    with suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
                        run()
    return counted


def run_apart(folder: Path, url: str, examples: int) -> dict[str, int]:
    """In a process of its own: schemathesis loads libraries that warn."""
    command = [sys.executable, "-m", "tests.server.test_server_schema", str(folder), url, str(examples)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    counted: dict[str, int] = json.loads(done.stdout)
    assert counted["200"] > 20
    assert counted["201"] > 0
    assert counted["422"] > 20
    return counted


@pytest.mark.slow
def test_responses_match_the_openapi_description(database_url, tmp_path):
    run_apart(tmp_path / "store", database_url, EXAMPLES)


if __name__ == "__main__":
    folder, url, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with opened(folder, url, limits=Limits(rate_per_s=1e6, burst=10**6)) as opened_store:
        print(json.dumps(explore(opened_store, number)))
