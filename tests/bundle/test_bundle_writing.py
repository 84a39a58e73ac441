"""Bundle for a board without a network, built from an index of empty wheels."""

from __future__ import annotations

import base64
import csv
import hashlib
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


def make_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only package index that pip sees: a folder with an empty wheel of each requirement."""
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


@pytest.fixture
def index(tmp_path, monkeypatch):
    return make_index(tmp_path / "index", monkeypatch)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """One bundle for the tests that only look at it: pip takes a second or two."""
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_index(folder / "index", monkeypatch)
        return bundle(folder / "b")


@pytest.fixture(scope="module")
def own_wheel(result):
    """The wheel of wattune itself."""
    return next(wheel for wheel in result.wheels if wheel.name.startswith("wattune-"))


def names(result):
    return {wheel.name.partition("-")[0] for wheel in result.wheels}


@pytest.mark.slow
def test_it_has_the_dependencies_of_the_board_without_torch(result):
    assert {"wattune", "numpy", "httpx", "pydantic", "typer", "tomli"} <= names(result)
    assert "old_python" in names(result), "a dependency of the board's Python only"
    assert not {"torch", "only_here", "extra"} & names(result)
    assert "python3.10 -m pip install --no-index" in result.readme.read_text()


@pytest.mark.slow
def test_its_wheel_is_the_installed_wattune(own_wheel, tmp_path):
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(own_wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = "import sys, wattune, wattune_agent, wattune.cli; print(wattune.__file__); wattune.cli.main(['--version'])"
    process = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(target)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.startswith(str(target))
    assert process.stdout.endswith(f"wattune {distribution('wattune').version}\n")
    assert (target / "wattune" / "devices" / "simulator" / "boards" / "jetson-nano.toml").is_file()
    assert (target / "wattune" / "reporting" / "page.css").is_file()


@pytest.mark.slow
def test_its_wheel_has_the_deploy_files_and_no_trace_of_this_machine(own_wheel):
    with zipfile.ZipFile(own_wheel) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    info = f"wattune-{distribution('wattune').version}.dist-info"
    assert {name.partition("/")[2] for name in files if name.startswith(info)} >= {"METADATA", "RECORD", "WHEEL"}
    assert not {f"{info}/direct_url.json", f"{info}/INSTALLER", f"{info}/REQUESTED"} & files.keys()
    assert not [name for name in files if "__pycache__" in name or name.endswith(".pth")]
    assert f"{info.replace('.dist-info', '.data')}/data/share/wattune/deploy/wattune-agent.service" in files
    recorded = {row[0]: row[1] for row in csv.reader(files[f"{info}/RECORD"].decode().splitlines())}
    for name, content in files.items():
        if not name.endswith("RECORD"):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert recorded[name] == f"sha256={digest}"


@pytest.mark.slow
def test_an_installed_wattune_packs_the_same_wheel_as_a_clone(own_wheel, tmp_path):
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(own_wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = f"""
import sys
sys.path.insert(0, {str(target)!r})
from importlib.metadata import distribution
from pathlib import Path
from wattune.bundle.writing import write_wheel
write_wheel(distribution("wattune"), Path({str(tmp_path)!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    packed = []
    for path in (own_wheel, tmp_path / own_wheel.name):
        with zipfile.ZipFile(path) as wheel:
            # pip puts the files of ``share`` beside the Python that it installs for, and here for none.
            own = [name for name in wheel.namelist() if not name.endswith("/RECORD") and ".data/" not in name]
            packed.append({name: wheel.read(name) for name in own})
    assert packed[0] == packed[1]


def test_wattune_must_be_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match="not installed"):
        bundle(tmp_path / "b")


@pytest.mark.slow
def test_the_agent_is_one_file_without_dependencies(result):
    process = subprocess.run([sys.executable, "-I", "-S", str(result.agent), "--help"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "guard" in process.stdout
    with zipfile.ZipFile(result.agent) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"wattune_agent", "__main__.py"}


def test_it_has_the_files_that_start_the_agent(result):
    assert {"wattune-agent.service", "99-wattune.rules"} <= {file.name for file in result.deploy}


@pytest.mark.slow
def test_an_unavailable_wheel_is_named(index, tmp_path):
    next(index.glob("numpy*")).unlink()
    with pytest.raises(InputError, match=r"pip cannot fetch the wheels.*numpy"):
        bundle(tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_wheel_for_another_board_does_not_count(index, tmp_path):
    with pytest.raises(InputError, match="numpy"):
        bundle(tmp_path / "b", platform="manylinux2014_x86_64")


@pytest.mark.slow
def test_a_wheel_that_is_too_new_for_another_is_replaced(index, tmp_path):
    next(index.glob("httpx*")).unlink()
    make_wheel(index, "httpx", ("pydantic<999",))
    with pytest.raises(InputError, match="pydantic"):
        bundle(tmp_path / "b")
    make_wheel(index, "pydantic", version="3.0")
    result = bundle(tmp_path / "b")
    assert [wheel.name for wheel in result.wheels if wheel.name.startswith("pydantic-")] == [
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
def test_unsupported_targets_are_refused(tmp_path, option, value):
    with pytest.raises(InputError, match=f"--{option}"):
        bundle(tmp_path / "b", **{option: value})
    assert not (tmp_path / "b").exists()
