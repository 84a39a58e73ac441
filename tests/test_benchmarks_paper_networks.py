"""The paper's networks and image sets: sizes as published, what attention computes, splits, and the page's lines."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.paper.image_sets import cifar, svhn
from benchmarks.paper.mobile_vision import EfficientViT, LinearAttention, MobileNetV2
from scipy.io import savemat
from torch.utils.flop_counter import FlopCounterMode

from wattune.errors import WorkloadError
from wattune.workloads import load_workload

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("factory", "options", "parameters", "pixels", "million"),
    [
        # Sandler et al. 2018, table 4: 3.4 million, 300 million multiply-adds.
        (MobileNetV2, {"classes": 1000, "stem": "imagenet"}, 3_504_872, 224, 300.8),
        # github.com/chenyaofo/pytorch-cifar-models, mobilenetv2_x1_0 for CIFAR-10: 2.24 million, 87.98.
        (MobileNetV2, {}, 2_236_682, 32, 87.98),
        # The same with half the width: 0.70 and 27.97.
        (MobileNetV2, {"width": 0.5}, 700_490, 32, 27.97),
        # github.com/mit-han-lab/efficientvit, applications/efficientvit_cls, B1: 9.1 million, 0.52 billion.
        (EfficientViT, {"classes": 1000, "stem": "imagenet"}, 9_102_024, 224, 519.0),
        # No published figures for 32x32: counted here.
        (EfficientViT, {}, 7_517_034, 32, 164.9),
    ],
)
def test_parameters_and_multiply_adds_are_the_published_ones(factory, options, parameters, pixels, million):
    model = factory(**options).eval()
    assert sum(p.numel() for p in model.parameters()) == parameters
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = model(torch.zeros(1, 3, pixels, pixels))
    assert output.shape == (1, model.fc.out_features)
    assert counter.get_total_flops() / 2e6 == pytest.approx(million, rel=0.002)


@pytest.mark.parametrize("side", [3, 4, 5, 8])
def test_attention_is_every_pixel_over_every_other(side):
    """Both orders of the products against weights written out: relu(q) . relu(k) over their sum."""
    torch.manual_seed(side)
    attention = LinearAttention(32, 16).eval()
    x = torch.randn(2, 32, side, side)
    with torch.no_grad():
        qkv = attention.qkv(x)
        heads = torch.cat([qkv, attention.around(qkv)], 1).view(2, 4, 3, 16, side * side)
        q, k, v = (heads[:, :, at] for at in range(3))
        weights = torch.einsum("bhdi,bhdj->bhij", q.relu(), k.relu())
        mixed = torch.einsum("bhij,bhdj->bhdi", weights / weights.sum(-1, keepdim=True), v)
        wanted = attention.out(mixed.reshape(2, 64, side, side))
        assert torch.allclose(attention(x), wanted, atol=1e-4)


def test_attention_where_relu_leaves_nothing_is_nothing():
    attention = LinearAttention(16, 16).eval()
    with torch.no_grad():
        attention.qkv.weight.zero_()
        assert torch.isfinite(attention(torch.randn(1, 16, 8, 8))).all()


# --------------------------------------------------------------------------------------------------------- image sets


@pytest.fixture
def batches(tmp_path):
    """The binary release of CIFAR-10 with 40 images in a batch, and all images."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (240, 3, 32, 32), dtype=np.uint8)
    labels = (np.arange(240) % 10).astype(np.uint8)
    records = np.concatenate([labels[:, None], images.reshape(240, -1)], axis=1)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        (folder / f"{name}.bin").write_bytes(records[number * 40 : (number + 1) * 40].tobytes())
    return folder, images


def test_cifar_has_its_official_parts_or_the_papers(batches):
    folder, images = batches
    data = cifar(str(folder))
    assert np.array_equal(data.train[0], images[:200])
    assert np.array_equal(data.test[0], images[200:])
    assert data.test[1].tolist() == [n % 10 for n in range(200, 240)]
    assert set(cifar(str(folder), classes=[7, 2]).test[1].tolist()) == {0, 1}
    # A quarter of the training part, a fifth of it to test with.
    data = cifar(str(folder), share=0.25, test_share=0.2, split_seed=1)
    assert (len(data.train[0]), len(data.test[0])) == (40, 10)
    known = {image.tobytes(): n for n, image in enumerate(images[:200])}
    for part in (data.train, data.test):
        for image, label in zip(*part, strict=True):
            assert int(label) == known.pop(image.numpy().tobytes()) % 10  # none twice, none of the official test part


def test_svhn_numbers_the_digit_0_from_0(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10 + 1
    path = str(tmp_path / "train_32x32.mat")
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None]})
    data = svhn(path, path)
    assert np.array_equal(data.train[0], images)
    assert data.test[1].tolist() == (labels % 10).tolist()
    assert [len(part[0]) for part in (svhn(path).train, svhn(path).test)] == [24, 6]


def test_files_of_another_kind_are_refused_in_one_line(batches, tmp_path):
    folder, _ = batches
    savemat(tmp_path / "other.mat", {"X": np.zeros((3, 3))})
    (folder / "data_batch_3.bin").write_bytes(bytes(3072))
    (folder / "test_batch.bin").unlink()
    for read in (lambda: cifar(str(folder), test_share=0.2), lambda: cifar(str(tmp_path)), lambda: cifar(str(folder))):
        with pytest.raises(WorkloadError, match=r"(?i)cifar"):
            read()
    for name, words in (("other.mat", "as in SVHN"), ("none.mat", "cannot read")):
        with pytest.raises(WorkloadError, match=words):
            svhn(str(tmp_path / name))


def test_a_workload_file_names_them_as_the_page_shows(batches, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = (ROOT / "benchmarks" / "paper" / "README.md").read_text()
    (block,) = (b for b in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "benchmarks.paper" in b)
    head = 'name = "paper"\ninput_shape = [3, 32, 32]\nbudget_samples = 128\nbatch_sizes = [4, 8]\ntarget = 0.5\n'
    (tmp_path / "workload.toml").write_text(head + block)
    workload = load_workload(tmp_path / "workload.toml")
    workload.check()
    assert (workload.train_samples, workload.test_samples) == (40, 10)
    assert isinstance(workload.model(0), MobileNetV2)


TABLE_1 = sorted((ROOT / "benchmarks" / "paper" / "table1").glob("*.toml"))


@pytest.mark.parametrize("path", TABLE_1, ids=lambda path: path.stem)
def test_the_workload_files_of_table_1_load(path):
    work = load_workload(path)
    x, y = work.without_weights().example(4)
    model = work.without_weights().model(0)
    assert len(model(x)) == len(y) == 4
    assert hasattr(model, "fc")  # the layer that is drawn again
    for one in (work, work.proxy) if work.proxy else (work,):
        rule = one.optimizer
        assert (rule.name, rule.learning_rate) == (("adamw", 1e-3) if work.task == "language" else ("adam", 5e-4))
    if "resnet18" in work.name or "transformer" in work.name:
        assert work.batch_sizes[-1] == 128
    else:
        assert work.batch_sizes[-1] == 64  # 128 does not fit


def test_the_workload_files_have_the_targets_of_table_1():
    targets = {path.stem: load_workload(path).target for path in TABLE_1}
    assert {name: target for name, target in targets.items() if target is not None} == {
        "resnet18-svhn": 0.92,
        "resnet18-cinic": 0.76,
        "mobilenet-v2-svhn": 0.915,
        "mobilenet-v2-cinic": 0.74,
        "transformer-austen": 0.62,
        "transformer-dickens": 0.61,
    }
