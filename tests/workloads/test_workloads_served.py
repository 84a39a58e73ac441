"""A server's description of a model, and the workloads that are made of it."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tests.support.workload_files import classification, image_data

from wattune.errors import RecordError, WorkloadError
from wattune.records.served import FACTORIES, ServedFile, ServedModel, ServedOptimizer, ServedProxy
from wattune.workloads import (
    MODELS,
    Augmentation,
    Npz,
    OptimizerRule,
    device_workload,
    example_workload,
    load_workload,
    proxy_workload,
    served_example,
    served_model,
)
from wattune.workloads.example import PRETRAINING, pretrained
from wattune.workloads.models import small_cnn
from wattune.workloads.optimizers import OPTIMIZERS, SCALINGS

TEXT = "abcdefgh " * 60
SHA = "a" * 64


@pytest.fixture
def short(monkeypatch):
    """The example's weights, trained for two steps: which they are does not matter here."""
    monkeypatch.setattr("wattune.workloads.example.PRETRAINING", replace(PRETRAINING, budget_samples=2 * 64))
    path = pretrained()
    return path, ServedFile(sha256=hashlib.sha256(path.read_bytes()).hexdigest(), bytes=path.stat().st_size)


def no_file(sha256):
    raise AssertionError(f"nothing needs the file {sha256}")


def made(**changes):
    values = {
        "model": "made",
        "factory": "small-cnn",
        "options": {"classes": 3, "width": 4, "channels": 1},
        "input_shape": [1, 8, 8],
        "batch_sizes": [4, 8],
        "budget_samples": 64,
        "target": 0.5,
        "proxy": {"data": {"source": "npz", "train": f"sha256:{SHA}"}},
        **changes,
    }
    return ServedModel.parse({"record": "model", **values})


def npz(path: Path, samples=40) -> Path:
    data = image_data()
    with path.open("wb") as file:  # to the name as it is: by its path numpy would put ".npz" behind it
        np.savez(file, images=data.train[0][:samples].numpy(), labels=data.train[1][:samples].numpy())
    return path


def test_a_description_names_built_in_models_and_all_of_them():
    assert set(FACTORIES) == set(MODELS)


def test_a_description_has_the_optimizer_and_the_augmentation_of_a_workload():
    assert {f.name: f.default for f in fields(OptimizerRule)} == ServedOptimizer().model_dump()
    for rule in (dict.fromkeys(OPTIMIZERS), dict.fromkeys(SCALINGS)):
        field = "name" if "adam" in rule else "scaling"
        assert set(ServedOptimizer.model_fields[field].annotation.__args__) == set(rule)
    assert set(made().augmentation.model_dump()) == {f.name for f in fields(Augmentation)}


@pytest.mark.slow
def test_the_served_example_trains_the_examples_proxy(short):
    weights, file = short
    model = ServedModel.parse(served_example(file).dump())  # as it comes over the wire
    assert model.model == "resnet8-digits"
    proxy, own = proxy_workload(model, weights, no_file), example_workload().proxy
    assert proxy.fingerprint() == own.fingerprint()
    assert (proxy.name, proxy.batch_sizes) == (own.name, own.batch_sizes)


def test_the_served_example_on_a_device_is_the_example_on_its_data(short):
    weights, file = short
    example = example_workload()
    work = device_workload(served_example(file), weights, example.data)
    assert work.fingerprint() == example.fingerprint()
    assert work.proxy is None
    assert device_workload(served_example(file), weights, example.data, target=0.8, budget_samples=256).target == 0.8


def test_a_devices_npz_file_is_read_when_it_is_needed(tmp_path):
    work = device_workload(made(), None, tmp_path / "later.npz")
    with pytest.raises(WorkloadError, match="no such data file"):
        work.check()
    npz(tmp_path / "later.npz")
    work.check()
    assert work.train_samples == 32


def test_a_proxy_reads_the_servers_files_by_their_hash(tmp_path):
    asked = []

    def file(sha256):
        asked.append(sha256)
        return npz(tmp_path / sha256)

    proxy = proxy_workload(made(), None, file)
    proxy.check()
    assert asked == [SHA]
    assert proxy.data == Npz(tmp_path / SHA)
    assert (proxy.target, proxy.budget_samples) == (0.5, 64)


@pytest.mark.parametrize("vocabulary", ["abcdefgh ", None])
def test_a_devices_text_is_read_by_the_vocabulary_of_the_proxy(tmp_path, vocabulary):
    data = {"source": "text", "train": f"sha256:{SHA}"} | ({"vocabulary": vocabulary} if vocabulary else {})
    model = made(
        factory="character-transformer",
        options={"vocabulary": 9, "length": 8, "layers": 1, "heads": 2, "width": 8},
        input_shape=[8],
        task="language",
        proxy={"data": data},
    )
    (tmp_path / "own.txt").write_text("hag bed " * 60)  # other characters of the nine than the proxy's first ones
    if vocabulary is None:
        with pytest.raises(WorkloadError, match="whose vocabulary"):
            device_workload(model, None, tmp_path / "own.txt")
        assert device_workload(model, None, tmp_path / "own.npz").data == Npz(tmp_path / "own.npz")
        return
    work = device_workload(model, None, tmp_path / "own.txt")
    work.check()
    (tmp_path / SHA).write_text(TEXT)
    proxy = proxy_workload(model, None, lambda sha256: tmp_path / sha256)
    proxy.check()
    # "h" has one and the same number in both.
    assert int(work.loaded.train[0][0, 0]) == int(proxy.loaded.train[0][0, 7])


def test_missing_or_superfluous_weights_are_refused(short):
    weights, file = short
    with pytest.raises(WorkloadError, match="needs a file"):
        proxy_workload(served_example(file), None, no_file)
    with pytest.raises(WorkloadError, match="has no file"):
        device_workload(made(), weights, image_data())


def test_a_workload_file_survives_the_round_trip_through_a_description(tmp_path):
    npz(tmp_path / "own.npz")
    npz(tmp_path / "proxy.npz", samples=30)
    (tmp_path / "work.toml").write_text("""
name = "made"
input_shape = [1, 8, 8]
budget_samples = 64
target = 0.5
batch_sizes = [4, 8]
[model]
name = "small-cnn"
options = { classes = 3, width = 4, channels = 1 }
[optimizer]
name = "sgd"
learning_rate = 0.1
momentum = 0.9
[augmentation]
shift = 1
[data]
source = "npz"
train = "own.npz"
[proxy]
target = 0.6
[proxy.data]
source = "npz"
train = "proxy.npz"
""")
    work = load_workload(tmp_path / "work.toml")
    model = served_model(work, factory="small-cnn", data={"source": "npz", "train": f"sha256:{SHA}"})
    assert device_workload(model, None, tmp_path / "own.npz").fingerprint() == work.fingerprint()
    assert proxy_workload(model, None, lambda _: tmp_path / "proxy.npz").fingerprint() == work.proxy.fingerprint()


def test_a_proxys_share_of_the_way_to_its_plateau_is_described():
    own = classification(target=0.5)
    own = replace(own, proxy=replace(own, target=None, target_share=0.925))
    model = served_model(own, factory="small-cnn", data={"source": "digits"})
    assert model.proxy.target == "92.5%"
    assert proxy_workload(model, None, no_file).target_share == 0.925
    with pytest.raises(ValidationError, match="target"):
        ServedProxy(data={"source": "digits"}, target="auto%")


def own_loss(output, target):
    return output.sum()


@pytest.mark.parametrize(
    ("changes", "proxy", "words"),
    [
        ({"loss": own_loss}, {}, "custom loss"),
        ({"optimizer": own_loss}, {}, "custom optimizer"),
        ({"micro_batch_sizes": [2]}, {}, "micro_batch_sizes"),
        ({}, {"augmentation": Augmentation(shift=1)}, "augmentation of a server's proxy"),
        ({}, {"model": small_cnn}, "the model of a server's proxy"),
    ],
)
def test_workloads_that_a_description_cannot_express_are_refused(changes, proxy, words):
    work = classification(**{"target": 0.5, **changes})
    work = replace(work, proxy=classification(**{**changes, "target": 0.5, **proxy}))
    with pytest.raises(WorkloadError, match=words):
        served_model(work, factory="small-cnn", data={"source": "digits"})


def test_a_description_of_a_workload_needs_a_proxy_a_known_model_and_data_of_the_server():
    work = classification(target=0.5)
    with pytest.raises(WorkloadError, match="has no proxy"):
        served_model(work, factory="small-cnn", data={"source": "digits"})
    work = replace(work, proxy=classification(target=0.5))
    with pytest.raises(WorkloadError, match="allowed: character-transformer"):
        served_model(work, factory="os:system", data={"source": "digits"})
    with pytest.raises(RecordError, match="sha256"):
        served_model(work, factory="small-cnn", data={"source": "npz", "train": "/etc/passwd"})
    with pytest.raises(ValidationError):
        ServedProxy(data={"source": "factory", "factory": "os:system"})
