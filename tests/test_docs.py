"""README and docs are promises: their commands run, their links lead somewhere, their figures are those in results/."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d.]*")
SEARCHES_END = ("README.md", "own-loop.md")
"""Pages whose examples train for as long as a search takes."""
RUN = [page for page in PAGES if any(kind in ("sh", "python") for kind, _ in FENCE.findall(page.read_text()))]


def make_images(folder: Path) -> None:
    """Small archives in the place and the format of the real-images example."""
    import numpy as np

    rng = np.random.default_rng(0)
    for name, classes, each in (("pretraining", 100, 4), ("cifar10", 10, 80)):
        (folder / name).mkdir(parents=True)
        for part, share in (("train", 1), ("test", 4)):  # a quarter to test with, as every evaluation goes through it
            labels = rng.permutation(np.repeat(np.arange(classes), each // share))
            # Each class has a brightness of its own, which takes few samples to learn.
            images = rng.integers(0, 60, (len(labels), 3, 32, 32), dtype=np.uint8)
            images += (labels * (190 // classes)).astype(np.uint8)[:, None, None, None]
            np.savez(folder / name / f"{part}.npz", images=images, labels=labels)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_run(page, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    make_images(tmp_path / "examples" / "real-images")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error",
    }
    printed = ""
    for kind, text in FENCE.findall(page.read_text()):
        if kind == "output":
            # Figures may move by a little with torch and the search.
            assert NUMBER.sub("0", printed).startswith(NUMBER.sub("0", text))
        if kind == "sh":
            command = ["bash", "-euo", "pipefail", "-c", text]
        elif kind == "python":
            (tmp_path / "example.py").write_text(text)
            command = [sys.executable, "example.py"]
        else:
            continue
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        printed = done.stdout
        assert done.returncode == 0, f"{text}\n{printed}\n{done.stderr}"
        if page.name in SEARCHES_END:
            assert "ended before the search" not in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^ {4}|`)make ([a-z]+)", page.read_text(), re.MULTILINE)) <= targets


def test_the_readme_is_short():
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text())
    assert len(text.split()) < 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_installed_comes_from_a_clone(page):
    """No page has ``pip install wattune`` as if an index had it, but for environments that have it already."""
    for line in page.read_text().splitlines():
        if "In an environment that has wattune" not in line:
            assert not re.search(r"pip install (?:-\S+ )*['\"]?wattune", line), line


def test_the_figures_are_those_in_the_results():
    from benchmarks.readme import PAGES, filled

    for page in PAGES:
        text = page.read_text()
        assert filled(text) == text, f"run `make benchmarks`, or `python -m benchmarks readme` to fill {page.name} anew"
