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
from torch.utils.flop_counter import FlopCounterMode

from wattune.algorithms.model_parts import parts
from wattune.datasets.graphs import GraphNetwork
from wattune.datasets.mobile_vision import EfficientViT, MobileNetV2, efficientvit_b0, efficientvit_b1
from wattune.datasets.recurrent import Gru
from wattune.errors import WorkloadError
from wattune.workloads import MODELS, Model
from wattune.workloads.models import CharacterTransformer, resnet8, resnet18, resnet20, small_cnn
from wattune.workloads.toml import find


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

    def test_can_come_from_a_callable(self, weights):
        asked = []

        def make():
            asked.append(True)
            return weights

        model = Model(tiny_cnn, {"classes": 7}, weights=make)
        assert not asked
        assert model(0).fc.bias[0] == 3

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

    def test_of_a_folder_are_refused(self, tmp_path):
        with pytest.raises(WorkloadError, match="cannot read the weights"):
            Model(tiny_cnn, weights=tmp_path)(0)


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


def example(name):
    """Inputs of a built-in model as it stands without options."""
    shapes = {"character-transformer": (2, 16), "gru": (2, 12, 1), "graph-network": (2, 30, 2)}
    if name == "character-transformer":
        return torch.randint(96, shapes[name])
    if name == "graph-network":
        return torch.randint(24, shapes[name]).float()
    return torch.randn(shapes.get(name, (2, 3, 32, 32)))


def one_sample(name):
    """A sample of the size that the table in the docs states."""
    if name == "character-transformer":
        return torch.zeros(1, 64, dtype=torch.int64)
    return torch.zeros({"gru": (1, 24, 1), "graph-network": (1, 48, 2)}.get(name, (1, 3, 32, 32)))


def multiply_adds(model, x):
    """Multiply-adds of a forward pass of one sample, by PyTorch's count of matrix products and convolutions."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval().requires_grad_(False)(x)
    return counter.get_total_flops() / 2 / len(x)


class TestBuiltIn:
    @pytest.mark.parametrize("name", MODELS)
    def test_every_registered_name_opens_and_has_a_head(self, name):
        model = find(MODELS[name], "the model")()
        assert isinstance(model.fc, nn.Linear)

    @pytest.mark.parametrize(
        ("model", "millions", "shape"),
        [
            (resnet20(), 0.27, (3, 32, 32)),  # He et al. 2016, table 6: 0.27 million
            (resnet18(classes=1000, stem="imagenet"), 11.69, (3, 64, 64)),  # torchvision's resnet18: 11,689,512
            (resnet18(), 11.17, (3, 32, 32)),
            (resnet8(), 0.078, (3, 32, 32)),
            (small_cnn(), 0.0243, (3, 32, 32)),
            (efficientvit_b0(), 2.14, (3, 32, 32)),
            (efficientvit_b1(classes=7, channels=1), 7.51, (1, 32, 32)),
        ],
    )
    def test_image_models_have_their_size_and_learn(self, model, millions, shape):
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)
        output = model(torch.randn(2, *shape))
        assert output.shape == (2, model.fc.out_features)
        output.sum().backward()
        assert all(p.grad is not None for p in model.parameters())

    def test_mobilenet_has_as_many_parameters_as_torchvisions(self):
        for options, wanted in (({}, 2_236_682), ({"classes": 1000, "stem": "imagenet"}, 3_504_872)):
            model = MobileNetV2(**options)
            assert sum(p.numel() for p in model.parameters()) == wanted
            assert model(torch.randn(2, 3, 64, 64)).shape == (2, model.fc.out_features)

    @pytest.mark.parametrize(
        ("factory", "options", "parameters", "pixels", "million"),
        [
            # Sandler et al. 2018, table 4: 3.4 million, 300 million multiply-adds.
            (MobileNetV2, {"classes": 1000, "stem": "imagenet"}, 3_504_872, 224, 300.8),
            # github.com/chenyaofo/pytorch-cifar-models, mobilenetv2_x1_0 for CIFAR-10: 2.24 million, 87.98.
            (MobileNetV2, {}, 2_236_682, 32, 87.98),
            # The same with other widths: 0.70 and 27.97, 1.37 and 59.31, 4.33 and 170.07.
            (MobileNetV2, {"width": 0.5}, 700_490, 32, 27.97),
            (MobileNetV2, {"width": 0.75}, 1_368_234, 32, 59.31),
            (MobileNetV2, {"width": 1.4}, 4_333_706, 32, 170.07),
            # The same, resnet20: 0.27 million, 40.81.
            (resnet20, {}, 272_474, 32, 40.81),
            # In no paper. Quoted for the ResNet18 of github.com/kuangliu/pytorch-cifar: 11,173,962 and 0.56 billion.
            (resnet18, {}, 11_173_962, 32, 555.4),
            # github.com/mit-han-lab/efficientvit, applications/efficientvit_cls, B1: 9.1 million, 0.52 billion.
            (efficientvit_b1, {"classes": 1000, "stem": "imagenet"}, 9_102_024, 224, 519.0),
            # The authors publish none for B0: counted here.
            (efficientvit_b0, {"classes": 1000, "stem": "imagenet"}, 3_410_008, 224, 100.2),
            # No published figures for 32x32: counted here.
            (efficientvit_b1, {}, 7_517_034, 32, 164.9),
            (efficientvit_b0, {}, 2_141_818, 32, 31.3),
        ],
    )
    def test_parameters_and_multiply_adds_are_the_published_ones(self, factory, options, parameters, pixels, million):
        model = factory(**options)
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert multiply_adds(model, torch.zeros(1, 3, pixels, pixels)) / 1e6 == pytest.approx(million, rel=0.002)

    @pytest.mark.slow
    def test_the_table_in_the_docs_is_right(self):
        text = (Path(__file__).parents[2] / "docs" / "workload-file.md").read_text()
        table = text[text.index("## Models by name") :]
        for name in MODELS:
            row = next(line for line in table.splitlines() if line.startswith("| `") and f"`{name}`" in line)
            _, _, _, parameters, million, options, _ = row.split("|")
            model = find(MODELS[name], "the model")()
            assert sum(p.numel() for p in model.parameters()) == int(parameters.replace(",", "")), name
            counted = multiply_adds(model, one_sample(name)) / 1e6
            assert counted == pytest.approx(float(million.removesuffix(" million ")), rel=0.02), name
            if not options.strip().startswith("as "):
                stated = set(re.findall(r"`(\w+)", options))
                assert stated >= set(signature(find(MODELS[name], "the model")).parameters), name

    def test_the_smaller_models_have_the_parameters_that_their_descriptions_state(self):
        # Our own models, without published figures.
        for model, parameters in ((Gru(), 12_929), (GraphNetwork(), 8_839), (CharacterTransformer(), 4_804_704)):
            assert sum(p.numel() for p in model.parameters()) == parameters

    @pytest.mark.parametrize("name", [name for name in MODELS if name != "graph-network"])
    def test_the_parts_of_a_model_are_its_forward_pass(self, name):
        model = find(MODELS[name], "the model")().eval()
        x = example(name)
        modules = parts(model)
        assert len(modules) >= (3 if name == "gru" else 4)
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
        with pytest.raises(WorkloadError, match=r"multiple of its 6 heads.*head_width = 42"):
            Model(CharacterTransformer, {"heads": 6})(0)
        with pytest.raises(WorkloadError, match="head_width of a transformer: 0"):
            Model(CharacterTransformer, {"head_width": 0})(0)
        with pytest.raises(WorkloadError, match="unknown variant of EfficientViT: b7; allowed: b0, b1"):
            Model(EfficientViT, {"variant": "b7"})(0)
        with pytest.raises(WorkloadError, match="unknown stem of EfficientViT: big"):
            Model(efficientvit_b0, {"stem": "big"})(0)
        with pytest.raises(WorkloadError, match="dropout of a gru with one layer"):
            Model(Gru, {"dropout": 0.1})(0)
        with pytest.raises(WorkloadError, match="width of the model gru: 0"):
            Model(Gru, {"width": 0})(0)
        with pytest.raises(WorkloadError, match="nodes of the graph-network: -1"):
            Model(GraphNetwork, {"nodes": -1})(0)
        with pytest.raises(WorkloadError, match=r"shape of the graphs: \(2, 5, 3\)"):
            GraphNetwork()(torch.zeros(2, 5, 3))
        with pytest.raises(WorkloadError, match="at most 64"):
            CharacterTransformer()(torch.zeros(1, 65, dtype=torch.int64))
