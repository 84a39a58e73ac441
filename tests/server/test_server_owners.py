"""What is one's own: a device token writes for one device, and may fill a part of the queue."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
from tests.server.conftest import asked, opened
from tests.support.server import api as made
from tests.support.server.served import model, request

from wattune_server import api, dashboard
from wattune_server.limits import Limits
from wattune_server.store import model_catalog, tokens

GRANTS = {"read": {"read"}, "device": {"read", "device"}, "admin": {"read", "device", "admin"}}
"""What a token of each scope may do."""


@pytest.fixture
def local(store):
    """The API of a store that offers a model, on each database."""
    with store.database.session() as session:
        model_catalog.put(session, model(), 0.0)
    with asked(store) as client:
        yield client


def writes(device):
    """Everything that a device writes in its own name."""
    return (
        ("PUT", f"/v1/devices/{device}", made.status(device)),
        ("POST", f"/v1/profiles?device={device}", made.profile()),
        ("POST", f"/v1/trainings?device={device}", made.training()),
    )


def test_token_writes_for_its_device_only(local, store):
    named, own = made.token(store, "device", "a", device="nano-a"), made.token(store, "device", "nano-a")
    for method, path, body in (*writes("nano-a"), *writes("nano-a")):
        for token in (named, own):
            assert local.request(method, path, json=body, headers=token).status_code in (200, 201, 204), path
    local.app.state.statuses.flush()
    before = made.contents(store)
    for method, path, body in writes("nano-b"):
        told = made.problem(local.request(method, path, json=body, headers=own), 403)
        assert (told["value"], told["allowed"]) == ("nano-b", "nano-a")
        assert "--device nano-b" in told["hint"]
    assert made.contents(store) == before


def post(client, headers, **changes):
    body = request(**{"strategy": "full", "seeds": 2, **changes}).model_dump(mode="json")
    return client.post("/v1/jobs", json=body, headers=headers)


def test_one_token_cannot_fill_the_queue(tmp_path):
    with opened(tmp_path / "store", limits=Limits(sweeps_per_token=3)) as store:
        with store.database.session() as session:
            model_catalog.put(session, model(), 0.0)
        with asked(store) as client:
            greedy, other, admin = (
                made.token(store, scope, name) for name, scope in zip("abc", ("device", "device", "admin"), strict=True)
            )
            states = [post(client, greedy, target=0.5 + n / 1000).status_code for n in range(5)]
            assert states == [201, 201, 201, 429, 429]
            assert "open sweeps of one token" in made.problem(post(client, greedy), 429)["detail"]
            assert post(client, other).status_code == 201
            assert [post(client, admin, target=0.6 + n / 1000).status_code for n in range(5)] == [201] * 5
            again = post(client, greedy, target=0.5)
            assert again.status_code == 200, "the same again is no other sweep"
            cancel = f"/jobs/{again.json()['job']}/cancel"
            assert client.post(cancel, headers=admin, follow_redirects=False).status_code == 303
            assert post(client, greedy, target=0.55).status_code == 201
            assert post(client, greedy, target=0.5).status_code == 429, "started again, a job counts again"


# -------------------------------------------------------------------------------------------------------- every route


class Call(NamedTuple):
    """A request. ``scope``: the least that may do it; None: everybody. ``limited``: only on what is one's own.

    ``form``: the body is a form of a page, and carries the CSRF token.
    """

    method: str
    path: str
    scope: str | None
    body: Any = None
    limited: bool = False
    form: bool = False


ID = "0" * 32

READ = ("jobs/{job}", "jobs/{job}/curve", "models/{name}", "models/{name}/weights", "profiles/{profile}")
CALLS = [
    *(Call("GET", f"/v1/{path}", "read") for path in (*READ, "trainings/{training}")),
    Call("GET", "/v1/models?architecture=resnet8&input_shape=3x32x32", "read"),
    Call("GET", "/healthz", None),
    Call("GET", "/readyz", None),
    Call("GET", "/metrics", "read"),
    Call("PUT", "/v1/devices/{name}", "device", made.status, limited=True),
    Call("POST", "/v1/jobs", "device", lambda device: request().model_dump(mode="json")),
    Call("DELETE", "/v1/models/{name}", "admin"),
    Call("POST", "/v1/profiles?device={name}", "device", lambda device: made.profile(), limited=True),
    Call("POST", "/v1/trainings?device={name}", "device", lambda device: made.training(), limited=True),
]
OF_ONE = ("/devices/{name}", "/jobs/{job_id}", "/profiles/{profile_id}", "/runs/{run_id}")
PAGES = [Call("GET", path, "read") for path in ("/", "/jobs", "/profiles", "/runs", "/models", *OF_ONE)]
FORMS = [
    Call("POST", "/jobs/{job_id}/cancel", "admin", form=True),
    Call("POST", "/jobs/{job_id}/retry", "admin", form=True),
    Call("POST", "/logout", "read", form=True),
]
SIGN_IN = {("GET", "/login"), ("POST", "/login")}
KINDS = ("none", "made up", "expired", "revoked", "read", "own", "admin")


def filled(path, device, job):
    """The path of a route, with the names of what is there."""
    name = "digits" if "/models/" in path else device
    return path.format(name=name, job=job, job_id=job, profile=ID, profile_id=ID, training=ID, run_id=ID)


def expected(call, kind, whose):
    """What is allowed: None, or the status of the refusal."""
    if call.scope is None:
        return None
    if kind in ("none", "made up", "expired", "revoked"):
        return 401
    scope = "device" if kind == "own" else kind
    if call.scope not in GRANTS[scope]:
        return 403
    return 403 if call.limited and scope == "device" and whose == "foreign" else None


@pytest.mark.parametrize(
    "calls",
    [*([call] for call in CALLS + FORMS), PAGES],
    ids=lambda calls: f"{calls[0].method} {calls[0].path}" if len(calls) == 1 else "pages",
)
def test_every_route_by_every_token_on_own_and_foreign_objects(tmp_path, calls):
    made_up = f"wt_{'0' * 12}_{'A' * 43}"
    with opened(tmp_path / "store", limits=Limits(failures_per_min=1000)) as store:
        with store.database.session() as session:
            model_catalog.put(session, model(), 0.0)
        with asked(store) as client:
            shown = {
                "none": {},
                "made up": {"Authorization": f"Bearer {made_up}"},
                "expired": made.token(store, "device", "expired", expires_s=1.0),
                "revoked": made.token(store, "device", "revoked"),
                "read": made.token(store, "read"),
                "own": made.token(store, "device", "own", device="mine"),
                "admin": made.token(store, "admin"),
            }
            foreign = made.token(store, "device", "foreign", device="theirs")
            with store.database.session() as session:
                tokens.revoke(session, "revoked", 1.0)
            jobs = {}
            for whose, headers in (("own", shown["own"]), ("foreign", foreign)):
                target = {"own": 0.7, "foreign": 0.8}[whose]
                jobs[whose] = post(client, headers, target=target).json()["job"]
            for call, kind, whose in product(calls, KINDS, ("foreign", "own")):
                device = "theirs" if whose == "foreign" else "mine"
                path = filled(call.path, device, jobs[whose])
                body = None if call.body is None else call.body(device)
                content = {"data": body or {}} if call.form else {"json": body}
                client.app.state.statuses.flush()  # those of the calls before, which are written within a second
                before = made.contents(store)
                answer = client.request(call.method, path, headers=shown[kind], follow_redirects=False, **content)
                wanted = expected(call, kind, whose)
                if wanted is None:
                    assert answer.status_code not in (401, 403), (kind, whose, answer.text)
                else:
                    told = made.problem(answer, wanted)
                    assert made.contents(store) == before, (kind, whose)
                    assert wanted != 401 or (told["hint"] and answer.headers["www-authenticate"].startswith("Bearer"))


def test_the_table_has_every_route():
    calls, pages = (
        {(method, route.path) for route in router.routes for method in route.methods}
        for router in (api.router, dashboard.router)
    )
    assert {(call.method, call.path.partition("?")[0]) for call in CALLS} == calls
    assert {(call.method, call.path) for call in PAGES + FORMS} | SIGN_IN == pages
    assert len(pages) == len(PAGES + FORMS) + 2


@pytest.mark.parametrize("origin", [{}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_forms_of_other_origins_are_refused(store, origin):
    """Also those of a browser that does not say which page they come from."""
    with asked(store) as browser:
        token = made.token(store, "admin", "own")["Authorization"].removeprefix("Bearer ")
        form, ours = {"token": token, "next": "/"}, {"Origin": "http://127.0.0.1:8484"}
        made.problem(browser.post("/login", data=form, headers=origin), 403)
        assert browser.post("/login", data=form, headers=ours, follow_redirects=False).status_code == 303
        before = made.contents(store)
        for call in FORMS:
            path = filled(call.path, "mine", ID)
            made.problem(browser.post(path, data=call.body("x") if call.body else {}, headers=origin), 403)
        made.problem(browser.put("/v1/devices/nano-1", json=made.status(), headers=origin), 403)
        assert made.contents(store) == before
        assert browser.put("/v1/devices/nano-1", json=made.status(), headers=ours).status_code == 204
