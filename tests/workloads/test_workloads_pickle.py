"""Pickles: plain data as Python 2 and 3 write it is read, and nothing else is called, imported or changed."""

import io
import os
import pickle
import pickletools
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workloads.archives_made import python2_pickle

from wattune.errors import WorkloadError
from wattune.workloads import plain_pickle

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 12)


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    "array", [ARRAY, np.asfortranarray(ARRAY), ARRAY.astype(">i4"), ARRAY.astype(np.int64) - 5, ARRAY[:0]]
)
def test_arrays_and_plain_values_as_python_3_writes_them(protocol, array):
    value = {"data": array, "labels": [1, -2, 10**12], "names": ["ä", b"\xff", None, True, 0.5, (1, 2)]}
    read = plain_pickle.loads(pickle.dumps(value, protocol), "x")
    assert np.array_equal(plain_pickle.array(read["data"], "data"), array)
    assert plain_pickle.array(read["labels"], "labels").tolist() == value["labels"]
    assert read["names"] == value["names"]


def test_numbers_of_numpy():
    read = plain_pickle.loads(pickle.dumps([np.int64(3), np.uint8(200)], 2), "x")
    assert plain_pickle.array(read, "x").tolist() == [3, 200]


def test_as_python_2_writes_them():
    read = plain_pickle.loads(python2_pickle({b"data": ARRAY, b"labels": [3, 4], b"names": [b"a.png" * 60]}), "x")
    assert read.keys() == {b"data", b"labels", b"names"}
    assert np.array_equal(plain_pickle.array(read[b"data"], "x"), ARRAY)
    assert (read[b"labels"], read[b"names"]) == ([3, 4], [b"a.png" * 60])


class Calls:
    def __init__(self, function, *values):
        self.call = function, values

    def __reduce__(self):
        return self.call


NAMED = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Calls(os.system, "touch called")), "posix.system"),
        (pickle.dumps(Calls(eval, "1")), "builtins.eval"),
        (pickle.dumps(Calls(getattr, "", "join")), "builtins.getattr"),
        (b"cos\nsystem\n(S'touch called'\ntR.", "os.system"),
        (b"c__builtin__\neval\n(S'1'\ntR.", "__builtin__.eval"),
        (b"cnumpy\nload\n.", "numpy.load"),
        (b"cnumpy.core.multiarray\nfromfile\n.", "fromfile"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0efrombuffer.x.y\x93.", "frombuffer.x.y"),
        (b"(S'touch called'\nios\nsystem\n.", "INST"),
        (b"(cos\nsystem\nS'touch called'\no.", "OBJ"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", "NEWOBJ"),
        (b"Pid\n.", "PERSID"),
        (b"\x82\x01.", "EXT1"),
        (NAMED + b"}(U\x05_makeK\x01ub.", "a change of what makes arrays"),
        (NAMED + b"N}(U\x05_makeK\x01u\x86b.", "a change of what makes arrays"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00bz2tR.", "bz2"),
        (pickle.dumps(np.array([{}, 1], dtype=object), 2), "an array of O8"),
        (pickle.dumps(np.zeros(2, dtype=[("a", "u1"), ("b", "i4")]), 2), "an array of V5"),
        (pickle.dumps(np.array(["a"]), 2), "an array of U1"),
        (b"\x80\x04\x8c\x04a\nb\x1b\x8c\x01x\x93.", r"a\nb\x1b.x"),
        (b"c__builtin__\nbytearray\nK\x09\x85R.", "__builtin__.bytearray"),
        (b"r\xff\xff\xff\x7f.", "LONG_BINPUT"),
        (b"p99999999\n.", "PUT"),
        (b")" + b"\x85" * 20_000 + b".", "20001 tuples"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_what_calls_or_holds_anything_else_is_refused(tmp_path, monkeypatch, content, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError) as caught:
        plain_pickle.loads(content, "batch of x.tar.gz")
    assert "batch of x.tar.gz holds more than plain data" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_is_named_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkloadError, match=r"planted\.x"):
        plain_pickle.loads(b"cplanted\nx\n.", "x")
    assert "planted" not in sys.modules


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x02}",
        b"K\x01",
        b"T\xff\xff\xff\x7fabc.",
        b"h\x05.",
        b"\x80\x63.",
        b"I" + b"9" * 10_000 + b"\n.",
        NAMED + b"(K\x01tb.",
        python2_pickle(ARRAY)[:-20],
    ],
)
def test_what_is_damaged_is_one_line(content):
    with pytest.raises(WorkloadError) as caught:
        plain_pickle.loads(content, "x")
    assert "\n" not in str(caught.value)


def test_shape_and_content_have_to_fit():
    content = python2_pickle(ARRAY)
    assert struct.pack("<i", 12) in content
    with pytest.raises(WorkloadError, match="cannot read"):
        plain_pickle.loads(content.replace(struct.pack("<i", 12), struct.pack("<i", 2**30)), "x")
    for value in ({}, "text", [1, "2"], [True], [2**70], None, ["a"]):
        with pytest.raises(WorkloadError, match="an array or a list of whole numbers"):
            plain_pickle.array(plain_pickle.loads(pickle.dumps(value), "x"), "labels")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.binary(), inner),
)


@given(PLAIN, st.integers(0, 4))
def test_any_plain_value_comes_back(value, protocol):
    assert plain_pickle.loads(pickle.dumps(value, protocol), "x") == value


@settings(max_examples=300)
@given(st.integers(0, 2000), st.binary(max_size=6), st.integers(0, 6), st.sampled_from(range(5)))
def test_any_damage_is_plain_data_or_one_line(place, written, cut, protocol):
    content = pickle.dumps({"data": ARRAY, "labels": [1, 2, 3], "names": [b"abc", "def", (1, "x")]}, protocol)
    place %= len(content)
    damaged = content[:place] + written + content[place + cut :]
    try:
        plain_pickle.loads(damaged, "x")
    except WorkloadError as error:
        assert "\n" not in str(error)  # noqa: PT017 - some are read


def test_the_official_batches_need_no_other_opcodes():
    content = python2_pickle({b"data": ARRAY, b"labels": [1], b"filenames": [b"x"]})
    used = {opcode.name for opcode, _, _ in pickletools.genops(io.BytesIO(content))}
    assert {"SHORT_BINSTRING", "GLOBAL", "REDUCE", "BUILD", "SETITEMS", "APPENDS"} <= used
