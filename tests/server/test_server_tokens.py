"""`wattune token`: create, list and revoke, on both databases."""

from __future__ import annotations

import json
import stat
import time

import pytest
from tests.server.conftest import asked, opened
from tests.support.server import api as made

from wattune_server.security import TOKEN_CACHE_S


def test_token_is_created_used_and_revoked(wattune, database_url, tmp_path):
    code, out, err = wattune(
        "token", "make", "lab", "--scope", "device", "--expires", "90d", "--database", database_url
    )
    assert (code, out.count("\n")) == (0, 1)
    assert "not shown again" in err
    text = out.strip()
    with opened(tmp_path / "store", database_url) as store:
        with asked(store) as client:
            shown = {"Authorization": f"Bearer {text}"}
            assert client.get(made.READ, headers=shown).status_code == 200
            code, out, _ = wattune("token", "list", "--database", database_url)
            assert code == 0
            assert "lab" in out
            assert text not in out
            assert text.split("_", 2)[2] not in out
            assert wattune("token", "revoke", "lab", "--database", database_url)[0] == 0
            time.sleep(TOKEN_CACHE_S)
            assert client.get(made.READ, headers=shown).status_code == 401, "in a server that runs, too"
    (told,) = json.loads(wattune("token", "list", "--json", "--database", database_url)[1])
    assert (told["name"], told["scope"]) == ("lab", "device")
    assert None not in (told["revoked"], told["expires"])
    code, _, err = wattune("token", "revoke", "lab", "--database", database_url)
    assert (code, "unknown token" in err) == (2, True)


def test_new_store_is_private(wattune, tmp_path):
    folder = tmp_path / "fleet"
    assert wattune("token", "make", "a", "--scope", "read", "--store", folder)[0] == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    code, _, err = wattune("token", "make", "a", "--scope", "read", "--store", folder)
    assert (code, "revoke a" in err) == (2, True)
    assert wattune("token", "revoke", "a", "--store", folder)[0] == 0
    assert wattune("token", "make", "a", "--scope", "read", "--store", folder)[0] == 0, "the name is free again"
    assert wattune("token", "list", "--store", tmp_path / "typo")[0] == 2
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("make", "a b", "--scope", "read"), "letters"),
        (("make", "a", "--scope", "root"), "read"),
        (("make", "a", "--scope", "read", "--expires", "soon"), "90d"),
        (("make", "a", "--scope", "read", "--expires", "0d"), "90d"),
        (("make", "a"), "--scope"),
        (("revoke", "a"), "no database in the store"),
        ((), "token --help"),
    ],
)
def test_token_errors_are_one_line(wattune, tmp_path, arguments, said):
    more = () if not arguments else ("--store", tmp_path)
    code, out, err = wattune("token", *arguments, *more)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "and no store was begun"
