"""`wattune-server token`: create, list and revoke, on both databases."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time

import pytest
from tests.server.conftest import asked, opened
from tests.support.server import api as made

from wattune_server.security import TOKEN_CACHE_S


def test_token_is_created_used_and_revoked(command, database_url, tmp_path):
    code, out, err = command(
        "token", "make", "lab", "--scope", "device", "--expires", "90d", "--database", database_url
    )
    assert (code, out.count("\n")) == (0, 1)
    assert "not shown again" in err
    text = out.strip()
    with opened(tmp_path / "store", database_url) as store:
        with asked(store) as client:
            shown = {"Authorization": f"Bearer {text}"}
            assert client.get(made.READ, headers=shown).status_code == 200
            code, out, _ = command("token", "list", "--database", database_url)
            assert code == 0
            assert "lab" in out
            assert text not in out
            assert text.split("_", 2)[2] not in out
            assert command("token", "revoke", "lab", "--database", database_url)[0] == 0
            time.sleep(TOKEN_CACHE_S)
            assert client.get(made.READ, headers=shown).status_code == 401, "in a server that runs, too"
    (told,) = json.loads(command("token", "list", "--json", "--database", database_url)[1])
    assert (told["name"], told["scope"]) == ("lab", "device")
    assert None not in (told["revoked"], told["expires"])
    code, _, err = command("token", "revoke", "lab", "--database", database_url)
    assert (code, "unknown token" in err) == (2, True)


def test_new_store_is_private(command, tmp_path):
    folder = tmp_path / "fleet"
    assert command("token", "make", "a", "--scope", "read", "--store", folder)[0] == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    code, _, err = command("token", "make", "a", "--scope", "read", "--store", folder)
    assert (code, "revoke a" in err) == (2, True)
    assert command("token", "revoke", "a", "--store", folder)[0] == 0
    assert command("token", "make", "a", "--scope", "read", "--store", folder)[0] == 0, "the name is free again"
    assert command("token", "list", "--store", tmp_path / "typo")[0] == 2
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
def test_token_errors_are_one_line(command, tmp_path, arguments, said):
    more = () if not arguments else ("--store", tmp_path)
    code, out, err = command("token", *arguments, *more)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "and no store was begun"


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["sqlalchemy", "uvicorn"])
def test_a_missing_package_is_one_line_that_names_the_extra(missing, tmp_path):
    program = (
        f"import sys; sys.modules[{missing!r}] = None; "
        "from wattune_server.cli.main import main; sys.exit(main(['token', 'list']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{missing}; pip install 'wattune[server]'" in done.stderr


def test_a_store_whose_database_is_elsewhere_gets_no_second_one(command, tmp_path):
    (tmp_path / "lock").touch()  # a server was here
    for arguments in (["list"], ["make", "a", "--scope", "read"]):
        code, _, said = command("token", *arguments, "--store", tmp_path)
        assert (code, "WATTUNE_DATABASE" in said) == (2, True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]
