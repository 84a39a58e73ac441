"""Uploads that are small and would become large: what is read of them is limited before it is read."""

from __future__ import annotations

import inspect
import io
import struct
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from tests.support.server import api as made

from wattune.errors import InputError
from wattune.records.served import FACTORIES, OPTION_LIMITS, OPTIONS
from wattune.server.uploads import check_file

MIB = 2**20


def refused(path, content, limit_bytes):
    """Why a file is refused, with no more memory than ``limit_bytes``."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as refusal:
            check_file(path, "npz")
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()
    return str(refusal.value)


@pytest.mark.parametrize("version", [1, 2])
def test_array_header_is_not_read_beyond_its_limit(tmp_path, version):
    """A header of zeros, which is packed a thousandfold."""
    length = {1: 65535, 2: 32 * MIB}[version]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        head = b"\x93NUMPY" + bytes((version, 0)) + struct.pack({1: "<H", 2: "<I"}[version], length)
        archive.writestr("a.npy", head + bytes(length))
    assert "header of a.npy" in refused(tmp_path / "a.npz", file.getvalue(), 4 * MIB)


def directory(count, *, said=None, end=b""):
    """A zip file of a directory alone."""
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    entries = count * entry
    said = min(count if said is None else said, 65535)
    return entries + end + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, said, said, len(entries), 0, 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (directory(20_000), "20000 entries"),
        (directory(20_000, said=1), "1 entries, 940000 bytes"),
        (directory(1, end=struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)), "directory"),
        (made.npz() + b"x", "not that of a zip file"),
        (b"PK", "not that of a zip file"),
    ],
)
def test_directory_is_not_read_beyond_its_limit(tmp_path, content, why):
    assert why in refused(tmp_path / "a.npz", content, MIB)


def test_what_numpy_writes_is_accepted(tmp_path):
    for save, arrays in ((np.savez, 64), (np.savez_compressed, 1)):
        save(tmp_path / "a.npz", **{f"a{n}": np.zeros((3, 2), np.float32) for n in range(arrays)})
        check_file(tmp_path / "a.npz", "npz")


# --------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"options": {"classes": 10**9}}, "0 to 100000"),
        ({"options": {"classes": -1}}, "0 to 100000"),
        ({"options": {"classes": True}}, "a number"),
        ({"options": {"width": "9" * 100}}, "a number"),
        ({"options": {"__class__": "x"}}, "classes, width, channels"),
        ({"options": {"stem": "small"}}, "classes, width, channels"),
        ({"input_shape": [10**6] * 3}, "at most 16777216"),
    ],
)
def test_model_that_no_worker_can_build_is_refused(client, changes, why):
    told = made.problem(client.put("/v1/models/m", json=made.model("m", weights=None, **changes)), 422)
    assert why in told["allowed"]
    assert client.put("/v1/models/m", json=made.model("m", weights=None)).status_code == 201


@pytest.mark.slow
def test_options_are_those_of_the_factories():
    from wattune.workloads.models import MODELS

    assert set(OPTIONS) == set(FACTORIES)
    for name, options in OPTIONS.items():
        parameters = inspect.signature(MODELS[name]).parameters
        assert options == tuple(parameters), name
        numbers = {key for key, parameter in parameters.items() if not isinstance(parameter.default, str)}
        assert numbers <= set(OPTION_LIMITS), name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count private memory")
def test_worker_memory_is_limited():
    code = "from wattune.server.jobs.worker_process import limit_memory; limit_memory(300 << 20); bytearray(400 << 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert "MemoryError" in done.stderr
