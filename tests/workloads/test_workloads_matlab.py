"""MATLAB 5 files: what scipy writes is read, and nothing more is believed than is there."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from wattune.errors import WorkloadError
from wattune.workloads import matlab
from wattune.workloads.matlab import read_arrays

TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=4),
    st.sampled_from(TYPES),
    st.booleans(),
    st.text("abXy_", min_size=1, max_size=9),
)
def test_arrays_come_back_as_scipy_reads_them(tmp_path, shape, kind, compress, name):
    name = f"v{name}"
    array = (np.arange(np.prod(shape)) * 3 % 100).reshape(shape).astype(kind)
    savemat(tmp_path / "x", {"before": {"s": 1}, name: array, "after": ["text"]}, do_compression=compress)
    read = read_arrays(tmp_path / "x", (name, "missing"))
    assert list(read) == [name]
    assert read[name].dtype == array.dtype
    assert np.array_equal(read[name], loadmat(tmp_path / "x")[name])


def element(kind, content, order="<"):
    if len(content) <= 4:
        return struct.pack(f"{order}I", len(content) << 16 | kind) + content.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(numbers, order="<", shape=(2, 3), flags=9, kind=2, name=b"X"):
    parts = [(6, struct.pack(f"{order}II", flags, 0)), (5, struct.pack(f"{order}{len(shape)}i", *shape)), (1, name)]
    return b"".join(element(*part, order) for part in [*parts, (kind, numbers)])


def written(path, content, kind=14, order="<", size=None):
    mark = b"\x00\x01IM" if order == "<" else b"\x01\x00MI"
    tag = struct.pack(f"{order}II", kind, len(content) if size is None else size)
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + mark + tag + content)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_orders_of_bytes(tmp_path, order):
    numbers = np.arange(6, dtype=f"{order}i4")
    path = written(tmp_path / "x", matrix(numbers.tobytes(), order, kind=5, flags=12), order=order)
    assert read_arrays(path, ("X",))["X"].tolist() == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    "content",
    [
        matrix(bytes(5)),
        matrix(bytes(6), shape=(-2, -3)),
        matrix(bytes(6), shape=()),
        matrix(bytes(6), shape=(2**31 - 1, 2**31 - 1, 4)),
        matrix(bytes(6), kind=99),
        matrix(bytes(6))[:30],
        element(6, b"1"),
        element(1, bytes(8)),
        struct.pack("<I", 100 << 16 | 6) + bytes(4),
        struct.pack("<II", 6, 2**32 - 1),
        b"",
    ],
)
def test_what_does_not_fit_together_is_one_line(tmp_path, content):
    for path in (
        written(tmp_path / "x", content),
        written(tmp_path / "y", zlib.compress(struct.pack("<II", 14, len(content)) + content), kind=15),
    ):
        with pytest.raises(WorkloadError) as caught:
            read_arrays(path, ("X",))
        assert "cannot read" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_not_wanted_or_no_plain_array_is_passed_over(tmp_path):
    for values in ({"name": b"Y"}, {"flags": 0x0809}, {"flags": 1}, {"flags": 17}):
        assert read_arrays(written(tmp_path / "x", matrix(bytes(6), **values)), ("X",)) == {}
    assert read_arrays(written(tmp_path / "x", bytes(16), kind=2), ("X",)) == {}


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(matlab, "MAX_BYTES", 10_000)
    bomb = zlib.compress(struct.pack("<II", 14, 20_000) + bytes(20_000))
    with pytest.raises(WorkloadError, match="20000 bytes in one array, of at most 10000"):
        read_arrays(written(tmp_path / "x", bomb, kind=15), ("X",))
    with pytest.raises(WorkloadError, match="of at most 10000"):
        read_arrays(written(tmp_path / "x", b"", size=20_000), ("X",))
    more = zlib.compress(struct.pack("<II", 14, 64) + matrix(bytes(6)) + bytes(10**6))
    with pytest.raises(WorkloadError, match="more than the stated 64"):
        read_arrays(written(tmp_path / "x", more, kind=15), ("X",))


def test_a_file_that_is_cut_off_is_refused_wherever_that_is(tmp_path):
    for compress in (True, False):
        savemat(tmp_path / "x", {"X": np.arange(64, dtype=np.uint8)}, do_compression=compress)
        whole = (tmp_path / "x").read_bytes()
        for length in [*range(128), *range(129, len(whole))]:
            (tmp_path / "x").write_bytes(whole[:length])
            with pytest.raises(WorkloadError):
                read_arrays(tmp_path / "x", ("X",))
