"""The sources that a workload file names, with every key of each, and those of the documentation."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.archives import (
    cifar10_files,
    cifar100_files,
    cinic10_files,
    idx,
    mat,
    pixels,
    stl10_files,
    tar,
    zipped,
)

from wattune.datasets.downloads import Download
from wattune.datasets.image_archives import Cifar, Idx, Svhn
from wattune.datasets.image_folders import ImageFolders
from wattune.datasets.npz import Npz
from wattune.datasets.texts import Text
from wattune.errors import InputError
from wattune.workloads import load_workload
from wattune.workloads.data_table import data_source

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[2] / "docs" / "workload-file.md"
SUM = "md5:" + "0" * 32


def blocks():
    """Every table [data] in the documentation, also those that are commented out in the annotated file."""
    text = "\n".join(re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL))
    tables = []
    for block in re.split(r"^(?=(?:# )?\[)|^$", text, flags=re.MULTILINE):
        plain = re.sub(r"^# ", "", block, flags=re.MULTILINE)
        if plain.startswith(("[data]", "[proxy.data]")):
            table = tomllib.loads(plain)
            tables.append(table.get("proxy", table)["data"])
    return tables


@pytest.fixture
def files(tmp_path):
    """Small versions of the files that the documentation's tables name."""
    for name in ("data", "cifar10"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "data"
    tar(folder / "cifar-10-binary.tar.gz", cifar10_files())
    tar(folder / "cifar-100-binary.tar.gz", cifar100_files())
    tar(folder / "CINIC-10.tar.gz", cinic10_files()[0])
    tar(folder / "stl10_binary.tar.gz", stl10_files()[0])
    for name, samples in (("train_32x32.mat", 30), ("test_32x32.mat", 20)):
        mat(folder / name, samples)
    for part, samples in (("train", 20), ("t10k", 10)):
        idx(folder / f"{part}-images-idx3-ubyte.gz", pixels(samples, 28, 1)[:, 0])
        idx(folder / f"{part}-labels-idx1-ubyte.gz", (np.arange(samples) % 10).astype(np.uint8))
    for part in ("train", "test"):
        np.savez(tmp_path / "cifar10" / f"{part}.npz", images=pixels(60), labels=np.arange(60) % 10)
    np.savez(tmp_path / "load.npz", series=np.sin(np.arange(1000.0)))
    text = "the quick brown fox jumps over the lazy dog\n" * 20
    book = f"*** START OF THE PROJECT GUTENBERG EBOOK A ***\n{text}*** END OF THE PROJECT GUTENBERG EBOOK A ***\n"
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text(text)
    for name in ("hard-times.txt", "bleak-house.txt"):
        (folder / name).write_text(book)
    parts = {f"wikitext-2-raw/wiki.{part}.raw": text.encode() for part in ("train", "valid", "test")}
    zipped(folder / "wikitext-2-raw-v1.zip", parts)
    return tmp_path


@pytest.mark.slow
def test_every_documented_table_reads_its_files(files):
    sources = set()
    for table in blocks():
        shape = {"graphs": [48, 2], "series": [64, 1]}.get(table["source"], [64])
        source = data_source(table, files, shape)
        sources.add(table["source"])
        if table["source"] != "factory" and "url" not in str(table):
            data = source()
            assert len(data.train[0]) > 0, table
            assert len(data.test[0]) > 0, table
    # Named beside their siblings.
    cifar100 = data_source({"source": "cifar100", "archive": "data/cifar-100-binary.tar.gz"}, files, [64])()
    assert len(cifar100.train[0]) == 200
    assert 'source = "cifar10"                     # or "cifar100"' in DOCS.read_text()
    assert 'source = "mnist"                       # or "fashion-mnist"' in DOCS.read_text()
    with pytest.raises(InputError) as caught:
        data_source({"source": ""}, files, [64])
    assert {*sources, "cifar100", "fashion-mnist"} == set(str(caught.value).partition("allowed: ")[2].split(", "))


@pytest.fixture(autouse=True)
def mydata(tmp_path, monkeypatch):
    (tmp_path / "mydata.py").write_text("def load(**options): return options")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mydata", None)


def test_every_key_of_every_source_is_documented(files):
    documented = DOCS.read_text()
    for source in {table["source"] for table in blocks()} - {"factory"}:
        with pytest.raises(InputError, match="unknown key") as caught:
            data_source({"source": source, "unknown": 1}, files, [64])
        for key in str(caught.value).partition("allowed: ")[2].split(", "):
            assert re.search(rf"^(# )?{key} = |`{key}`", documented, re.MULTILINE), (source, key)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"source": "cifar10", "archive": "x"}, Cifar(Path("/f/x"))),
        (
            {
                "source": "cifar100",
                "archive": {"url": "https://h/x", "checksum": SUM},
                "share": 0.25,
                "classes": [2, 1],
            },
            Cifar(Download("https://h/x", SUM), "cifar100", share=0.25, classes=(2, 1)),
        ),
        ({"source": "svhn", "train": "a", "test": "b"}, Svhn(Path("/f/a"), Path("/f/b"))),
        (
            {"source": "fashion-mnist", "images": "a", "labels": "b", "size": 32, "channels": 3},
            Idx(Path("/f/a"), Path("/f/b"), size=32, channels=3),
        ),
        ({"source": "cinic10", "train": "x"}, ImageFolders(Path("/f/x"), "train", test_folder="test")),
        (
            {"source": "cinic10", "train": "x", "test_share": 0.2, "share": 0.25},
            ImageFolders(Path("/f/x"), "train", test_share=0.2, share=0.25),
        ),
        ({"source": "cinic10", "train": "x", "test": "y"}, ImageFolders(Path("/f/x"), "train", Path("/f/y"))),
        ({"source": "npz", "train": "x", "share": 0.5}, Npz(Path("/f/x"), share=0.5)),
        (
            {"source": "text", "train": ["a", {"url": "http://h/b", "checksum": SUM}], "gutenberg": True},
            Text((Path("/f/a"), Download("http://h/b", SUM)), 64, gutenberg=True),
        ),
        (
            {"source": "text", "train": "a", "train_members": ["*.x"], "test_members": ["y"]},
            Text(Path("/f/a"), 64, train_members=("*.x",), test_members=("y",)),
        ),
    ],
)
def test_a_table_is_a_source(table, expected):
    assert data_source(table, Path("/f"), [64]) == expected


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"source": "cifar10"}, "archive is missing in [data] from cifar10"),
        ({"source": "cifar10", "archive": "x", "train": "y"}, "unknown key in [data] from cifar10: train"),
        ({"source": "cifar10", "archive": "https://h/x"}, "a URL without a checksum"),
        ({"source": "cifar10", "archive": {"url": "https://h/x"}}, "checksum is missing in archive file"),
        ({"source": "cifar10", "archive": {"url": "x", "checksum": SUM}}, "url: x"),
        ({"source": "cifar10", "archive": {"url": 1, "checksum": 2}}, "url: 1"),
        ({"source": "cifar10", "archive": ["x"]}, "archive file: ['x']; allowed: a path"),
        ({"source": "cifar10", "archive": "x", "classes": 3}, "a list of labels"),
        ({"source": "cifar10", "archive": "x", "share": 1.5}, "share: 1.5"),
        ({"source": "cifar10", "archive": "x", "size": "large"}, "size of the images: large"),
        ({"source": "mnist", "images": "x"}, "labels is missing"),
        ({"source": "svhn", "train": "x", "test": "y", "test_share": 0.2}, "test_share beside a test part"),
        ({"source": "cinic10", "train": "x", "test_folder": "valid", "test_share": 0.2}, "test_share beside"),
        ({"source": "image-folders", "train": "x", "train_folder": 1}, "train_folder: 1"),
        ({"source": "text", "train": []}, "train file: []"),
        ({"source": "text", "train": [1]}, "train file: 1"),
        ({"source": "text", "train": "x", "train_members": "*.txt"}, "a list of names"),
        ({"source": "text", "train": "x", "gutenberg": "yes"}, "gutenberg: yes"),
    ],
)
def test_errors_are_one_line(table, words):
    with pytest.raises(InputError) as caught:
        data_source(table, Path("/f"), [64])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_workload_is_trained_on_an_archive(files):
    (files / "workload.toml").write_text(
        """
        name = "svhn-quarter"
        input_shape = [3, 32, 32]
        budget_samples = 64
        batch_sizes = [4, 8]
        target = 0.5
        model = { name = "small-cnn", options = { width = 4 } }
        data = { source = "svhn", train = "data/train_32x32.mat", share = 0.5, test_share = 0.2 }
        """
    )
    workload = load_workload(files / "workload.toml")
    workload.check()
    assert (workload.train_samples, workload.test_samples) == (12, 3)
    x, _ = next(workload.batches(8, seed=0))
    assert workload.model(0)(x).shape == (8, 10)
    assert 0 <= x.min() < x.max() <= 1
    assert workload.data_fingerprint() == load_workload(files / "workload.toml").data_fingerprint()
