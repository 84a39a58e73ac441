"""Location and permissions of the cache."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from wattune.errors import OutputError
from wattune.remote.cache import Cache

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without users of this kind")


@pytest.fixture
def fallback(tmp_path, monkeypatch):
    """The folder that stands in for a cache that cannot be written."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"wattune-{os.getuid()}"


def test_temporary_cache_folder_is_private(fallback):
    fallback.mkdir(mode=0o777)
    fallback.chmod(0o777)
    assert Cache("http://host").folder.is_relative_to(fallback)
    assert stat.S_IMODE(fallback.stat().st_mode) == 0o700


def test_folder_of_another_user_is_rejected(fallback, monkeypatch):
    fallback.mkdir()
    real, own = os.lstat, os.getuid()
    monkeypatch.setattr("os.getuid", lambda: own)
    monkeypatch.setattr("pathlib.Path.lstat", lambda self: os.stat_result((*real(self)[:4], own + 1, *real(self)[5:])))
    with pytest.raises(OutputError, match="another user"):
        Cache("http://host")


def test_symlink_of_another_user_is_rejected(fallback, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    fallback.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="another user"):
        Cache("http://host")


def test_the_secret_is_the_machines_own_and_stays(tmp_path):
    here, there = Cache("http://host", tmp_path / "here"), Cache("http://host", tmp_path / "there")
    assert here.secret() == Cache("http://host", tmp_path / "here").secret()
    assert here.secret() != there.secret()
    assert len(here.secret()) == 32


def test_processes_that_begin_together_have_one_secret_and_a_damaged_one_is_made_again(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Cache("http://host", tmp_path).secret(), range(8)))
    assert len(set(found)) == 1
    Cache("http://host", tmp_path).put("secret", "key", "no hex")
    assert len(Cache("http://host", tmp_path).secret()) == 32
