"""The page of the tokens: listed, made and revoked by an admin who has signed in, and by nobody else."""

from __future__ import annotations

import time

import pytest
from tests.server.test_server_dashboard_pages import Markup, made_token, shown
from tests.support.server import api

from wattune.server.dashboard import token_pages
from wattune.server.security import TOKEN_CACHE_S
from wattune.server.store import tokens

OURS = {"Origin": "http://127.0.0.1:8484"}


@pytest.fixture
def admin(client, store):
    """A browser in which an admin has signed in."""
    text = made_token(store, "boss", "admin")
    form = {"token": text, "next": "/tokens"}
    assert client.post("/login", data=form, headers=OURS, follow_redirects=False).status_code == 303
    return client


def post(client, path, **fields):
    return client.post(path, data=fields, headers=OURS, follow_redirects=False)


def listed(store):
    with store.database.session(reads_only=True) as session:
        return {row.name: row for row in tokens.listing(session)}


def test_token_is_shown_once_and_authenticates(admin, store):
    before_s = time.time()
    answer = post(admin, "/tokens", name="nano-1", scope="device", device="nano-1", days="90")
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    [text] = [word for word in Markup(answer.text).text.split() if word.startswith("wt_")]
    page = admin.get("/tokens").text
    assert text not in page
    assert text.split("_", 2)[2] not in page
    row = listed(store)["nano-1"]
    assert (row.scope, row.device) == ("device", "nano-1")
    assert before_s + 90 * 86400 <= row.expires_s <= time.time() + 90 * 86400
    headers = {"Authorization": f"Bearer {text}"}
    assert admin.put("/v1/devices/nano-1", json=api.status("nano-1"), headers=headers).status_code == 204
    api.problem(admin.put("/v1/devices/nano-2", json=api.status("nano-2"), headers=headers), 403)


def test_token_is_revoked(admin, store):
    text = made_token(store, "old", "read")
    answer = post(admin, "/tokens/old/revoke")
    assert (answer.status_code, answer.headers["location"]) == (303, "/tokens")
    assert listed(store)["old"].revoked_s is not None
    time.sleep(TOKEN_CACHE_S)
    api.problem(admin.get("/v1/models", headers={"Authorization": f"Bearer {text}"}), 401)
    actions = [a["action"] for a in shown(admin, "/tokens").all("form")]
    assert "/tokens/boss/revoke" in actions
    assert "/tokens/old/revoke" not in actions
    assert post(admin, "/tokens/old/revoke").status_code == 404
    # One's own: the session ends with it.
    assert post(admin, "/tokens/boss/revoke").status_code == 303
    assert admin.get("/tokens", follow_redirects=False).status_code == 401


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "a b"}, "token name: a b"),
        ({"name": "boss"}, "a token with this name exists"),
        ({"name": "a", "scope": "read", "device": "nano-1"}, "a device name for a token of this scope"),
        ({"name": "a", "device": "a/b"}, "device name: a/b"),
        ({"name": "a", "days": "0"}, "days: 0; allowed: 1 to 3650"),
        ({"name": "a", "days": "9" * 60}, "allowed: 1 to 3650"),
    ],
)
def test_invalid_token_is_refused_and_the_form_kept(admin, store, fields, says):
    before = api.contents(store)
    answer = post(admin, "/tokens", **{"scope": "device", **fields})
    page = Markup(answer.text)
    assert answer.status_code == 422
    assert says in page.text
    assert next(a["value"] for a in page.all("input") if a.get("name") == "name") == fields["name"]
    assert api.contents(store) == before


def test_server_without_tokens_makes_none(client, store):
    """Every user of the machine is an admin there: none of them may make what outlives that, or lock the others out."""
    page = shown(client, "/tokens")
    assert "wattune token make NAME --scope admin" in page.text
    assert not [a for a in page.all("form") if a["action"].startswith("/tokens")]
    refused = client.post("/tokens", data={"name": "a", "scope": "admin"})
    assert "wattune token make" in api.problem(refused, 403)["hint"]
    assert not listed(store)


def test_only_admins_see_the_link(client, store):
    assert "Tokens" in shown(client, "/").text
    text = made_token(store, "looker", "read")
    headers = {"Authorization": f"Bearer {text}", "Accept": "text/html"}
    assert "/tokens" not in client.get("/", headers=headers).text
    assert client.get("/tokens", headers=headers).status_code == 403


def test_tokens_are_found_by_name_or_device(admin, store, monkeypatch):
    with store.database.session() as session:
        tokens.make(session, "boss-of-old", "admin", 1.0)
        for index in range(4):
            tokens.make(session, f"lab-{index}", "device", 1.0, device=f"nano-{index}")
    rows = {
        a["action"].split("/")[2] for a in shown(admin, "/tokens?find=nano-2").all("form") if "revoke" in a["action"]
    }
    assert rows == {"lab-2"}
    assert 'No token has "x9" in its name' in shown(admin, "/tokens?find=x9").text
    with store.database.session() as session:
        tokens.revoke(session, "boss-of-old", 1.0)
    monkeypatch.setattr(token_pages, "PAGE_ROWS", 3)
    page = shown(admin, "/tokens")
    assert "Showing 3 of 6 tokens" in page.text
    assert "boss-of-old" not in page.text, "valid ones come first"
