"""The table of one GPU, tried with tiny networks on the CPU and a library that answers as NVIDIA's does."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks import gpu_table, timing
from benchmarks.gpu_table import GPT, NETWORKS, Network
from benchmarks.tx2_recordings import ResNet50
from tests.support.fake_nvml import CardTree, FakeGpu, FakeLibrary, install

TINY = {
    "resnet50": Network(lambda: ResNet50(1000, ((2, 1, 1), (4, 1, 2))), (3, 32, 32), ((), 1000), (2, 4)),
    "gpt124m": Network(lambda: GPT(1, 8, 16, 8), (8,), ((8,), 16), (2,)),
}


@pytest.mark.slow
def test_everything_is_measured_and_nothing_is_set(monkeypatch, tmp_path):
    gpu = FakeGpu()
    library = install(monkeypatch, tmp_path, FakeLibrary(gpu))
    monkeypatch.setattr(gpu_table, "Tree", lambda: CardTree(tmp_path, library))
    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu_table, "PAIRS", 1)
    runs = tmp_path / "runs.csv"
    runs.write_text("batch_size,seed,samples_to_target\n3,0,1000\n1,0,500\n")
    gpu_table.main(["--seconds", "0.3", "--steps", "200", "--samples", f"resnet50={runs}"], networks=TINY, wave_s=0.3)
    found = json.loads((tmp_path / "gpu_table.json").read_text())
    places = [(cell["network"], cell["batch_size"], cell["micro_batch_size"]) for cell in found["cells"]]
    assert places == [("resnet50", 2, 2), ("resnet50", 4, 2), ("resnet50", 4, 4), ("gpt124m", 2, 2)]
    for cell in found["cells"]:
        assert cell["power_w"] == pytest.approx(150.0, rel=0.1)
        assert cell["sample_j"] == pytest.approx(cell["power_w"] * cell["step_s"] / cell["batch_size"])
        assert cell["counted_j"] > 0
    [row] = found["to_target"]["resnet50"]  # nothing that small was measured for the other run
    assert (row["batch_size"], row["measured_at"]) == (3, 2)
    assert row["energy_j"] == pytest.approx(1000 * found["cells"][0]["sample_j"])
    assert found["guard"]["equal"] is True
    assert found["device"]["name"] == "NVIDIA A30"
    assert found["averaging"]["refresh_s"]["energy_j"] > 0
    assert gpu.changes == []


@pytest.mark.parametrize(("name", "millions"), [("resnet50", 25.6), ("gpt124m", 124.4)])
def test_networks_have_their_published_sizes(name, millions):
    with torch.device("meta"):
        model = NETWORKS[name].build()
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(1e6 * millions, rel=0.005)
