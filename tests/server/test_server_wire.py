"""Privacy on the wire: no training sample is among the bytes of a whole run."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.support.server.serving import serving
from tests.support.server.story import ENVIRONMENT, offer, own_data, small
from tests.support.server.wire import Detector, recorded

from wattune.records import TrainingRecord
from wattune_server.store.schema import TrainingRow

WATCHED = """
import sys
with open(sys.argv[1], "a") as log:
    def note(event, values):
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            log.write(f"{values[1]!r}\\n")
            log.flush()
    sys.addaudithook(note)
    from wattune.cli import main
    sys.exit(main(sys.argv[2:]))
"""
"""The command, with a list of every address that it connects to."""


@pytest.mark.slow
def test_no_training_sample_leaves_the_device(tmp_path):
    data = own_data(tmp_path / "my.npz")
    offer(tmp_path / "store", *small())
    with serving(tmp_path / "store") as server, recorded(server.url) as wire:
        command = [sys.executable, "-c", WATCHED, str(tmp_path / "connected"), "run", "--server", wire.url]
        command += ["--model", "small-digits", "--device", "sim:jetson-nano", "--cap", "4.2W", "--set", "name=watched"]
        command += ["--data", str(data), "-o", str(tmp_path / "run"), "--compare"]
        environment = {**ENVIRONMENT, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (training,) = server.rows(TrainingRow, device="watched")
        delivered = TrainingRecord.parse(server.json(f"/v1/trainings/{training.id}"))
    local = TrainingRecord.load(tmp_path / "run" / "training.json")
    fingerprint = local.provenance.data
    keyed = delivered.provenance.data
    assert keyed.startswith(fingerprint.split("-")[0])
    assert keyed != fingerprint
    assert delivered == local.model_copy(update={"provenance": local.provenance.model_copy(update={"data": keyed})})

    # It is all of it: nothing went anywhere else, and the records are in it.
    port = wire.url.rpartition(":")[2]
    connected = (tmp_path / "connected").read_text().splitlines()
    assert connected
    assert {line for line in connected if f", {port})" not in line} == set()
    up = bytes(wire.up)
    assert fingerprint.split("-")[1].encode() not in up
    assert wire.connections >= 1
    for record in (b'"record": "profile"', b'"record": "training"'):
        assert record in up
    assert b"PUT /v1/devices/watched" in up
    assert not re.search(rb"(?i)^(content|transfer)-encoding:", up, re.MULTILINE)  # or it would have to be undone

    kept = np.load(data)
    assert Detector(kept["images"]).finds(up) == []
    # Nor do the labels in their order, or what the device has learned.
    labels = np.lib.stride_tricks.sliding_window_view(kept["labels"], 24)
    assert Detector(labels).finds(up) == []
    learned = [v.ravel() for v in load_file(tmp_path / "run" / "model.safetensors").values() if v.size >= 16]
    for tensor in learned:
        assert Detector(tensor[None, :4096].astype(np.float32)).finds(up) == []
    # The same detector finds the initial weights on their way down.
    first = load_file(next((tmp_path / "cache").rglob("*.safetensors")))
    assert Detector(first["fc.weight"].reshape(1, -1)).finds(bytes(wire.down))
