"""The wheel and the sdist: an index would take them, and `make demo` runs with nothing but the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml

from wattune.version import RELEASE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def run(*command, cwd, **environment):
    """Run a command without anything of this checkout in its environment; gives what it printed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONWARNINGS")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The folder of an sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distribution")
    clone = folder / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("src", "deploy"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    # In a repository, whose commit the version of what is built does not have.
    run("git", "init", "--quiet", cwd=clone)
    run("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--allow-empty", "-qm", "one", cwd=clone)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", cwd=clone)
    return folder / "dist"


@pytest.fixture(scope="module")
def clean(distributions, tmp_path_factory):
    """The programs of a new environment with nothing but the wheel, what it depends on, and its extra for training."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    (wheel,) = distributions.glob("*.whl")
    run(
        folder / "bin/pip",
        "install",
        "--quiet",
        "--no-compile",
        "-c",
        ROOT / "constraints.txt",
        f"{wheel}[torch]",
        cwd=folder,
    )
    return folder / "bin"


def demo_commands():
    """What `make demo` runs, in a folder named .demo, with one seed: this is about what it loads, not what it finds."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    values = dict(re.findall(r"^(CAP|DEVICE|DEMO) \??:?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [
        re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], line)
        for line in (line.replace("$(BIN)/", "") for line in recipe.split("\n\t"))
    ]
    commands = [line.split() for line in lines if line.strip().startswith("wattune ")]
    commands[-1] += ["--set", "seeds=1"]
    return commands


def test_an_index_would_take_both(distributions):
    files = sorted(distributions.iterdir())
    assert [file.name.replace(f"-{RELEASE}", "") for file in files] == ["wattune-py3-none-any.whl", "wattune.tar.gz"]
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=distributions).count("PASSED") == 2


def test_the_wheel_has_both_packages_and_their_files_and_no_more(distributions):
    (wheel,) = distributions.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name and ".data/" not in name}
    sources = {
        str(file.relative_to(ROOT / "src"))
        for package in ("wattune", "wattune_agent", "wattune_server")
        for file in (ROOT / "src" / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert packed == sources


def test_the_demo_runs_with_nothing_but_the_wheel(clean, tmp_path):
    where = run(clean / "python", "-c", "import wattune; print(wattune.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(clean.parent)
    (tmp_path / ".demo").mkdir()
    commands = demo_commands()
    assert [command[1] for command in commands] == ["profile", "run"]
    for command in commands:
        run(clean / command[0], *command[1:], cwd=tmp_path, OMP_NUM_THREADS="1")
    assert {"plan.json", "training.json", "comparison.json", "report.html"} <= {
        file.name for file in (tmp_path / ".demo/run").iterdir()
    }


def test_an_extra_can_be_added_to_what_is_installed(clean, tmp_path):
    """The hint of many messages: ``pip install 'wattune[data]'``."""
    run(clean / "pip", "install", "--quiet", "wattune[data]", cwd=tmp_path)
    assert run(clean / "python", "-c", "import PIL; print(1)", cwd=tmp_path) == "1\n"


def test_without_an_extra_no_torch_is_asked_for(distributions):
    """An index would replace the build of a board, whose version sorts below the release."""
    (wheel,) = distributions.glob("*.whl")
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    required = re.findall(r"^Requires-Dist: (.*)$", zipfile.ZipFile(wheel).read(name).decode(), re.MULTILINE)
    assert any(line.startswith("numpy") for line in required)
    assert not [line for line in required if "extra ==" not in line and re.match("torch|safetensors|nvidia", line)]


def commands_for_a_board_without_a_network():
    section = (ROOT / "docs/install.md").read_text().split("## On a board without a network")[1].split("\n## ")[0]
    return re.findall(r"^ {4}(.*)$", section, re.MULTILINE)


def test_a_folder_for_a_board_without_a_network(distributions, tmp_path):
    """The commands of docs/install.md: for the board that they name, and for this machine, where the result runs."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tmp_path, "uv", cwd=tmp_path)
    clone, path = distributions.parent / "clone", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    *fetch, start = commands_for_a_board_without_a_network()
    run("bash", "-ec", "\n".join(fetch), cwd=clone, PATH=path)
    installed = {file.name.partition("-")[0] for file in (clone / "for-the-board").glob("*.dist-info")}
    assert {"wattune", "numpy", "httpx", "pydantic", "tomli"} <= installed  # tomli: a dependency of Python 3.10 alone
    assert "torch" not in installed
    libraries = {file.name for file in (clone / "for-the-board").rglob("*.so") if "cpython" in file.name}
    assert libraries
    assert all("-310-aarch64-" in name for name in libraries), libraries

    shutil.rmtree(clone / "for-the-board")
    own = {"--python-version 3.10": "", "--python-platform aarch64-manylinux2014": f"--python {sys.executable}"}
    for theirs, ours in own.items():
        assert theirs in fetch[-1]
        fetch[-1] = fetch[-1].replace(theirs, ours)
    run("bash", "-ec", "\n".join(fetch), cwd=clone, PATH=path)
    first = start.replace("python3 -m wattune doctor", f"{sys.executable} -m wattune --version")
    assert run("bash", "-ec", first, cwd=clone) == f"wattune {RELEASE}\n"
    where = start.replace("python3 -m wattune doctor", f"{sys.executable} -c 'import wattune; print(wattune.__file__)'")
    assert Path(run("bash", "-ec", where, cwd=clone).strip()).is_relative_to(clone / "for-the-board")


def test_the_citation_follows_its_schema_and_names_this_version(tmp_path):
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, "cffconvert", cwd=tmp_path
    )
    schema = json.loads((tmp_path / "cffconvert/schemas/1.2.0/schema.json").read_text())
    # To the schema, dates and versions are texts, which YAML would read as dates and numbers.
    citation = yaml.load((ROOT / "CITATION.cff").read_text(), Loader=yaml.BaseLoader)
    jsonschema.validate(citation, schema)
    assert citation["version"] == RELEASE.removesuffix(".dev0")
