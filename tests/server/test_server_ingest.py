"""Import of a workload file: the same proxy bit for bit, and none of the workload's own data."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.torch import save_file
from tests.support.server.served import request

from wattune.errors import InputError, OutputError
from wattune.workloads import MODELS, load_workload
from wattune.workloads.models import small_cnn
from wattune_server.cli.main import main
from wattune_server.ingest import add_model, read_model
from wattune_server.jobs import queue
from wattune_server.jobs.sweep_process import SweepConfig, outcome_of, served_proxy
from wattune_server.store import model_catalog
from wattune_server.store.schema import FileRow

HEAD = """
name = "mine"
input_shape = [1, 8, 8]
budget_samples = 2048
evaluate_every = 128
batch_sizes = [16, 64]
target = 0.5
[model]
name = "small-cnn"
options = { classes = 5, channels = 1, width = 4 }
"""
OWN = '[data]\nsource = "npz"\ntrain = "own.npz"\n'
OPTIMIZER = '[optimizer]\nname = "adam"\nlearning_rate = 5e-3\n'


def written(folder, proxy, head=HEAD, own=OWN):
    path = folder / "workload.toml"
    path.write_text(head + own + OPTIMIZER + "[proxy]\n" + proxy)
    return path


def arrays(path, seed=0):
    draws = np.random.default_rng(seed)
    images = draws.integers(0, 256, (160, 1, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=draws.integers(0, 5, 160))


def added(store, path):
    model, _ = add_model(read_model(path), store.database, store.files)
    with store.database.session(reads_only=True) as session:
        assert model_catalog.get(session, model.model) == model
    return model


def is_the_same(store, model, path):
    proxy = load_workload(path).proxy
    return served_proxy(model, store.files.path, proxy.target).fingerprint() == proxy.fingerprint()


def test_imported_weights_and_arrays_are_used_by_sweep(store, tmp_path):
    arrays(tmp_path / "proxy.npz")
    save_file(small_cnn(classes=5, channels=1, width=4).state_dict(), tmp_path / "w.safetensors")
    head = HEAD + 'weights = "w.safetensors"\nreinitialise = ["fc"]\n'
    proxy = 'target = 0.1\ndata = { source = "npz", train = "proxy.npz", test_share = 0.25 }\n'
    path = written(tmp_path, proxy, head)
    model = added(store, path)  # own.npz is not even there
    assert is_the_same(store, model, path)
    assert len(list(store.files.folder.glob("??/*"))) == 2
    with store.database.session(reads_only=True) as session:
        files = {row.sha256 for row in session.query(FileRow)}
    assert files == {model.weights.sha256, model.proxy.files[0]}
    with store.database.session() as session:
        job, _ = queue.submit(session, model, request("mine", seeds=1), 0.0)
    config = SweepConfig(store=store.settings.store, job=job.id, model=job.model, request=job.request)
    assert "curve" in outcome_of(config)


def test_copy_that_differs_from_its_source_is_not_kept(sqlite_store, tmp_path):
    """A training may write its weights meanwhile; the next attempt finds nothing, and stores them."""
    (source := tmp_path / "weights").write_bytes(b"trained")
    stored = sqlite_store.files.path(sqlite_store.files.write(b"trained"))
    stored.write_bytes(b"differs")
    with pytest.raises(OutputError, match=r"the copy differs from .*weights"):
        sqlite_store.files.copy(source)
    sqlite_store.files.copy(source)
    assert stored.read_bytes() == b"trained"


def test_reimport_replaces_the_model(sqlite_store, tmp_path):
    path = written(tmp_path, 'target = 0.1\ndata = { source = "digits", size = 8, classes = [0, 1, 2, 3, 4] }\n')
    first, is_new = add_model(read_model(path), sqlite_store.database, sqlite_store.files)
    assert is_new
    again, is_new = add_model(read_model(path), sqlite_store.database, sqlite_store.files)
    assert (is_new, again) == (False, first)


def test_other_data_sources_are_stored_as_arrays(sqlite_store, tmp_path):
    # Images of 2 classes in folders, which a server does not read
    from PIL import Image

    for number in range(100):
        folder = tmp_path / "images" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    proxy = 'target = 0.1\ndata = { source = "image-folders", train = "images", size = 8, channels = 1 }\n'
    path = written(tmp_path, proxy)
    model = added(sqlite_store, path)
    assert (model.proxy.data["source"], len(model.proxy.files)) == ("npz", 2)
    assert is_the_same(sqlite_store, model, path)


@pytest.mark.parametrize(("name", "source"), [("text.txt", "text"), ("text.data", "npz")])
def test_text_is_stored_as_text_or_tokens(sqlite_store, tmp_path, name, source):
    (tmp_path / name).write_text("the quick brown fox jumps over the lazy dog. " * 40)
    head = HEAD.replace("[1, 8, 8]", "[16]").replace('name = "mine"', 'name = "mine"\ntask = "language"')
    head = head[: head.index("[model]")] + (
        '[model]\nname = "character-transformer"\n'
        "options = { vocabulary = 96, length = 16, width = 16, layers = 1, heads = 2 }\n"
    )
    proxy = f'target = 0.1\ndata = {{ source = "text", train = "{name}", vocabulary = "ascii" }}\n'
    path = written(tmp_path, proxy, head, own='[data]\nsource = "text"\ntrain = "own.txt"\n')
    model = added(sqlite_store, path)
    assert model.proxy.data["source"] == source
    assert is_the_same(sqlite_store, model, path)


DIGITS = 'target = 0.1\ndata = { source = "digits", size = 8, classes = [0, 1, 2, 3, 4] }\n'


@pytest.mark.parametrize(
    ("head", "proxy", "said"),
    [
        (HEAD.replace('"small-cnn"', '"made:module"'), DIGITS, "made:module"),
        (HEAD, DIGITS + "budget_samples = 100\n", "budget_samples"),
        (HEAD, DIGITS + "evaluate_every = 64\n", "evaluate_every of a server's proxy"),
        (HEAD.replace('"mine"', '"not a name"'), DIGITS, "field model"),
        (HEAD.replace("batch_sizes", "micro_batch_sizes = [8]\nbatch_sizes"), DIGITS, "micro_batch_sizes"),
        (HEAD + 'weights = "bad.safetensors"\n', DIGITS, "bad.safetensors"),
        (HEAD, 'target = 0.1\ndata = { source = "npz", train = "nowhere.npz" }\n', "nowhere.npz"),
        (HEAD, 'target = 0.1\ndata = { source = "npz", train = "objects.npz" }\n', "objects.npz"),
    ],
)
def test_unsupported_model_is_rejected_without_rows(sqlite_store, tmp_path, head, proxy, said):
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "made.py").write_text("def module(**options):\n    from torch import nn\n    return nn.Linear(1, 1)\n")
    np.savez(tmp_path / "objects.npz", images=np.array([{"a": 1}], dtype=object), labels=[0])
    with pytest.raises(InputError, match=said):
        add_model(read_model(written(tmp_path, proxy, head)), sqlite_store.database, sqlite_store.files)
    with sqlite_store.database.session(reads_only=True) as session:
        assert model_catalog.listing(session, limit=9) == []
        assert session.query(FileRow).count() == 0


def test_workload_without_proxy_is_rejected(sqlite_store, tmp_path):
    path = tmp_path / "workload.toml"
    path.write_text(HEAD + OWN)
    with pytest.raises(InputError, match=r"workload.toml has no table \[proxy\]"):
        add_model(read_model(path), sqlite_store.database, sqlite_store.files)
    assert "small-cnn" in MODELS


def test_rejected_file_creates_no_store(tmp_path, capsys):
    folder = tmp_path / "fleet"
    assert main(["store", "add", str(tmp_path / "nothing.toml"), "--store", str(folder)]) == 2
    assert "no such workload file" in capsys.readouterr().err
    assert not folder.exists()
