"""Initial weights, layers that begin anew, layers that do not train, and the built-in models."""

from functools import reduce

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from workloads_made import tiny_cnn

from wattune.algorithms.parts import parts
from wattune.errors import WorkloadError
from wattune.workloads import MODELS, Model
from wattune.workloads.mobilenet import MobileNetV2
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
    def test_are_loaded_but_for_the_layers_that_begin_anew(self, weights):
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

    def test_of_a_module_that_the_user_has_stay_but_for_the_layers_that_begin_anew(self):
        trained = tiny_cnn()
        model = Model(trained, reinitialise=("fc",))(0)
        assert torch.equal(model.conv1.weight, trained.conv1.weight)
        assert not torch.equal(model.fc.weight, trained.fc.weight)

    def test_can_be_made_when_they_are_first_needed(self, weights):
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
            (lambda state: {n: t for n, t in state.items() if "conv1" not in n}, "lacks: conv1.weight"),
            (lambda state: {**state, "head.weight": torch.ones(1)}, "beyond the model: head.weight"),
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
    def test_only_what_is_named_trains(self):
        model = Model(tiny_cnn, train_only=("fc", "conv1"))(0)
        assert {n for n, p in model.named_parameters() if p.requires_grad} == {"conv1.weight", "fc.weight", "fc.bias"}

    def test_names_that_are_not_there_are_refused(self):
        with pytest.raises(WorkloadError, match="head; allowed: conv1, norm1"):
            Model(tiny_cnn, reinitialise=("head",))(0)
        with pytest.raises(WorkloadError, match="head; allowed: conv1, norm1"):
            Model(tiny_cnn, train_only=("fc", "head"))(0)

    def test_a_layer_that_cannot_begin_anew_is_refused(self):
        with pytest.raises(WorkloadError, match=r"0.*reset_parameters"):
            Model(nn.Sequential(Raw()), reinitialise=("0",))(0)

    def test_a_model_without_anything_to_train_is_refused(self):
        with pytest.raises(WorkloadError, match="no parameter that trains"):
            Model(nn.Sequential(nn.ReLU()))(0)


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

    @pytest.mark.parametrize("name", MODELS)
    def test_the_parts_of_a_model_are_its_forward_pass(self, name):
        model = find(MODELS[name], "the model")().eval()
        x = torch.randint(96, (2, 16)) if name == "character-transformer" else torch.randn(2, 3, 32, 32)
        found = parts(model)
        assert len(found) >= 4
        assert {id(p) for part in found for p in part.parameters()} == {id(p) for p in model.parameters()}
        with torch.no_grad():
            assert torch.equal(reduce(lambda value, part: part(value), found, x), model(x))

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
