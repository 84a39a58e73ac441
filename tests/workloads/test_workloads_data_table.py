"""The sources that a workload file names, with every key of each, and those of the documentation."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wattune.errors import InputError
from wattune.workloads import ImageFolders, Npz, Text
from wattune.workloads.data_table import SOURCES, data_source

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[2] / "docs" / "workload-file.md"


def blocks():
    """Every table [data] of the annotated file in the documentation, also those that are commented out."""
    text = re.search(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)[1]
    tables = []
    for block in re.split(r"^(?=(?:# )?\[)|^$", text, flags=re.MULTILINE):
        plain = re.sub(r"^# ", "", block, flags=re.MULTILINE)
        if plain.startswith("[data]"):
            tables.append(tomllib.loads(plain)["data"])
    return tables


@pytest.fixture
def files(tmp_path):
    """Small versions of the files that the documentation's tables name."""
    draws = np.random.default_rng(0)
    (tmp_path / "cifar10").mkdir()
    for part in ("train", "test"):
        images = draws.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
        np.savez(tmp_path / "cifar10" / f"{part}.npz", images=images, labels=np.arange(60) % 10)
        (tmp_path / f"{part}.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    for folder in ("train/ship", "train/truck", "valid/ship", "valid/truck"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        Image.fromarray(draws.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(
            tmp_path / "images" / folder / "1.png"
        )
    return tmp_path


def test_every_source_is_documented_with_every_key_and_reads_its_files(files):
    tables = {table.pop("source"): table for table in blocks()}
    assert set(tables) == {*SOURCES, "factory"}
    for name, table in tables.items():
        if name == "factory":
            continue
        data = data_source({"source": name, **table}, files, [16])()
        assert len(data.train[0]) > 0
        assert len(data.test[0]) > 0
        with pytest.raises(InputError, match="unknown key") as caught:
            data_source({"source": name, "unknown": 1}, files, [16])
        keys = set(str(caught.value).partition("allowed: ")[2].split(", "))
        assert {*table, "source"} == keys, name


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"source": "npz", "train": "x", "share": 0.5}, Npz(Path("/f/x"), share=0.5)),
        ({"source": "text", "train": ["a", "b"]}, Text((Path("/f/a"), Path("/f/b")), 64)),
        (
            {"source": "image-folders", "train": "x", "test": "y", "size": 32, "classes": [2, 1]},
            ImageFolders(Path("/f/x"), Path("/f/y"), size=32, classes=(2, 1)),
        ),
    ],
)
def test_a_table_is_a_source(table, expected):
    assert data_source(table, Path("/f"), [64]) == expected


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"source": "npz"}, "train is missing in [data] from npz"),
        ({"source": "npz", "train": "x", "archive": "y"}, "unknown key in [data] from npz: archive"),
        ({"source": "npz", "train": {"url": "https://h/x"}}, "allowed: a path"),
        ({"source": "npz", "train": "x", "classes": 3}, "a list of labels"),
        ({"source": "npz", "train": "x", "share": 1.5}, "share: 1.5"),
        ({"source": "image-folders", "train": "x", "size": "large"}, "size of the images: large"),
        ({"source": "text", "train": []}, "train file: []"),
        ({"source": "text", "train": [1]}, "train file: 1"),
        ({"source": "text", "train": "x", "length": 3}, "unknown key in [data] from text: length"),
    ],
)
def test_errors_are_one_line(table, words):
    with pytest.raises(InputError) as caught:
        data_source(table, Path("/f"), [64])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
