"""Initial weights, layers that are reinitialised, layers that do not train, and the built-in models."""

import re
from functools import reduce
from inspect import signature
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.support.workload_files import tiny_cnn
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from wattune.algorithms.model_parts import parts
from wattune.errors import WorkloadError
from wattune.workloads import MODELS, Model
from wattune.workloads.models import Attention, CharacterTransformer, resnet8, resnet18, resnet20, small_cnn


@pytest.fixture
def weights(tmp_path):
    trained = tiny_cnn(classes=7)
    with torch.no_grad():
        for tensor in trained.state_dict().values():
            tensor.fill_(3)
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


class TestWeights:
    def test_are_loaded_except_for_reinitialised_layers(self, weights):
        model = Model(tiny_cnn, weights=weights, reinitialise=("fc", "norm3"))
        one, other = model(0), model(1)
        for name, tensor in one.state_dict().items():
            if name.startswith("norm3"):
                assert set(tensor.flatten().tolist()) <= {0, 1}
            elif not name.startswith("fc"):
                assert torch.equal(tensor, torch.full_like(tensor, 3))
        assert one.fc.weight.shape == (3, 16)
        assert not torch.equal(one.fc.weight, other.fc.weight)
        assert torch.equal(one.fc.weight, model(0).fc.weight)

    def test_of_a_users_module_stay_except_for_reinitialised_layers(self):
        trained = tiny_cnn()
        model = Model(trained, reinitialise=("fc",))(0)
        assert torch.equal(model.conv1.weight, trained.conv1.weight)
        assert not torch.equal(model.fc.weight, trained.fc.weight)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda state: state, "shape of fc.bias in the weights weights.safetensors: (7,); allowed: (3,)"),
            (lambda state: {n: t for n, t in state.items() if "conv1" not in n}, "lack: conv1.weight"),
            (lambda state: {**state, "head.weight": torch.ones(1)}, "do not belong to the model: head.weight"),
            (lambda state: {**state, "conv1.weight": state["conv1.weight"] * float("nan")}, "NaN"),
        ],
    )
    def test_of_another_model_are_refused_in_one_line(self, weights, tmp_path, change, words):
        classes = 3 if "fc.bias" in words else 7
        save_file(change(tiny_cnn(classes=7).state_dict()), tmp_path / "weights.safetensors")
        with pytest.raises(WorkloadError) as caught:
            Model(tiny_cnn, {"classes": classes}, weights=weights)(0)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("content", [None, b"", b"not tensors", "cut"])
    def test_that_cannot_be_read_are_refused(self, weights, content):
        whole = weights.read_bytes()
        weights.unlink()
        if content is not None:
            weights.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
        with pytest.raises(WorkloadError, match="weights"):
            Model(tiny_cnn, {"classes": 7}, weights=weights)(0)


class Raw(nn.Module):
    """A layer without reset_parameters."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.scale * x


class TestParts:
    def test_only_named_layers_train(self):
        model = Model(tiny_cnn, train_only=("fc", "conv1"))(0)
        assert {n for n, p in model.named_parameters() if p.requires_grad} == {"conv1.weight", "fc.weight", "fc.bias"}

    def test_unknown_names_are_refused(self):
        with pytest.raises(WorkloadError, match="head; allowed: conv1, norm1"):
            Model(tiny_cnn, reinitialise=("head",))(0)
        with pytest.raises(WorkloadError, match="head; allowed: conv1, norm1"):
            Model(tiny_cnn, train_only=("fc", "head"))(0)

    def test_a_layer_that_cannot_be_reinitialised_is_refused(self):
        with pytest.raises(WorkloadError, match=r"0.*reset_parameters"):
            Model(nn.Sequential(Raw()), reinitialise=("0",))(0)

    def test_a_model_without_trainable_parameters_is_refused(self):
        with pytest.raises(WorkloadError, match="no trainable parameter"):
            Model(nn.Sequential(nn.ReLU()))(0)


def one_sample(name):
    """A sample of the size that the table in the docs states."""
    if name == "character-transformer":
        return torch.randint(96, (1, 64))
    return torch.randn(1, 3, 32, 32)


def multiply_adds(model, x):
    """Multiply-adds of a forward pass of one sample, by PyTorch's count of matrix products and convolutions."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval().requires_grad_(False)(x)
    return counter.get_total_flops() / 2 / len(x)


class TestBuiltIn:
    @pytest.mark.parametrize(
        ("model", "millions", "shape"),
        [
            (resnet20(), 0.27, (3, 32, 32)),  # He et al. 2016, table 6: 0.27 million
            (resnet18(classes=1000, stem="imagenet"), 11.69, (3, 64, 64)),  # torchvision's resnet18: 11,689,512
            (resnet18(), 11.17, (3, 32, 32)),
            (resnet8(), 0.078, (3, 32, 32)),
            (small_cnn(), 0.0243, (3, 32, 32)),
        ],
    )
    def test_image_models_have_their_size_and_learn(self, model, millions, shape):
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)
        output = model(torch.randn(2, *shape))
        assert output.shape == (2, model.fc.out_features)
        output.sum().backward()
        assert all(p.grad is not None for p in model.parameters())

    @pytest.mark.slow
    def test_the_table_in_the_docs_is_right(self):
        text = (Path(__file__).parents[2] / "docs" / "workload-file.md").read_text()
        table = text[text.index("## Models by name") :]
        for name in MODELS:
            row = next(line for line in table.splitlines() if line.startswith("| `") and f"`{name}`" in line)
            _, _, _, parameters, million, options, _ = row.split("|")
            model = MODELS[name]()
            assert sum(p.numel() for p in model.parameters()) == int(parameters.replace(",", "")), name
            counted = multiply_adds(model, one_sample(name)) / 1e6
            assert counted == pytest.approx(float(million.removesuffix(" million ")), rel=0.02), name
            if not options.strip().startswith("as "):
                stated = set(re.findall(r"`(\w+)", options))
                assert stated >= set(signature(MODELS[name]).parameters), name

    @pytest.mark.parametrize("name", MODELS)
    def test_the_parts_of_a_model_are_its_forward_pass(self, name):
        model = MODELS[name]().eval()
        x = one_sample(name)
        modules = parts(model)
        assert len(modules) >= 4
        assert {id(p) for part in modules for p in part.parameters()} == {id(p) for p in model.parameters()}
        with torch.no_grad():
            assert torch.equal(reduce(lambda value, part: part(value), modules, x), model(x))

    def test_the_transformer_does_not_see_what_comes_after(self):
        model = CharacterTransformer(vocabulary=20, length=16, layers=2, heads=4, width=32).eval()
        text = torch.randint(20, (1, 16))
        changed = text.clone()
        changed[0, 10:] = (text[0, 10:] + 1) % 20
        with torch.no_grad():
            same = torch.isclose(model(text), model(changed), atol=1e-5).all(-1)[0]
        assert same.tolist() == [True] * 10 + [False] * 6

    def test_options_that_do_not_exist_are_refused_in_one_line(self):
        with pytest.raises(WorkloadError, match="'depth'"):
            Model(resnet8, {"depth": 3})(0)
        with pytest.raises(WorkloadError, match="small, imagenet"):
            Model(resnet18, {"stem": "big"})(0)
        with pytest.raises(WorkloadError, match="multiple of its 6 heads"):
            Model(CharacterTransformer, {"heads": 6})(0)
        with pytest.raises(WorkloadError, match="at most 64"):
            CharacterTransformer()(torch.zeros(1, 65, dtype=torch.int64))


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_attention_is_pytorchs(heads):
    torch.manual_seed(0)
    attention = Attention(12, heads)
    x = torch.randn(2, 5, 12)
    q, k, v = attention.qkv(x).view(2, 5, 3, heads, 12 // heads).permute(2, 0, 3, 1, 4)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    assert torch.allclose(attention(x), attention.out(wanted), atol=1e-5)
