"""Workload files."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from wattune.errors import InputError
from wattune.workloads import Augmentation, Npz, OptimizerRule, load_workload
from wattune.workloads.example import Digits
from wattune.workloads.models import resnet8

ROOT = Path(__file__).parents[2]

SMALL = """
name = "digits"
input_shape = [1, 32, 32]
budget_samples = 256
target = 0.5

[model]
name = "small-cnn"
options = { classes = 10, channels = 1 }

[data]
source = "digits"
"""


def written(folder, text):
    path = folder / "workload.toml"
    path.write_text(text)
    return path


def example_in_docs():
    text = (ROOT / "docs" / "workload-file.md").read_text()
    return re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]


def made_images(path, samples, classes):
    draws = np.random.default_rng(samples)
    images = draws.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(samples) % classes)


def test_a_small_file_takes_the_defaults(tmp_path):
    workload = load_workload(written(tmp_path, SMALL))
    workload.check()
    assert (workload.name, workload.task, workload.metric.name) == ("digits", "classification", "accuracy")
    assert workload.batch_sizes == (4, 8, 16, 32, 64, 128)
    assert workload.evaluate_every == 128
    assert workload.proxy is None
    assert workload.data == Digits()


@pytest.mark.parametrize("file", ["docs", "example"])
def test_the_annotated_files_work_on_images_of_the_users_own(tmp_path, file):
    text = example_in_docs() if file == "docs" else (ROOT / "examples/real-images/workload.toml").read_text()
    path = written(tmp_path, text)
    workload = load_workload(path)
    assert workload.without_weights().model_fingerprint()  # before there are data or weights
    (tmp_path / "cifar10").mkdir()
    made_images(tmp_path / "cifar10" / "train.npz", 300, 10)
    made_images(tmp_path / "cifar10" / "test.npz", 100, 10)
    save_file(resnet8(classes=100).state_dict(), tmp_path / "resnet8.safetensors")
    workload.check()
    assert (workload.train_samples, workload.test_samples) == (150, 50)
    assert workload.data == Npz(
        *(tmp_path / "cifar10" / name for name in ("train.npz", "test.npz")), classes=(5, 6, 7, 8, 9)
    )
    assert workload.proxy.data.classes == (0, 1, 2, 3, 4)
    assert workload.proxy.target < workload.target
    assert workload.proxy.optimizer == workload.optimizer
    assert workload.check_proxy() == []
    x, _ = next(workload.batches(8, seed=0))
    assert workload.model(0)(x).shape == (8, 5)
    assert 0 <= workload.evaluate(workload.model(0)) <= 1


def test_the_annotated_file_states_the_defaults(tmp_path):
    text = example_in_docs()
    full = load_workload(written(tmp_path, text))
    needed = {"name", "input_shape", "budget_samples"}
    top = text[: text.index("[model]")]
    lines = [line for line in top.splitlines() if line.split(" = ")[0] in needed]
    short = load_workload(written(tmp_path, "\n".join([*lines, 'model = "resnet8"', 'data = { source = "digits" }'])))
    for field in ("task", "data_type", "batch_sizes", "micro_batch_sizes", "host_s_per_sample", "loss", "metric"):
        assert getattr(full, field) == getattr(short, field), field
    assert full.optimizer == short.optimizer == OptimizerRule()
    assert short.augmentation == Augmentation()


def test_the_annotated_file_has_every_key(tmp_path):
    """The error about an unknown key lists the known keys; each of them is documented."""
    documented = example_in_docs()
    for text in (
        SMALL.replace("name =", "nam =", 1),
        SMALL.replace("[model]", "[model]\nunknown = 1"),
        SMALL.replace("[data]", "[data]\nunknown = 1"),
        SMALL + "[optimizer]\nunknown = 1",
        SMALL + "[augmentation]\nunknown = 1",
        SMALL + "[metric]\nunknown = 1",
    ):
        with pytest.raises(InputError, match="unknown key") as caught:
            load_workload(written(tmp_path, text))
        for key in re.search("allowed: (.*)", str(caught.value))[1].split("; ")[0].split(", "):
            assert re.search(rf"^(# )?(\[{key}\]|{key} = )", documented, re.MULTILINE), key


def test_a_text_goes_with_the_transformer(tmp_path):
    (tmp_path / "train.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    workload = load_workload(
        written(
            tmp_path,
            """
            name = "text"
            task = "language"
            input_shape = [16]
            batch_sizes = [4, 8]
            budget_samples = 64
            target = 0.5
            data = { source = "text", train = "train.txt", vocabulary = "ascii" }
            [model]
            name = "character-transformer"
            options = { length = 16, width = 32, layers = 1, heads = 2 }
            """,
        )
    )
    workload.check()
    assert workload.metric.name == "character_accuracy"
    assert 0 <= workload.evaluate(workload.model(0)) <= 1


MODULE = """
import torch
from torch import nn
from wattune.workloads import Data

def model(width):
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))

def data(samples=20):
    x = torch.randn(samples, 4)
    return (x, x.sum(1)), (x, x.sum(1))

def loss(output, target):
    return (output[:, 0] - target).abs().mean()

def worst(output, target):
    return (output[:, 0] - target).abs().max()

def optimizer(model, batch_size):
    return torch.optim.SGD(model.parameters(), lr=batch_size / 1000)

number = 5
"""

OWN = """
name = "own"
task = "regression"
input_shape = [4]
batch_sizes = [4, 8]
budget_samples = 8
target = 0.5
loss = "mypieces:loss"
metric = { function = "mypieces:worst", direction = "min" }
optimizer = { factory = "mypieces:optimizer" }
model = { name = "mypieces:model", options = { width = 3 } }
data = { source = "factory", factory = "mypieces:data", options = { samples = 12 } }
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mypieces.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mypieces", None)


def test_the_users_modules_are_found_beside_the_file(own):
    workload = load_workload(written(own, OWN))
    workload.check()
    assert workload.train_samples == 12
    assert workload.metric.name == "mypieces:worst"
    model = workload.model(0)
    assert workload.optimizer(model, 8).param_groups[0]["lr"] == 0.008
    assert workload.optimizer_key() == "mypieces:optimizer"
    assert workload.evaluate(model) > 0


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("mypieces:loss", "mypieces:lost", "cannot import mypieces:lost"),
        ("mypieces:loss", "mypiece:loss", "No module named 'mypiece'"),
        ("mypieces:loss", "mypieces:number", "allowed: a callable"),
        ("mypieces:optimizer", "optimizer", '"package.module:name"'),
        ("mypieces:optimizer", ":", "cannot import"),
        ('direction = "min"', 'direction = "down"', "max, min"),
        ("width = 3", "depth = 3", "depth"),
        ("samples = 12", "count = 12", "count"),
        ("samples = 12", "samples = 0", "at least 1"),
    ],
)
def test_errors_of_the_users_code_are_one_line(own, before, after, words):
    with pytest.raises(InputError) as caught:
        load_workload(written(own, OWN.replace(before, after))).check()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('name = "digits"\n', "", "name is missing"),
        ("budget_samples = 256", "", "budget_samples is missing"),
        ("budget_samples", "budget", "unknown key in the workload: budget; allowed: name"),
        ("budget_samples", "budget", "proxy; did you mean budget_samples?"),
        ("target = 0.5", "target = 1.5", "workload.toml: target of the metric accuracy: 1.5"),
        ("target = 0.5", "target = nan", "nan"),
        ("target = 0.5", "target = 'auto'", "workload.toml: target: 80% of the way to the plateau; allowed: a number"),
        ("[data]", "[proxy]\ntarget = 'soon'\ndata = { source = 'digits' }\n[data]", "[proxy]: target: soon"),
        ("[1, 32, 32]", "[1, 32, 32.5]", "32.5"),
        ("[1, 32, 32]", "32", "list of whole numbers"),
        ("[1, 32, 32]", "[]", "inputs of shape ()"),
        ('"small-cnn"', '"resnet-8"', "character-transformer"),
        ('"small-cnn"', "5", "unknown model: 5"),
        ("options = { classes = 10, channels = 1 }", "options = 3", "options of the model: 3"),
        ("classes = 10", "klasses = 10", "klasses"),
        ('"digits"\ninput', "5\ninput", "name of the workload: 5"),
        (
            'source = "digits"',
            'source = "web"',
            "digits, factory, image-folders, npz, text",
        ),
        ('source = "digits"', 'source = "npz"\ntrain = "no.npz"', "no.npz"),
        ('source = "digits"', 'source = "text"\ntrain = "a.txt"', "input_shape of a text"),
        ('source = "digits"', 'source = "digits"\nclasses = [12]', "[12]"),
        ('source = "digits"', 'source = "digits"\nsize = 28', "(1, 28, 28)"),
        ("[data]", "[optimizer]\nname = 'adam'\n[data]", "learning_rate is missing in [optimizer]"),
        ("[data]", "[optimizer]\nname = 'lion'\nlearning_rate = 1\n[data]", "adam, adamw, sgd"),
        ("[data]", "[proxy]\ntarget = 0.5\n[data]", "data is missing in [proxy]"),
        ("[data]", "[proxy]\ntarget = 2\ndata = { source = 'digits' }\n[data]", "workload.toml, [proxy]: target"),
        ("[data]", "[proxy.proxy]\ntarget = 0.5\n[data]", "unknown key in [proxy]: proxy"),
        ("[data]", "[[data]]", "[data]: [{"),
        ("[data]", "weights = ''\n[data]", "weights"),
        ("[data]", "reinitialise = 'fc'\n[data]", "reinitialise: fc"),
        ("[data]", "reinitialise = ['head']\n[data]", "conv1"),
        ("[data]", "[data", "cannot read"),
    ],
)
def test_errors_are_one_line(tmp_path, before, after, words):
    assert before in SMALL
    with pytest.raises(InputError) as caught:
        load_workload(written(tmp_path, SMALL.replace(before, after, 1))).check()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_toml_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such workload file"):
        load_workload(tmp_path / "no.toml")
    with pytest.raises(InputError, match="cannot read"):
        load_workload(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot read"):
        load_workload(tmp_path / "binary.toml")


VALUES = st.sampled_from(["-1", "0", "1e999", "nan", "true", '""', '"x"', "[]", "[[1]]", "{}", "{ a = 1 }", "9" * 18])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_value_gives_a_workload_or_a_one_line_error(tmp_path, data):
    lines = (ROOT / "examples/real-images/workload.toml").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    places = [index for index, line in enumerate(lines) if " = " in line]
    index = data.draw(st.sampled_from(places))
    lines[index] = f"{lines[index].split(' = ')[0]} = {data.draw(VALUES)}"
    if data.draw(st.booleans()):
        del lines[data.draw(st.integers(0, len(lines) - 1))]
    try:
        load_workload(written(tmp_path, "\n".join(lines)))
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - some are workloads


def test_the_own_batch_size_is_the_targets_and_not_the_proxys(tmp_path):
    top = "batch_sizes = [8, 16]\nbatch_size = 16\n"
    proxy = '[proxy]\nbatch_sizes = [4, 8]\n[proxy.data]\nsource = "digits"\n'
    workload = load_workload(written(tmp_path, top + SMALL + proxy))
    assert workload.batch_size == 16
    assert workload.proxy.batch_size is None


def test_half_of_its_own_data_is_a_proxy(tmp_path):
    workload = load_workload(written(tmp_path, 'proxy = "split"\nbatch_sizes = [8, 16]\nbatch_size = 16\n' + SMALL))
    proxy = workload.proxy
    assert (proxy.name, proxy.batch_size, proxy.proxy) == (f"{workload.name}-half", None, None)
    assert proxy.train_samples == workload.train_samples // 2
    assert proxy.test_samples == workload.test_samples // 2
    assert proxy.model_fingerprint() == workload.model_fingerprint()
    workload.check_proxy()
    with pytest.raises(InputError, match="split"):
        load_workload(written(tmp_path, 'proxy = "spilt"\n' + SMALL))
