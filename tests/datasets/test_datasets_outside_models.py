"""Models of libraries that the user may have: here, packages of the same names and signatures."""

import pickle
import sys

import pytest
import torch

from wattune.datasets.outside_models import build, outside_model
from wattune.errors import WorkloadError
from wattune.workloads import Model, load_workload
from wattune.workloads.models import LIBRARIES

FILE = """
name = "outside"
input_shape = [3, 16, 16]
batch_sizes = [4]
budget_samples = 64
data = { source = "digits", size = 16 }

[model]
name = "NAME"
options = { OPTIONS }
"""

# Signatures as in timm 1.0 (timm/models/_factory.py, _registry.py) and torchvision 0.20 (torchvision/models/_api.py).
TIMM = """
import torch

KNOWN = {"tiny_net": 4, "wide_net": 8}

def is_model(model_name):
    return model_name.split(".", 1)[0] in KNOWN

def list_models(filter="", module="", pretrained=False):
    return sorted(KNOWN)

def create_model(model_name, pretrained=False, pretrained_cfg=None, **kwargs):
    assert not pretrained
    return Net(KNOWN[model_name.split(".", 1)[0]], **kwargs)

class Net(torch.nn.Module):
    def __init__(self, width, num_classes=1000, in_chans=3):
        super().__init__()
        self.body = torch.nn.Conv2d(in_chans, width, 3)
        self.head = torch.nn.Linear(width, num_classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))
"""

TORCHVISION = """
import torch

BUILDERS = {}

def register(fn):
    BUILDERS[fn.__name__] = fn
    return fn

@register
def tiny_net(*, weights=None, progress=True, num_classes=1000):
    assert weights is None
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, num_classes))

def list_models(module=None, include=None, exclude=None):
    return sorted(BUILDERS)

def get_model(name, **config):
    if name.lower() not in BUILDERS:
        raise ValueError(f"Unknown model {name.lower()}")
    return BUILDERS[name.lower()](**config)
"""


@pytest.fixture
def nothing(monkeypatch):
    """None of the libraries is installed, whatever there is on this machine."""
    for library in LIBRARIES:
        for name in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """Both are there, in a folder of their own."""
    folder = tmp_path / "site"
    (folder / "timm").mkdir(parents=True)
    (folder / "timm" / "__init__.py").write_text(TIMM)
    (folder / "torchvision" / "models").mkdir(parents=True)
    (folder / "torchvision" / "__init__.py").write_text("")
    (folder / "torchvision" / "models" / "__init__.py").write_text(TORCHVISION)
    monkeypatch.syspath_prepend(folder)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in LIBRARIES}
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        del sys.modules[name]
    sys.modules.update(before)


def workload(folder, name, options="classes = 10"):
    path = folder / "workload.toml"
    path.write_text(FILE.replace("NAME", name).replace("OPTIONS", options))
    return load_workload(path)


@pytest.mark.parametrize("name", ["timm:tiny_net", "timm:wide_net.a1_in1k", "torchvision:tiny_net"])
def test_a_model_is_built_with_the_workloads_classes(libraries, tmp_path, name):
    found = workload(tmp_path, name)
    assert found.output_shape == (10,)
    one, same, other = found.model(0), found.model(0), found.model(1)
    assert torch.equal(next(one.parameters()), next(same.parameters()))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    assert found.model_fingerprint() == workload(tmp_path, name).model_fingerprint()
    assert pickle.loads(pickle.dumps(found.model))(0)(torch.zeros(2, 3, 16, 16)).shape == (2, 10)  # a sweep's processes


def test_channels_are_what_timm_calls_in_chans(libraries, tmp_path):
    found = workload(tmp_path, "timm:tiny_net", "classes = 10, channels = 1")
    assert found.model(0)(torch.zeros(2, 1, 16, 16)).shape == (2, 10)


def test_initial_weights_and_a_new_head_are_as_for_any_model(libraries, tmp_path):
    model = Model(outside_model("timm:tiny_net"), {"classes": 7}, reinitialise=("head",), train_only=("head",))(0)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("timm:tinny_net", "", "no model of timm has the name: tinny_net; allowed: tiny_net"),
        ("torchvision:tinynet", "", "no model of torchvision has the name: tinynet; allowed: tiny_net"),
        ("timm:zzz", "", "no model of timm has the name: zzz; allowed: a model of timm"),
        ("timm:", "", "no model of timm has the name"),
        ("timm:tiny_net", "pretrained = true", "option pretrained of the model timm:tiny_net"),
        ("torchvision:tiny_net", 'weights = "DEFAULT"', "give a safetensors file as weights of [model]"),
        ("torchvision:tiny_net", "channels = 1", "unexpected keyword argument 'channels'"),
        ("timm:tiny_net", "depth = 1", "unexpected keyword argument 'depth'"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(libraries, tmp_path, name, options, words):
    with pytest.raises(WorkloadError) as caught:
        workload(tmp_path, name, options).model(0)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_not_installed_is_named(nothing, tmp_path, library):
    with pytest.raises(WorkloadError) as caught:
        workload(tmp_path, f"{library}:resnet18")
    assert f"the model {library}:resnet18 needs {library}, which is not installed" in str(caught.value)
    assert f"pip install {library}" in str(caught.value)
    with pytest.raises(WorkloadError, match="not installed"):
        build(library, "resnet18", classes=2)


def test_a_library_that_cannot_be_imported_says_why(libraries, tmp_path):
    (libraries / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms')")
    with pytest.raises(WorkloadError, match=r"cannot be imported: RuntimeError: operator torchvision::nms"):
        workload(tmp_path, "torchvision:tiny_net")
    (libraries / "timm" / "__init__.py").write_text("import a_package_that_timm_needs")
    with pytest.raises(WorkloadError, match=r"cannot be imported: ModuleNotFoundError.*a_package_that_timm_needs"):
        workload(tmp_path, "timm:tiny_net")


def test_nothing_is_imported_before_a_model_is_named(libraries, tmp_path):
    workload(tmp_path, "small-cnn", "classes = 10, channels = 1")
    with pytest.raises(WorkloadError, match="cannot import mypackage:factory"):
        workload(tmp_path, "mypackage:factory")
    assert not {"timm", "torchvision"} & set(sys.modules)
