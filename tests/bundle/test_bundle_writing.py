"""The folder for a board without a network, made from an index of wheels that hold nothing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from wattune.bundle import bundle
from wattune.errors import InputError, OutputError


def make_wheel(
    folder: Path, name: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any", version="999.0"
) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(
            f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is all that pip can see, with an empty wheel of each requirement."""
    folder = tmp_path / "index"
    folder.mkdir()
    names = {Requirement(text).name for text in distribution("wattune").requires or () if "extra ==" not in text}
    for name in names - {"numpy", "httpx"}:
        make_wheel(folder, name)
    make_wheel(folder, "numpy", tag="cp310-cp310-manylinux_2_17_aarch64")
    conditions = (
        "old-python; python_version < '3.11'",
        "only-here; platform_machine == 'x86_64'",
        "extra; extra == 'x'",
    )
    make_wheel(folder, "httpx", conditions)
    make_wheel(folder, "old-python")
    for name in ("NO_INDEX", "FIND_LINKS", "EXTRA_INDEX_URL", "INDEX_URL", "CONFIG_FILE"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def names(made):
    return {wheel.name.partition("-")[0] for wheel in made.wheels}


def test_it_holds_what_the_board_needs_and_no_torch(index, tmp_path):
    made = bundle(tmp_path / "for-the-board")
    assert {"wattune", "numpy", "httpx", "pydantic", "typer", "tomli"} <= names(made)
    assert "old_python" in names(made), "what only the board's Python needs"
    assert not {"torch", "only_here", "extra"} & names(made)
    assert "python3.10 -m pip install --no-index" in made.readme.read_text()


def test_its_wheel_is_wattune_as_it_is_here(index, tmp_path):
    made = bundle(tmp_path / "b")
    wheel = next(wheel for wheel in made.wheels if wheel.name.startswith("wattune-"))
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = "import sys, wattune, wattune_agent, wattune.cli; print(wattune.__file__); wattune.cli.main(['--version'])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(target)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(target))
    assert done.stdout.endswith(f"wattune {distribution('wattune').version}\n")
    assert (target / "wattune" / "devices" / "boards" / "jetson-nano.toml").is_file()
    assert (target / "wattune" / "reporting" / "page.css").is_file()


def test_the_agent_is_one_file_that_runs_by_itself(index, tmp_path):
    made = bundle(tmp_path / "b")
    done = subprocess.run([sys.executable, "-I", "-S", str(made.agent), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "guard" in done.stdout
    with zipfile.ZipFile(made.agent) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"wattune_agent", "__main__.py"}


def test_it_has_the_files_that_start_the_agent(index, tmp_path):
    made = bundle(tmp_path / "b")
    assert {"wattune-agent.service", "99-wattune.rules"} <= {file.name for file in made.deploy}


def test_a_wheel_that_is_nowhere_is_named(index, tmp_path):
    next(index.glob("numpy*")).unlink()
    with pytest.raises(InputError, match=r"pip cannot fetch the wheels.*numpy"):
        bundle(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_wheel_for_another_board_does_not_count(index, tmp_path):
    with pytest.raises(InputError, match="numpy"):
        bundle(tmp_path / "b", platform="manylinux2014_x86_64")


def test_a_wheel_that_is_too_new_for_another_is_exchanged(index, tmp_path):
    next(index.glob("httpx*")).unlink()
    make_wheel(index, "httpx", ("pydantic<999",))
    with pytest.raises(InputError, match="pydantic"):
        bundle(tmp_path / "b")
    make_wheel(index, "pydantic", version="3.0")
    made = bundle(tmp_path / "b")
    assert [wheel.name for wheel in made.wheels if wheel.name.startswith("pydantic-")] == [
        "pydantic-3.0-py3-none-any.whl"
    ]


def test_nothing_is_overwritten(index, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        bundle(tmp_path / "b")
    assert (tmp_path / "b" / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("option", "value"), [("python", "3.8"), ("python", "three"), ("platform", "win_amd64"), ("platform", "aarch64")]
)
def test_what_cannot_be(tmp_path, option, value):
    with pytest.raises(InputError, match=f"--{option}"):
        bundle(tmp_path / "b", **{option: value})
    assert not (tmp_path / "b").exists()
