"""Location and secret of the cache."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from wattune.errors import OutputError
from wattune.remote.cache import Cache


def test_a_cache_that_cannot_be_written_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"cannot write to .*file.*Not a directory; set XDG_CACHE_HOME"):
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
