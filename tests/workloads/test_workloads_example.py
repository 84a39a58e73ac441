"""The built-in example and the reference set."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from wattune.workloads import REFERENCE_VERSION, example_workload, reference_workloads
from wattune.workloads.example import PRETRAINING, pretrained


def test_the_example_is_pretrained_once_on_first_use(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("wattune.workloads.example.PRETRAINING", replace(PRETRAINING, budget_samples=2 * 64))
    workload = example_workload()
    assert workload.without_weights().model_fingerprint() == workload.model_fingerprint()
    assert list(tmp_path.rglob("*")) == []
    progress = []
    example_workload(lambda done, total, what: progress.append((done, total)))
    assert progress == [(1, 2), (2, 2)]
    (file,) = tmp_path.rglob("*.safetensors")
    written = file.stat().st_mtime_ns
    example_workload(lambda done, total, what: pytest.fail("it is there"))
    assert workload.model(0)
    assert file.stat().st_mtime_ns == written
    assert {path.name for path in tmp_path.rglob("*")} == {"wattune", file.name}


def test_weights_go_to_the_temporary_folder_if_the_cache_is_not_writable(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("wattune.workloads.example.PRETRAINING", replace(PRETRAINING, budget_samples=2 * 64))
    assert pretrained().is_relative_to(tmp_path)
    assert pretrained() == pretrained()


@pytest.mark.slow
def test_the_pretrained_example_knows_only_the_first_digits():
    workload = example_workload()
    workload.check()
    workload.proxy.check()
    assert workload.check_proxy() == []
    new = workload.model(0)
    assert workload.evaluate(new) < 0.5
    assert not torch.equal(new.fc.weight, workload.model(1).fc.weight)
    knowing = PRETRAINING.model(0)
    knowing.load_state_dict(load_file(pretrained()))
    assert PRETRAINING.evaluate(knowing) > 0.95
    assert torch.equal(knowing.stem[0].weight, new.stem[0].weight)


def test_the_reference_set_of_this_version_is_unchanged():
    # Another set needs another version: worst-case clocks are compared by it.
    assert REFERENCE_VERSION == 2
    sizes = {w.name: (sum(p.numel() for p in w.model(0).parameters()), w.batch_sizes) for w in reference_workloads()}
    assert sizes == {
        "reference-resnet20": (272474, (128,)),
        "reference-transformer": (4804704, (128,)),
        "reference-wide-mlp": (10512394, (128,)),
        "reference-wide-cnn": (447626, (128,)),
        "reference-depthwise-cnn": (33898, (128,)),
    }


@pytest.mark.slow
def test_the_reference_set_can_be_trained():
    for workload in reference_workloads():
        workload.check()
